"""Camtrap DP: a folder with media.csv and observations.csv of camera traps.

An observation says that a species was seen in a medium. A classified medium lacks all other species, a blank one all of
them, unless `unlisted` states otherwise or an animal could not be identified. Observations of a whole event are those
of its media that have none of their own. Images are named by filePath, fileName or mediaID, whichever names a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path

from halflabel.labels.formats._csv import first_line, header_fields
from halflabel.labels.formats._entries import utc_time
from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, Note, record_format
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.labels import model_source
from halflabel.labels.names import first_duplicate
from halflabel.labels.policy import Policy

_MEDIA, _OBSERVATIONS = "media.csv", "observations.csv"
_COLUMNS = ("observationType", "scientificName", "classificationMethod", "classifiedBy")
_NAMELESS = ("human", "vehicle")  # types of observations that are classes where they name no species
_OPEN = ("animal", "unknown", "unclassified")  # without a species these say nothing of the classes


def _is_camtrap_dp(path: Path) -> bool:
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name not in (_MEDIA, _OBSERVATIONS, "datapackage.json"):
        return False
    needed = ((_MEDIA, {"mediaID", "filePath"}), (_OBSERVATIONS, {"observationType", "mediaID"}))
    return all(columns <= set(header_fields(first_line(folder / name))) for name, columns in needed)


@record_format(("unlisted",), _is_camtrap_dp, default="absent", has_paths=False)
def camtrap_dp(path: Path, policy: Policy) -> Iterator[ImageRecord | Note | str]:
    folder = path if path.is_dir() else path.parent
    media, observations = CsvTable(folder / _MEDIA), CsvTable(folder / _OBSERVATIONS)
    labels: list[list[Label]] = [[] for _ in range(len(media))]
    listed, unclear = set[int](), set[int]()
    places, events = _places(media, observations)
    columns = (_cells(observations, name) for name in _COLUMNS)
    scores = observations.numbers("classificationProbability", "use a number from 0 to 1", least=0, most=1).tolist()
    for row, (kind, species, method, person) in enumerate(zip(*columns, strict=True)):
        name, how = species or (kind if kind in _NAMELESS else ""), method.strip().lower()
        if not name and kind not in ("blank", *_OPEN):
            message = f"observation type {kind!r} is not known"
            raise observations.error(message, "use animal, human, vehicle, blank, unknown", row=row)
        if name and how not in ("", "human", "machine"):
            message = f"classification method {method!r:.60} is not known"
            raise observations.error(message, "use human or machine", row=row)
        (listed if name or kind == "blank" else unclear).update(places[row])
        if name and places[row]:
            yield name  # in the order of the observations
        for place in places[row] if name else ():
            source = model_source(person) if how == "machine" else person
            labels[place].append(Label(name, "species", 1, source, scores[row]))
    for place, name in enumerate(_image_names(media)):
        yield ImageRecord(Node(name, media.path), labels[place], place in listed - unclear)
    yield Note(events, "observations of whole events are taken for those of their images that have none of their own")
    yield Note(len(media), "media: images of one camera look alike, train with ‹group=deploymentID›")


def _cells(sheet: CsvTable, name: str) -> list[str]:
    return list(sheet.column(name).to_pylist()) if name in sheet else [""] * len(sheet)


def _image_names(media: CsvTable) -> list[str]:
    media.check_columns(("filePath", "mediaID"))
    names, ids = _cells(media, "filePath"), _cells(media, "mediaID")
    if (duplicate := first_duplicate(ids)) is not None or "" in ids:
        row = ids.index(duplicate or "")
        raise media.error(f"medium {ids[row]!r:.60} is not unique", "export the media again", row=row, column="mediaID")
    if any("://" in name for name in names):
        names = _cells(media, "fileName")
    return names if all(names) and len(set(names)) == len(names) else ids


def _places(media: CsvTable, observations: CsvTable) -> tuple[list[list[int]], int]:
    """The media of each observation; those of an event are of its deployment and its time; and the number of events."""
    number = {name: row for row, name in enumerate(_cells(media, "mediaID"))}
    of_deployment: dict[str, list[int]] = {}
    for place, deployment in enumerate(_cells(media, "deploymentID")):
        of_deployment.setdefault(deployment, []).append(place)
    times = _cells(media, "timestamp")
    time_of = cache(lambda place: _time(media, times[place], place, "timestamp"))
    places, events, observed = [], 0, {*_cells(observations, "mediaID")}
    own = {place for medium, place in number.items() if medium in observed}
    columns = (_cells(observations, name) for name in ("mediaID", "deploymentID", "eventStart", "eventEnd"))
    for row, (medium, deployment, start, end) in enumerate(zip(*columns, strict=True)):
        if medium:
            if medium not in number:
                message = f"{_MEDIA} has no medium {medium!r}"
                raise observations.error(message, "export both tables again", row=row, column="mediaID")
            places.append([number[medium]])
            continue
        media.check_columns(("timestamp",))
        first, last = _time(observations, start, row, "eventStart"), _time(observations, end, row, "eventEnd")
        media_of_event = (place for place in of_deployment.get(deployment, ()) if place not in own)
        places.append([place for place in media_of_event if first <= time_of(place) <= last])
        events += 1
    return places, events


def _time(sheet: CsvTable, text: str, row: int, column: str) -> datetime:
    try:
        return utc_time(text)
    except (ValueError, OverflowError):
        fix = "write it like 2024-01-31T10:00:00Z"
        raise sheet.error(f"{text!r:.60} is not a time", fix, row=row, column=column) from None
