"""Camtrap DP: a folder with media.csv and observations.csv of camera traps (deployments.csv is not needed).

An observation says that a species was seen in a medium. A medium that people or models have classified lacks all other
species, and a blank one all of them, unless `unlisted` states otherwise; where an animal could not be identified, other
species are unknown. Observations of a whole event are those of all its media. Observations made by a machine are those
of a model. Images are named by filePath; where that is a URL, by fileName, or by mediaID if file names repeat.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import CsvTable, first_line, header_fields
from halflabel.labels.formats._row_collector import RowCollector
from halflabel.labels.formats._unlisted import apply_unlisted_policy
from halflabel.labels.labels import model_source
from halflabel.labels.names import first_duplicate
from halflabel.labels.policy import Policy

USES = ("unlisted",)
CANNOT_WRITE = ("the deployments and times of the images are not known", "write the long form (‹to=long›)")

_MEDIA, _OBSERVATIONS = "media.csv", "observations.csv"
_NAMELESS = ("human", "vehicle")  # types of observations that are classes where they name no species
_OPEN = ("animal", "unknown", "unclassified")  # without a species these say nothing of the classes


def sniff(path: Path) -> bool:
    """A folder with both tables, or one of its files."""
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name not in (_MEDIA, _OBSERVATIONS, "datapackage.json"):
        return False
    needed = ((_MEDIA, {"mediaID", "filePath"}), (_OBSERVATIONS, {"observationType", "mediaID"}))
    return all(columns <= set(header_fields(first_line(folder / name))) for name, columns in needed)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read what was seen in each medium."""
    folder = path if path.is_dir() else path.parent
    media, observations = CsvTable(folder / _MEDIA), CsvTable(folder / _OBSERVATIONS)
    images = _image_names(media)
    number = {name: row for row, name in enumerate(media.column("mediaID").to_pylist())}
    audit = Audit("camtrap-dp", [str(folder / _OBSERVATIONS), str(folder / _MEDIA)])
    kinds, species = (_cells(observations, name) for name in ("observationType", "scientificName"))
    places = _places(media, observations, number, audit)
    methods, people, scores = (
        _cells(observations, name) for name in ("classificationMethod", "classifiedBy", "classificationProbability")
    )
    collector = RowCollector()
    for name in images:
        collector.add_image(name)
    is_listed, is_open = np.zeros((2, len(images)), bool)
    for row, (kind, name) in enumerate(zip(kinds, species, strict=True)):
        name = name or (kind if kind in _NAMELESS else "")
        if not name and kind not in ("blank", *_OPEN):
            raise observations.error(
                f"observation type {kind!r} is not known", "use animal, human, vehicle, blank, unknown", row=row
            )
        (is_listed if name or kind == "blank" else is_open)[places[row]] = True
        if name:
            if (method := methods[row].strip().lower()) not in ("", "human", "machine"):
                message = f"classification method {methods[row]!r:.60} is not known"
                raise observations.error(message, "use human or machine", row=row)
            source = model_source(people[row]) if method == "machine" else people[row]
            probability = _score(observations, scores[row], row)
            for place in places[row]:
                collector.add(images[place], name, 1, source, probability)
    rows = collector.build()
    if not len(rows):
        raise LabelError(
            "no observation names a species in a medium", "export the observations again", folder / _OBSERVATIONS
        )
    audit.add("species", "present", len(rows))
    rows = apply_unlisted_policy(rows, policy, audit, images=is_listed & ~is_open, default="absent")
    audit.note("images of one camera look alike: train with ‹group=deploymentID›")
    return LabelImport(rows, audit)


def _cells(sheet: CsvTable, name: str) -> list[str]:
    if name not in sheet:
        return [""] * len(sheet)
    cells: list[str] = sheet.column(name).to_pylist()
    return cells


def _image_names(media: CsvTable) -> list[str]:
    media.check_columns(("filePath", "mediaID"))
    names, ids = _cells(media, "filePath"), _cells(media, "mediaID")
    if (duplicate := first_duplicate(ids)) is not None or "" in ids:
        row = ids.index(duplicate or "")
        raise media.error(f"medium {ids[row]!r:.60} is not unique", "export the media again", row=row, column="mediaID")
    if any("://" in name for name in names):
        names = _cells(media, "fileName")
    return names if all(names) and len(set(names)) == len(names) else ids


def _places(media: CsvTable, observations: CsvTable, number: dict[str, int], audit: Audit) -> list[list[int]]:
    """The media of each observation; those of an event are of the same deployment, between its start and its end."""
    deployments, times = _cells(media, "deploymentID"), _cells(media, "timestamp")
    of_deployment: dict[str, list[int]] = {}
    for place, deployment in enumerate(deployments):
        of_deployment.setdefault(deployment, []).append(place)
    time_of: dict[int, datetime] = {}
    places, events = [], 0
    columns = ("mediaID", "deploymentID", "eventStart", "eventEnd")
    for row, (medium, deployment, start, end) in enumerate(
        zip(*(_cells(observations, name) for name in columns), strict=True)
    ):
        if medium:
            if medium not in number:
                raise observations.error(
                    f"{_MEDIA} has no medium {medium!r}", "export both tables again", row=row, column="mediaID"
                )
            places.append([number[medium]])
        else:
            if not events:
                media.check_columns(("timestamp",))
            begin, finish = (
                _time(observations, text, row, name) for text, name in ((start, "eventStart"), (end, "eventEnd"))
            )
            candidates = of_deployment.get(deployment, ())
            for place in candidates:
                if place not in time_of:
                    time_of[place] = _time(media, times[place], place, "timestamp")
            places.append([place for place in candidates if begin <= time_of[place] <= finish])
            events += 1
    audit.note_count(events, "observations of whole events are taken for each of their images")
    return places


def _time(sheet: CsvTable, text: str, row: int, column: str) -> datetime:
    """A time; one without a zone is UTC."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        fix = "write it like 2024-01-31T10:00:00Z"
        raise sheet.error(f"{text!r:.60} is not a time", fix, row=row, column=column) from None


def _score(sheet: CsvTable, text: str, row: int) -> float:
    try:
        score = float(text or "nan")
    except ValueError:
        score = -1.0
    if score < 0 or score > 1:
        column = "classificationProbability"
        raise sheet.error(f"{text!r:.60} is not a probability", "use a number from 0 to 1", row=row, column=column)
    return score
