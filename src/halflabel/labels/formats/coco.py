"""COCO JSON: `images`, `annotations` and `categories`. An annotation means present; nothing means absent.

LVIS is the same with lists of absent classes: `lvis` uses what is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._json import (
    Id,
    Record,
    check_name,
    head_and_tail,
    load_object,
    read_score,
    record_id,
    record_list,
    starts_with,
)
from halflabel.labels.formats._row_collector import RowCollector
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

USES = ("unlisted",)

# Keys of annotations in other people's files that deny them, with the values that do.
_DENIALS = {"value": (0, -1, "0", "-1", "absent"), "present": (0, "0", "no", "false"), "deleted": (1, "1", "true")}
_OWN_KEYS = {"score", "source", *_DENIALS}
_GEOMETRY_KEYS = ("segmentation", "bbox", "keypoints", "segments_info")  # only detectors need them, and they are large

Pair = tuple[int, int]  # numbers of an image and a class


@dataclass(frozen=True)
class Document:
    """A document with ids resolved: names of images and classes, and the first annotation of each (image, class)."""

    images: list[str]
    classes: list[str]
    class_numbers: dict[Id, int]
    image_records: list[Record]
    annotations: list[Record]
    present: dict[Pair, Record]

    def rows(self, absent: list[Pair]) -> Labels:
        """A row for each absent and then for each present pair, in order; annotations may have a source and a score."""
        collector = RowCollector(self.images, self.classes)
        for image, column in absent:
            collector.add(self.images[image], self.classes[column], -1)
        for (image, column), record in sorted(self.present.items(), key=itemgetter(0)):
            source, score = record.get("source"), record.get("score")
            if source is None:
                source = "" if score is None else "model"  # people give no scores
            score = math.nan if score is None else float(score)
            collector.add(self.images[image], self.classes[column], 1, source, score)
        return collector.build()

    def audit(self, form: str, path: Path) -> Audit:
        """The audit of the annotations."""
        audit = Audit(form, [str(path)])
        audit.add("annotation", "present", len(self.present))
        repeats = len(self.annotations) - len(self.present)
        audit.note_count(repeats, "further annotations of a class already present in the image: counted once")
        for key, what in (("iscrowd", "crowds"), ("ignore", "to be ignored")):
            count = sum(record.get(key) == 1 for record in self.annotations)
            audit.note_count(count, f"annotations are {what} ({key}): counted as present")
        return audit


def sniff(path: Path) -> bool:
    """A JSON file; COCO is the last JSON format to be tried."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".json":
        return True
    text = head_and_tail(path) if path.suffix.lower() not in (".jsonl", ".csv", ".parquet") else ""
    return starts_with(text, "{") and '"annotations"' in text and '"categories"' in text


def read(path: Path, policy: Policy) -> LabelImport:
    """Read annotations as present, several of a class in one image as one; `unlisted` must be stated."""
    document = parse(path)
    if any("neg_category_ids" in record for record in document.image_records):
        raise LabelError("images have neg_category_ids, so this is LVIS", "add ‹format=lvis›", path)
    if policy.unlisted is None:
        reason = "every annotation says present and none says absent"
        raise LabelError(*unlisted_not_stated(reason, "the annotations are complete"), path)
    audit = document.audit("coco", path)
    rows = apply_unlisted_policy(document.rows([]), policy, audit)
    empty = len(document.images) - len({image for image, _ in document.present})
    audit.note_count(empty, "images have no annotation: nothing in them, or not finished?")
    return LabelImport(rows, audit)


def keeps_provenance(rows: Labels) -> NDArray[np.bool_]:
    """Only present labels are annotations, which have a source and a score."""
    return rows.value > 0


def write(rows: Labels, path: Path) -> None:
    """Write image-level annotations without boxes. Unlisted entries must be all absent or all unknown, not both."""
    table = rows.training
    absent = int((table.value < 0).sum())
    unknown = len(table.images) * len(table.classes) - table.known
    if absent and unknown:
        raise UserError(
            f"{absent:,} entries are absent and {unknown:,} unknown, which COCO cannot distinguish",
            "write LVIS, which COCO tools read and which keeps both (‹to=lvis›); or fill in the unknown entries first: "
            "halflabel fill RUN PHOTOS --out filled.csv",
        )
    meaning = "absent" if absent else "unknown"
    info = {"description": f"image-level labels; a class not listed for an image is {meaning}"}
    write_compact_json(path, {"info": info, **write_lists(rows)})


