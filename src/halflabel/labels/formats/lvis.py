"""LVIS JSON: COCO plus, per image, the classes that were looked for and not found (`neg_category_ids`).

A box means present, the negative list absent, and every other class is unknown. `not_exhaustive_category_ids` means
that not every instance has a box; the class is present all the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats import coco
from halflabel.labels.formats._json import head_and_tail
from halflabel.labels.formats._write import write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

USES = ()
keeps_provenance = coco.keeps_provenance


def sniff(path: Path) -> bool:
    """A JSON file whose images have neg_category_ids."""
    return path.suffix.lower() == ".json" and '"neg_category_ids"' in head_and_tail(path)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the negative lists as absent, then the boxes as present; where they contradict, both rows are kept."""
    parsed = coco.parse(path)
    if not any("neg_category_ids" in record for record in parsed.image_records):
        raise LabelError("no image has neg_category_ids, so this is not LVIS", "add --format coco", path)
    absent_image, absent_column = _listed_pairs(parsed, "neg_category_ids", path)
    image, column, source, score, sources = parsed.pairs_with_source()
    no_source = np.zeros(len(absent_image), np.int16)
    rows = Labels.build(
        parsed.images,
        parsed.classes,
        np.concatenate([absent_image, image]),
        np.concatenate([absent_column, column]),
        np.repeat(np.array([-1, 1], np.int8), (len(absent_image), len(image))),
        np.concatenate([no_source, source]),
        np.concatenate([np.full(len(no_source), np.nan, np.float32), score]),
        sources,
    )
    audit = Audit("lvis", [str(path)])
    audit.add("annotation", "present", len(image))
    audit.add("neg_category_ids", "absent", len(absent_image))
    conflicts = rows.count_conflicts()
    listed = len(image) + len(absent_image) - conflicts
    audit.add("neither", "unknown", len(parsed.images) * len(parsed.classes) - listed)
    audit.note_count(conflicts, "entries have a box and are in neg_category_ids: present wins, both rows are kept")
    coco.note_annotations(parsed, len(image), audit)

    partial_image, partial_column = _listed_pairs(parsed, "not_exhaustive_category_ids", path)
    has_box = np.isin(
        partial_image * len(parsed.classes) + partial_column, image * len(parsed.classes) + column, assume_unique=True
    )
    with_box = int(has_box.sum())
    note = "entries are not exhaustive: not every instance has a box, they are present all the same"
    audit.note_count(with_box, note)
    audit.note_count(len(has_box) - with_box, "entries are marked not exhaustive but have no box: ignored")
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write any table: present as image-level annotations without boxes, absent as neg_category_ids.

    Annotations have source and score; neg_category_ids cannot hold them.
    """
    table = rows.training
    content = coco.document(rows)
    image, column, value = table.entries()
    absent = value < 0
    lists = np.split(column[absent].astype(np.int64) + 1, np.searchsorted(image[absent], np.arange(1, len(table))))
    for record, numbers in zip(content["images"], lists, strict=False):  # without images there is one empty part
        record["neg_category_ids"] = numbers.tolist()
        record["not_exhaustive_category_ids"] = []
    write_compact_json(path, content)


def _listed_pairs(parsed: coco.Parsed, key: str, path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The (image, class) pairs in the images' lists under a key, each once."""
    image: list[int] = []
    column: list[int] = []
    for number, record in enumerate(parsed.image_records):
        ids = record.get(key, [])
        place = f"images[{number}].{key}"
        if not isinstance(ids, list):
            raise LabelError("this is not a list", "make it a list of category ids", path, column=place)
        for position, category_id in enumerate(ids):
            is_id = isinstance(category_id, (int, str)) and not isinstance(category_id, bool)
            class_index = parsed.class_by_id.get(category_id) if is_id else None
            if class_index is None:
                raise LabelError(
                    f"no entry of 'categories' has the id {category_id!r}",
                    "add it to 'categories', or remove it here",
                    path,
                    column=f"{place}[{position}]",
                )
            image.append(number)
            column.append(class_index)
    pairs = np.unique(np.array(image, np.int64) * len(parsed.classes) + np.array(column, np.int64))
    return pairs // len(parsed.classes), pairs % len(parsed.classes)
