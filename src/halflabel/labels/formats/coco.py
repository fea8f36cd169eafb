"""COCO JSON, also panoptic: an annotation means present; nothing means absent. LVIS adds lists of absent classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._json import Id, Node, Record, head_and_tail, load_json, starts_with
from halflabel.labels.formats._records import ImageRecord, Label, Note, RecordFormat
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels

USES = ("unlisted",)
NEGATIVE = "neg_category_ids"

# Keys of annotations in other people's files that deny them, with the values that do.
_DENIALS = {"value": (0, -1, "0", "-1", "absent"), "present": (0, "0", "no", "false"), "deleted": (1, "1", "true")}
_OWN_KEYS = {"score", "source", *_DENIALS}
_GEOMETRY_KEYS = ("segmentation", "bbox", "keypoints")  # only detectors need them, and they are large
_LISTS = "name an annotation file with images, annotations and categories; a file of results has no list of images"


def sniff(path: Path) -> bool:
    """A JSON file; COCO is the last JSON format to be tried."""
    if path.is_file() and path.suffix.lower() == ".json":
        return True
    text = head_and_tail(path) if path.suffix.lower() not in (".jsonl", ".csv", ".parquet") else ""
    return starts_with(text, "{") and '"annotations"' in text and '"categories"' in text


def records(path: Path, is_lvis: bool) -> Iterator[ImageRecord | Note | str]:
    """The classes that are annotated in each image, and those in its `neg_category_ids`."""
    content = load_json(path, without=_GEOMETRY_KEYS)
    content.object(_LISTS)
    images, categories, annotations = (content[key].list(_LISTS) for key in ("images", "categories", "annotations"))
    image_names = _names_by_id(images, content["images"], "file_name")
    classes = _names_by_id(categories, content["categories"], "name")
    if any(NEGATIVE in node.value for node in images) != is_lvis:
        what = f"no image has {NEGATIVE}, so this is not LVIS" if is_lvis else f"images have {NEGATIVE}: this is LVIS"
        raise LabelError(what, f"add ‹format={'coco' if is_lvis else 'lvis'}›", path)

    def class_of(node: Node) -> str:
        return classes[find(node, classes, "categories")]

    present: dict[Id, list[Label]] = {number: [] for number in image_names}
    counts: Counter[str] = Counter()
    for node in annotations:
        record = node.object()
        labels = present[find(node["image_id"], image_names, "images")]
        source, score = ("", math.nan) if _OWN_KEYS.isdisjoint(record) else _source_and_score(node)
        for part in node["segments_info"].list() if "segments_info" in record else (node,):
            labels.append(Label(class_of(part["category_id"]), "annotation", 1, source, score))
            for key in ("iscrowd", "ignore"):
                counts[key] += part.value.get(key) == 1
    yield from classes.values()
    for (number, labels), node in zip(present.items(), images, strict=True):
        listed = node[NEGATIVE].list() if NEGATIVE in node.value else []
        absent = [Label(name, NEGATIVE, -1) for name in dict.fromkeys(map(class_of, listed))]
        counts["empty"] += not labels
        yield ImageRecord(Node(image_names[number], path), [*absent, *labels])
    if not is_lvis:
        yield Note(counts["empty"], "images have no annotation: nothing in them, or not finished?")
    yield Note(counts["iscrowd"], "annotations are crowds (iscrowd): counted as present")
    yield Note(counts["ignore"], "annotations are to be ignored (ignore): counted as present")


read = RecordFormat(
    "coco",
    lambda path, policy: records(path, is_lvis=False),
    USES,
    sniff,
    complete="the annotations are complete",
    has_paths=False,
).read


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
    if (key := node.id()) not in ids:
        raise node.error(f"no entry of {which!r} has the id {key!r}", f"add it to {which!r}, or remove it here")
    return key


def _names_by_id(nodes: list[Node], whole: Node, name_key: str) -> dict[Id, str]:
    """The name of each id; LabelError for an id or a name that is used twice."""
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
    return dict(zip(ids, names, strict=True))


def _name_node(node: Node, key: str) -> Node:
    """The name of a category, or the file_name of an image, else the last part of its coco_url, else its id."""
    if key == "name" or node[key].value is not None:
        return node[key]
    if node["coco_url"].value is not None:  # LVIS v1 has no file_name
        return node.child("coco_url", node["coco_url"].name().rsplit("/", 1)[-1])
    return node.child("id", str(node["id"].id()))


def _source_and_score(node: Node) -> tuple[str, float]:
    """Those of an annotation; LabelError for another kind, and for keys that say that the class is absent."""
    source, score = node["source"], node["score"].score()
    if not isinstance(source.value, str | None):
        raise source.error("this is not a source", "write it as text")
    for key, denials in _DENIALS.items():
        if (value := node[key].value) in denials:
            message = f"{key} = {value!r} may say that the class is absent, but annotations count as present"
            raise node.error(message, "remove the annotation, or write the absent classes as LVIS")
    by_default = "" if math.isnan(score) else "model"  # people give no scores
    return by_default if source.value is None else source.value, score
