"""LVIS JSON: COCO plus, per image, the classes that were looked for and not found; every other class is unknown."""

from __future__ import annotations

from pathlib import Path

from halflabel.labels.formats import coco
from halflabel.labels.formats._json import head_and_tail
from halflabel.labels.formats._records import RecordFormat
from halflabel.labels.formats._write import split_by_image, write_compact_json
from halflabel.labels.labels import Labels

USES = ()
keeps_provenance = coco.keeps_provenance


def sniff(path: Path) -> bool:
    return path.suffix.lower() == ".json" and f'"{coco.NEGATIVE}"' in head_and_tail(path)


read = RecordFormat(
    "lvis",
    lambda path, policy: coco.records(path, is_lvis=True),
    USES,
    sniff,
    default="unknown",
    has_paths=False,
).read


def write(rows: Labels, path: Path) -> None:
    """Write any table: present as image-level annotations without boxes, absent as neg_category_ids."""
    content = coco.write_lists(rows)
    holding = rows.holding()
    of_images = split_by_image(rows, holding[rows.value[holding] < 0])
    for record, absent in zip(content["images"], of_images, strict=False):  # without images there is one empty part
        record[coco.NEGATIVE] = (rows.column[absent] + 1).tolist()
        record["not_exhaustive_category_ids"] = []
    write_compact_json(path, content)
