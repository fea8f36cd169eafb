"""COCO JSON: `images`, `annotations` and `categories`. An annotation means present; nothing means absent.

Panoptic annotations list the segments of an image. LVIS is the same with lists of absent classes: `lvis` uses what is
here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._entries import Entries, require_unlisted
from halflabel.labels.formats._json import Id, Node, Record, head_and_tail, load_json, starts_with
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

USES = ("unlisted",)

# Keys of annotations in other people's files that deny them, with the values that do.
_DENIALS = {"value": (0, -1, "0", "-1", "absent"), "present": (0, "0", "no", "false"), "deleted": (1, "1", "true")}
_OWN_KEYS = {"score", "source", *_DENIALS}
_GEOMETRY_KEYS = ("segmentation", "bbox", "keypoints")  # only detectors need them, and they are large
_LISTS = "name an annotation file with images, annotations and categories; a file of results has no list of images"

Pair = tuple[int, int]  # numbers of an image and a class


class Document:
    """A document with ids resolved: names of images and classes, and the first annotation of each (image, class)."""

    def __init__(self, path: Path) -> None:
        content = load_json(path, without=_GEOMETRY_KEYS)
        content.object(_LISTS)
        lists = {key: content[key].list(_LISTS) for key in ("images", "categories", "annotations")}
        image_numbers, images = _numbered(lists["images"], content["images"], "file_name")
        self.class_numbers, classes = _numbered(lists["categories"], content["categories"], "name")
        self.image_nodes = lists["images"]
        self.present: dict[Pair, Record] = {}
        self.counts: Counter[str] = Counter()
        for node in lists["annotations"]:
            record = node.object()
            if not _OWN_KEYS.isdisjoint(record):
                _check_annotation(node)
            image = image_numbers[find(node["image_id"], image_numbers, "images")]
            for part in node["segments_info"].list() if "segments_info" in record else (node,):
                self.present.setdefault((image, self.find_class(part["category_id"])), record)
                self.counts.update(key for key in ("iscrowd", "ignore") if part[key].value == 1)
                self.counts["all"] += 1
        self.repeats = self.counts["all"] - len(self.present)
        self.images, self.classes = list(images), list(classes)

    def find_class(self, node: Node) -> int:
        """The number of the class that a node names by its id."""
        return self.class_numbers[find(node, self.class_numbers, "categories")]

    def entries(self, form: str, path: Path, absent: dict[Pair, str]) -> Entries:
        """Each absent and then each present pair, in order; annotations may have a source and a score."""
        entries = Entries(form, path, images=self.images, classes=self.classes)
        for (image, column), raw in sorted(absent.items()):
            entries.add(self.images[image], self.classes[column], -1, raw)
        for (image, column), record in sorted(self.present.items(), key=itemgetter(0)):
            source, score = record.get("source"), record.get("score")
            if source is None:
                source = "" if score is None else "model"  # people give no scores
            score = math.nan if score is None else float(score)
            entries.add(self.images[image], self.classes[column], 1, "annotation", source, score)
        repeats = "further annotations of a class already present in the image: counted once"
        entries.audit.note_count(self.repeats, repeats)
        for key, what in (("iscrowd", "crowds"), ("ignore", "to be ignored")):
            entries.audit.note_count(self.counts[key], f"annotations are {what} ({key}): counted as present")
        return entries


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
    document = Document(path)
    if any("neg_category_ids" in node.value for node in document.image_nodes):
        raise LabelError("images have neg_category_ids, so this is LVIS", "add ‹format=lvis›", path)
    require_unlisted(policy, "every annotation says present and none says absent", path, "the annotations are complete")
    rows, audit = document.entries("coco", path, {}).read(policy)
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


def find(node: Node, ids: Container[Id], which: str) -> Id:
    """The id that names a record; LabelError for a reference to nothing."""
    if (key := node.id()) not in ids:
        raise node.error(f"no entry of {which!r} has the id {key!r}", f"add it to {which!r}, or remove it here")
    return key


def _numbered(nodes: list[Node], whole: Node, name_key: str) -> tuple[dict[Id, int], dict[str, int]]:
    """The number of each id and of each name; LabelError for an id or a name that is used twice."""
    if not nodes:
        raise whole.error(f"the list {whole.key!r} is empty", "export the file again")
    ids: dict[Any, int] = {}
    names: dict[Any, int] = {}
    for number, node in enumerate(nodes):
        node.object()
        for known, key, value in ((ids, "id", node["id"].id()), (names, name_key, _name_node(node, name_key).name())):
            if known.setdefault(value, number) != number:
                message = f"{value!r} is already used in {whole.key}[{known[value]}]"
                raise node[key].error(message, "make them different, or remove one of them")
    return ids, names


def _name_node(node: Node, key: str) -> Node:
    """The name of a category, or the file_name of an image, else the last part of its coco_url, else its id."""
    if key == "name" or node[key].value is not None:
        return node[key]
    if node["coco_url"].value is not None:  # LVIS v1 has no file_name
        return node.child("coco_url", node["coco_url"].name().rsplit("/", 1)[-1])
    return node.child("id", str(node["id"].id()))


def _check_annotation(node: Node) -> None:
    """Raise LabelError for a score or a source of another kind, and for keys that say that the class is absent."""
    node["score"].score()
    if not isinstance(node["source"].value, str | None):
        raise node["source"].error("this is not a source", "write it as text")
    for key, denials in _DENIALS.items():
        if (value := node[key].value) in denials:
            message = f"{key} = {value!r} may say that the class is absent, but annotations count as present"
            raise node.error(message, "remove the annotation, or write the absent classes as LVIS")
