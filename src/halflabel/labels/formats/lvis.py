"""LVIS JSON: COCO plus, per image, the classes that were looked for and not found (`neg_category_ids`).

A box means present, the negative list absent, and every other class is unknown. `not_exhaustive_category_ids` means
that not every instance has a box; the class is present all the same.
"""

from __future__ import annotations

from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats import coco
from halflabel.labels.formats._json import head_and_tail
from halflabel.labels.formats._write import split_by_image, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

USES = ()
keeps_provenance = coco.keeps_provenance

_NEGATIVE = "neg_category_ids"


def sniff(path: Path) -> bool:
    """A JSON file whose images have neg_category_ids."""
    return path.suffix.lower() == ".json" and f'"{_NEGATIVE}"' in head_and_tail(path)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the negative lists as absent, then the boxes as present; where they contradict, both rows are kept."""
    document = coco.Document(path)
    if not any(_NEGATIVE in node.value for node in document.image_nodes):
        raise LabelError("no image has neg_category_ids, so this is not LVIS", "add ‹format=coco›", path)
    entries = document.entries("lvis", path, dict.fromkeys(_listed_pairs(document, _NEGATIVE), _NEGATIVE))
    partial = _listed_pairs(document, "not_exhaustive_category_ids")
    with_box = len(partial & document.present.keys())
    note = "entries are not exhaustive: not every instance has a box, they are present all the same"
    entries.audit.note_count(with_box, note)
    entries.audit.note_count(len(partial) - with_box, "entries are marked not exhaustive but have no box: ignored")
    conflicts = "entries have a box and are in neg_category_ids: present wins, both rows are kept"
    return entries.read(policy, conflicts=conflicts)


def write(rows: Labels, path: Path) -> None:
    """Write any table: present as image-level annotations without boxes, absent as neg_category_ids.

    Annotations have source and score; neg_category_ids cannot hold them.
    """
    content = coco.write_lists(rows)
    holding = rows.holding()
    of_images = split_by_image(rows, holding[rows.value[holding] < 0])
    for record, absent in zip(content["images"], of_images, strict=False):  # without images there is one empty part
        record[_NEGATIVE] = (rows.column[absent] + 1).tolist()
        record["not_exhaustive_category_ids"] = []
    write_compact_json(path, content)


def _listed_pairs(document: coco.Document, key: str) -> set[coco.Pair]:
    """The (image, class) pairs in the images' lists under a key."""
    return {
        (number, document.find_class(each))
        for number, node in enumerate(document.image_nodes)
        for each in (node[key].list() if key in node.value else ())
    }
