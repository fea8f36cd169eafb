"""FiftyOne: a folder with labels.json, `{"classes": […], "labels": {image: [targets]}}`, for multilabel classification.

A target is the index or name of a class, or an object with `label`, `confidence` and `attributes`. The format has no
absent labels: negatives.json, of the same layout, lists them, for `merge_dir`. FiftyOne names an image by its path
without the file ending; the full names are under "file_names", which it ignores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from halflabel.errors import UserError
from halflabel.labels.formats._json import Node, Record, head_and_tail, load_json, starts_with
from halflabel.labels.formats._records import ImageRecord, Label, RecordFormat
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.names import first_duplicate
from halflabel.labels.policy import Policy

USES = ("unlisted",)

LABELS, NEGATIVES = "labels.json", "negatives.json"

_LABELS_OBJECT = re.compile(r'"labels"\s*:\s*\{')
_COCO_LISTS = re.compile(r'"(images|annotations|categories)"\s*:\s*\[\s*\{')


def sniff(path: Path) -> bool:
    """A folder with labels.json, or a JSON file, whose "labels" is an object and which is not COCO."""
    file = path / LABELS if path.is_dir() else path
    text = head_and_tail(file) if file.suffix.lower() == ".json" else ""
    return starts_with(text, "{") and bool(_LABELS_OBJECT.search(text)) and not _COCO_LISTS.search(text)


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The targets of labels.json as present, of negatives.json as absent; a target of null means no labels."""
    negatives = _negatives(path)
    signs = {**({negatives: -1} if negatives else {}), _labels_file(path): 1}
    labels: dict[str, list[Label]] = {}
    null = set[str]()
    for file, sign in signs.items():
        content = load_json(file)
        content.object("name labels.json, or the folder that it is in")
        classes = [node.name() for node in content["classes"].list(optional=True)]
        if (duplicate := first_duplicate(classes)) is not None:
            message = f"the class {duplicate!r} is listed twice, so its number is not clear"
            raise content["classes"].error(message, "list every class once")
        yield from classes
        for image, target in _targets(content):
            null = null | {image} if target.value is None else null - {image}
            items = target.list() if isinstance(target.value, list) else [target] * (target.value is not None)
            raw = "target" if sign > 0 else f"target in {NEGATIVES}"
            labels.setdefault(image, []).extend(_label(item, classes, sign, raw) for item in items)
    for image, of_image in labels.items():
        yield ImageRecord(Node(image, path), of_image, image not in null, negatives is not None)


read = RecordFormat("fiftyone", entries, USES, sniff, has_paths=False).read


def write(rows: Labels, path: Path) -> None:
    if path.suffix:
        raise UserError(f"FiftyOne reads a folder, not {path.name}", "name a folder to write")
    names = list(rows.images)
    keys = [_key(name) for name in names]
    if (duplicate := first_duplicate(keys)) is not None:
        both = [name for name, key in zip(names, keys, strict=True) if key == duplicate][:2]
        raise UserError(
            f"FiftyOne names images without their file ending, and only that differs in {both[0]!r} and {both[1]!r}",
            "rename one of the images",
        )
    holding = rows.holding()
    known = np.zeros(len(names), bool)
    known[rows.image[holding]] = True
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file", "name a folder to write")
    (path / LABELS).unlink(missing_ok=True)  # written last: without it, nothing is read if writing is interrupted
    for file, sign in ((NEGATIVES, -1), (LABELS, 1)):
        # null: nobody has labelled the image; an empty list: nothing was found in it.
        labels: dict[str, list[Record] | None] = {
            key: [] if is_known else None for key, is_known in zip(keys, known.tolist(), strict=True)
        }
        for k in holding[rows.value[holding] == sign].tolist():
            listed = labels[keys[rows.image[k]]]
            assert listed is not None
            target: Record = {"label": int(rows.column[k])}
            if not math.isnan(rows.score[k]):
                target["confidence"] = shortest_float(rows.score[k])
            if source := rows.sources[rows.source[k]]:
                target["attributes"] = {"source": source}
            listed.append(target)
        content = {"classes": list(rows.classes), "labels": labels}
        if keys != names:
            content["file_names"] = dict(zip(keys, names, strict=True))
        write_compact_json(path / file, content)


def _key(image: str) -> str:
    """FiftyOne's name of an image: its path without the file ending.

    >>> _key("a.b/cat.v2.jpg"), _key("a.b/cat"), _key(".jpg")
    ('a.b/cat.v2', 'a.b/cat', '.jpg')
    """
    stem, dot, suffix = image.rpartition(".")
    return stem if dot and stem and not stem.endswith("/") and "/" not in suffix else image


def _labels_file(path: Path) -> Path:
    return path / LABELS if path.is_dir() else path


def _negatives(path: Path) -> Path | None:
    file = _labels_file(path).with_name(NEGATIVES)
    return file if file.is_file() and file != path else None


def _targets(content: Node) -> Iterator[tuple[str, Node]]:
    """Each image of a file with its targets; an error names both by the key."""
    labels, files = content["labels"], content["file_names"]
    if not labels.object("map each image to its targets"):
        raise labels.error("there are no labels", "map each image to its targets")
    name_of = files.value if isinstance(files.value, dict) else {}
    if (duplicate := first_duplicate(str(name_of.get(key, key)) for key in labels.value)) is not None:
        raise files.error(f"the image {duplicate!r} has labels twice", "leave one of them")
    for key, target in labels.value.items():
        yield labels.child(f"[{key!r}]", name_of.get(key, key)).name(), labels.child(f"[{key!r}]", target)


def _label(node: Node, classes: list[str], sign: int, raw: str) -> Label:
    """The class, source and score of a target: the number or name of a class, or an object."""
    target = node["label"] if isinstance(node.value, dict) else node
    if isinstance(target.value, int) and not isinstance(target.value, bool):
        if not 0 <= target.value < len(classes):
            message = f"class number {target.value}, but only {len(classes)} classes are listed"
            raise target.error(message, "complete the list 'classes'")
        target = node.child("label", classes[target.value])
    if classes and target.name() not in classes:
        raise node.error(f"{target.value!r} is not in the list 'classes'", "add it to the list")
    confidence, source = node["confidence"].score(), node["attributes"]["source"].value
    if source is None and not math.isnan(confidence):
        source = "model"  # people give no confidences
    return Label(target.name(), raw, sign, source if isinstance(source, str) else "", confidence)
