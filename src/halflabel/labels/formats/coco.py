"""COCO JSON: `images`, `annotations` and `categories`. An annotation means present; nothing means absent."""

from __future__ import annotations

from dataclasses import dataclass
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
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy

USES = ("unlisted",)

# Only detectors need these keys, and they make the files large.
# Keys of annotations in other people's files that deny them, with the values that do.
_DENIALS = {"value": (0, -1, "0", "-1", "absent"), "present": (0, "0", "no", "false"), "deleted": (1, "1", "true")}
_OWN_KEYS = {"score", "source", *_DENIALS}
_GEOMETRY_KEYS = ("segmentation", "bbox", "keypoints", "segments_info")


@dataclass(frozen=True)
class Parsed:
    """A COCO document with ids resolved: annotation k says that class `column[k]` is in image `image[k]`."""

    images: Names
    classes: Names
    class_by_id: dict[Id, int]
    image: NDArray[np.int64]
    column: NDArray[np.int64]
    image_records: list[Record]
    annotation_records: list[Record]

    def pairs_with_source(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], tuple[str, ...]]:
        """Each annotated (image, class) once, in order, with the source and score of its first annotation.

        COCO allows extra keys; `source` and `score` are ours.
        """
        key, first = np.unique(self.image * len(self.classes) + self.column, return_index=True)
        sources: dict[str, int] = {"": 0}
        source, score = np.zeros(len(key), np.int32), np.full(len(key), np.nan, np.float32)
        for number, annotation in enumerate(first.tolist()):
            record = self.annotation_records[annotation]
            record_source = record.get("source")
            if record_source is None and record.get("score") is not None:
                record_source = "model"  # people give no scores
            if isinstance(record_source, str):
                source[number] = sources.setdefault(record_source, len(sources))
            if isinstance(record_score := record.get("score"), (int, float)):
                score[number] = record_score
        return key // len(self.classes), key % len(self.classes), source, score, tuple(sources)


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
    parsed = parse(path)
    if any("neg_category_ids" in record for record in parsed.image_records):
        raise LabelError("images have neg_category_ids, so this is LVIS", "add --format lvis", path)
    if policy.unlisted is None:
        reason = "every annotation says present and none says absent"
        raise LabelError(*unlisted_not_stated(reason, "the annotations are complete"), path)
    image, column, source, score, sources = parsed.pairs_with_source()
    audit = Audit("coco", [str(path)])
    audit.add("annotation", "present", len(image))
    note_annotations(parsed, len(image), audit)
    present = np.ones(len(image), np.int8)
    rows = Labels.build(parsed.images, parsed.classes, image, column, present, source, score, sources)
    rows = apply_unlisted_policy(rows, policy, audit)
    empty = len(parsed.images) - len(np.unique(image))
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
            "write LVIS, which COCO tools read and which keeps both (--to lvis); or fill in the unknown entries first: "
            "halflabel fill RUN PHOTOS --out filled.csv",
        )
    meaning = "absent" if absent else "unknown"
    info = {"description": f"image-level labels; a class not listed for an image is {meaning}"}
    write_compact_json(path, {"info": info, **document(rows)})


def parse(path: str | Path) -> Parsed:
    """Read and check the three lists; ids need not be contiguous or ordered."""
    content = load_object(path, without=_GEOMETRY_KEYS)
    image_records, category_records, annotations = (
        record_list(content, key, path) for key in ("images", "categories", "annotations")
    )
    for key, items in (("images", image_records), ("categories", category_records)):
        if not items:
            raise LabelError(f"the list {key!r} is empty", "export the file again", path, column=key)
    image_by_id: dict[Id, int] = {}
    image_names: dict[str, int] = {}
    class_by_id: dict[Id, int] = {}
    class_names: dict[str, int] = {}
    for number, record in enumerate(image_records):
        place = f"images[{number}]"
        _register(image_by_id, record_id(record, "id", path, place), number, path, f"{place}.id")
        _register(image_names, _image_name(record, path, place), number, path, f"{place}.file_name")
    for number, record in enumerate(category_records):
        place = f"categories[{number}]"
        _register(class_by_id, record_id(record, "id", path, place), number, path, f"{place}.id")
        _register(class_names, check_name(record.get("name"), path, f"{place}.name"), number, path, f"{place}.name")
    for number, record in enumerate(annotations):
        if not _OWN_KEYS.isdisjoint(record):
            _check_annotation(record, path, f"annotations[{number}]")
    return Parsed(
        Names(image_names),
        Names(class_names),
        class_by_id,
        _resolve_references(annotations, "image_id", image_by_id, "images", path),
        _resolve_references(annotations, "category_id", class_by_id, "categories", path),
        image_records,
        annotations,
    )


def _check_annotation(record: Record, path: str | Path, place: str) -> None:
    """Raise LabelError for a score or a source of another kind, and for keys that say that the class is absent."""
    read_score(record.get("score"), path, f"{place}.score")
    if not isinstance(record.get("source", ""), str | None):
        raise LabelError("this is not a source", "write it as text", path, column=f"{place}.source")
    for key, denials in _DENIALS.items():
        if record.get(key) in denials:
            message = f"{key} = {record[key]!r} may say that the class is absent, but annotations count as present"
            raise LabelError(message, "remove the annotation, or write the absent classes as LVIS", path, column=place)


def document(rows: Labels) -> dict[str, list[Record]]:
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


def note_annotations(parsed: Parsed, pairs: int, audit: Audit) -> None:
    """Say how many annotations were counted once with others, and how many were crowds."""
    repeats = len(parsed.image) - pairs
    audit.note_count(repeats, "further annotations of a class already present in the image: counted once")
    for key, what in (("iscrowd", "crowds"), ("ignore", "to be ignored")):
        count = sum(record.get(key) == 1 for record in parsed.annotation_records)
        audit.note_count(count, f"annotations are {what} ({key}): counted as present")


def _image_name(record: Record, path: str | Path, place: str) -> str:
    """The file_name, else the last part of coco_url (LVIS v1 has no file_name), else the id."""
    if record.get("file_name") is not None:
        return check_name(record["file_name"], path, f"{place}.file_name")
    if record.get("coco_url") is not None:
        url = check_name(record["coco_url"], path, f"{place}.coco_url")
        return check_name(url.rsplit("/", 1)[-1], path, f"{place}.coco_url")
    return check_name(str(record["id"]), path, f"{place}.id")


def _register(known_keys: dict[Any, int], key: Id, number: int, path: str | Path, place: str) -> None:
    if key in known_keys:
        which = place.split("[")[0]
        message = f"{key!r} is already used in {which}[{known_keys[key]}]"
        raise LabelError(message, "make them different, or remove one of them", path, column=place)
    known_keys[key] = number


def _resolve_references(
    items: list[Record], key: str, known_ids: dict[Id, int], which: str, path: str | Path
) -> NDArray[np.int64]:
    """The index of the record that each annotation refers to; LabelError for a reference to nothing."""
    index = np.empty(len(items), np.int64)
    for number, item in enumerate(items):
        place = f"annotations[{number}]"
        reference = record_id(item, key, path, place)
        if reference not in known_ids:
            fix = f"add it to {which!r}, or remove the annotation"
            raise LabelError(f"no entry of {which!r} has the id {reference!r}", fix, path, column=f"{place}.{key}")
        index[number] = known_ids[reference]
    return index