def parse(path: Path) -> Document:
    """Read and check the three lists; ids need not be contiguous or ordered."""
    content = load_object(path, without=_GEOMETRY_KEYS)
    image_records, categories, annotations = (
        record_list(content, key, path) for key in ("images", "categories", "annotations")
    )
    image_numbers, images = _numbered(image_records, "images", "file_name", path)
    class_numbers, classes = _numbered(categories, "categories", "name", path)
    present: dict[Pair, Record] = {}
    for number, record in enumerate(annotations):
        place = f"annotations[{number}]"
        if not _OWN_KEYS.isdisjoint(record):
            _check_annotation(record, path, place)
        image = find(record_id(record, "image_id", path, place), image_numbers, "images", path, f"{place}.image_id")
        category = record_id(record, "category_id", path, place)
        column = find(category, class_numbers, "categories", path, f"{place}.category_id")
        present.setdefault((image, column), record)
    return Document(images, classes, class_numbers, image_records, annotations, present)


def write_lists(rows: Labels) -> dict[str, list[Record]]:
    """The three lists for rows, ids from 1; only present entries become annotations, with source and score."""
    holding = rows.holding()
    annotations: list[Record] = []
    for number, k in enumerate(holding[rows.value[holding] > 0].tolist(), 1):
        record: Record = {"id": number, "image_id": int(rows.image[k]) + 1, "category_id": int(rows.column[k]) + 1}
        if not np.isnan(rows.score[k]):
            record["score"] = shortest_float(rows.score[k])
        if source := rows.sources[rows.source[k]]:
            record["source"] = source
        annotations.append(record)
    return {
        "images": [{"id": number, "file_name": title} for number, title in enumerate(rows.images, 1)],
        "annotations": annotations,
        "categories": [{"id": number, "name": title} for number, title in enumerate(rows.classes, 1)],
    }


def find(key: Any, numbers: dict[Id, int], which: str, path: Path, place: str) -> int:
    """The number of the record that an id names; LabelError for a reference to nothing."""
    is_id = isinstance(key, (int, str)) and not isinstance(key, bool)
    if not is_id or key not in numbers:
        fix = f"add it to {which!r}, or remove it here"
        raise LabelError(f"no entry of {which!r} has the id {key!r}", fix, path, column=place)
    return numbers[key]


def _numbered(records: list[Record], which: str, name_key: str, path: Path) -> tuple[dict[Id, int], list[str]]:
    """The number of each id, and the names; LabelError for an id or a name that is used twice."""
    if not records:
        raise LabelError(f"the list {which!r} is empty", "export the file again", path, column=which)
    ids: dict[Any, int] = {}
    names: dict[Any, int] = {}
    for number, record in enumerate(records):
        place = f"{which}[{number}]"
        id_and_name = record_id(record, "id", path, place), _name(record, name_key, path, place)
        for known, value, key in zip((ids, names), id_and_name, ("id", name_key), strict=True):
            if known.setdefault(value, number) != number:
                message = f"{value!r} is already used in {which}[{known[value]}]"
                raise LabelError(message, "make them different, or remove one of them", path, column=f"{place}.{key}")
    return ids, list(names)


def _name(record: Record, key: str, path: Path, place: str) -> str:
    """The name of a category, or the file_name of an image, else the last part of its coco_url, else its id."""
    if key == "name" or record.get(key) is not None:
        return check_name(record.get(key), path, f"{place}.{key}")
    if record.get("coco_url") is not None:  # LVIS v1 has no file_name
        url = check_name(record["coco_url"], path, f"{place}.coco_url")
        return check_name(url.rsplit("/", 1)[-1], path, f"{place}.coco_url")
    return check_name(str(record["id"]), path, f"{place}.id")


def _check_annotation(record: Record, path: Path, place: str) -> None:
    """Raise LabelError for a score or a source of another kind, and for keys that say that the class is absent."""
    read_score(record.get("score"), path, f"{place}.score")
    if not isinstance(record.get("source", ""), str | None):
        raise LabelError("this is not a source", "write it as text", path, column=f"{place}.source")
    for key, denials in _DENIALS.items():
        if record.get(key) in denials:
            message = f"{key} = {record[key]!r} may say that the class is absent, but annotations count as present"
            raise LabelError(message, "remove the annotation, or write the absent classes as LVIS", path, column=place)
