"""FiftyOne: a folder with labels.json, `{"classes": […], "labels": {image: [targets]}}`, for multilabel classification.

The layout of fiftyone.types.FiftyOneImageClassificationDataset. A target is the index or name of a class, or an object
with `label`, `confidence` and `attributes`. The format has no absent labels, so a second file of the same layout,
negatives.json, lists the absent classes: FiftyOne reads it into a separate field, as it does for Open Images.

    dataset = fo.Dataset.from_dir(dataset_type=kind, data_path="photos", labels_path="out/labels.json",
                                  label_field="positive_labels")
    dataset.merge_dir(dataset_type=kind, data_path="photos", labels_path="out/negatives.json",
                      label_field="negative_labels")

FiftyOne names an image by its path without the file ending; the full names are under "file_names", which it ignores.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from halflabel.errors import UserError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._entries import Entries, require_unlisted
from halflabel.labels.formats._json import Node, Record, head_and_tail, load_json, starts_with
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.labels import Labels
from halflabel.labels.names import first_duplicate
from halflabel.labels.policy import Policy
from halflabel.system.files import atomic_folder

USES = ("unlisted",)

LABELS, NEGATIVES = "labels.json", "negatives.json"

_LABELS_OBJECT = re.compile(r'"labels"\s*:\s*\{')
_COCO_LISTS = re.compile(r'"(images|annotations|categories)"\s*:\s*\[\s*\{')


def sniff(path: Path) -> bool:
    """A folder with labels.json, or a JSON file, whose "labels" is an object and which is not COCO."""
    file = path / LABELS if path.is_dir() else path
    if file.suffix.lower() != ".json":
        return False
    text = head_and_tail(file)
    starts = starts_with(text, "{")
    return starts and _LABELS_OBJECT.search(text) is not None and _COCO_LISTS.search(text) is None


def read(path: Path, policy: Policy) -> LabelImport:
    """Read labels.json as present and negatives.json next to it as absent; without it `unlisted` must be stated.

    An image whose target is null has no labels, even if unlisted classes are absent.
    """
    file = path / LABELS if path.is_dir() else path
    negatives = file.parent / NEGATIVES
    has_negatives = negatives.is_file() and file.name != NEGATIVES
    if not has_negatives:
        require_unlisted(policy, "every target says present and none says absent", file)
    entries = Entries("fiftyone", file, *([negatives] if has_negatives else []))
    if has_negatives:  # first, so that present wins if an entry is in both files
        _read_file(entries, negatives, -1)
    unlabelled = _read_file(entries, file, 1)
    conflicts = "entries are in both files: present wins, both rows are kept"
    rows, audit = entries.read(policy, complete=entries.images.keys() - unlabelled, conflicts=conflicts)
    audit.note_count(len(unlabelled), "images have null instead of labels: nothing is known of them")
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write labels.json and negatives.json into a folder: the last row of each pair, with source and score."""
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
    with atomic_folder(path) as folder:
        for file, sign in ((LABELS, 1), (NEGATIVES, -1)):
            # null: nobody has labelled the image; an empty list: nothing was found in it.
            labels: dict[str, list[Record] | None] = {
                key: [] if is_known else None for key, is_known in zip(keys, known.tolist(), strict=True)
            }
            for k in holding[rows.value[holding] == sign].tolist():
                listed = labels[keys[rows.image[k]]]
                assert listed is not None
                listed.append(_target(rows, k))
            content = {"classes": list(rows.classes), "labels": labels}
            if keys != names:
                content["file_names"] = dict(zip(keys, names, strict=True))
            write_compact_json(folder / file, content)


def _target(rows: Labels, k: int) -> Record:
    target: Record = {"label": int(rows.column[k])}
    if not math.isnan(rows.score[k]):
        target["confidence"] = shortest_float(rows.score[k])
    if source := rows.sources[rows.source[k]]:
        target["attributes"] = {"source": source}
    return target


def _key(image: str) -> str:
    """FiftyOne's name of an image: its path without the file ending.

    >>> _key("a.b/cat.v2.jpg"), _key("a.b/cat"), _key(".jpg")
    ('a.b/cat.v2', 'a.b/cat', '.jpg')
    """
    stem, dot, suffix = image.rpartition(".")
    return stem if dot and stem and not stem.endswith("/") and "/" not in suffix else image


def _read_file(entries: Entries, path: Path, sign: int) -> set[str]:
    """Read one file; returns the images without labels in it (null)."""
    content = load_json(path)
    content.object("name labels.json, or the folder that it is in")
    classes = [node.name() for node in content["classes"].list(optional=True)]
    if (duplicate := first_duplicate(classes)) is not None:
        message = f"the class {duplicate!r} is listed twice, so its number is not clear"
        raise content["classes"].error(message, "list every class once")
    for name in classes:
        entries.add_class(name)
    labels, files = content["labels"], content["file_names"]
    if not labels.object("map each image to its targets"):
        raise labels.error("there are no labels", "map each image to its targets")
    name_of = files.value if isinstance(files.value, dict) else {}
    if (duplicate_image := first_duplicate(str(name_of.get(key, key)) for key in labels.value)) is not None:
        raise files.error(f"the image {duplicate_image!r} has labels twice", "leave one of them")
    unlabelled = set()
    for key, target in labels.value.items():
        node = Node(target, path, labels, f"[{key!r}]")
        image = Node(name_of.get(key, key), path, labels, f"[{key!r}]").name()
        entries.add_image(image)
        if target is None:
            unlabelled.add(image)
        for item in node.list() if isinstance(target, list) else [node] * (target is not None):
            label, source, confidence = _read_target(item, classes)
            if classes and label not in entries.classes:
                raise item.error(f"{label!r} is not in the list 'classes'", "add it to the list")
            raw = "target" if sign > 0 else f"target in {NEGATIVES}"
            entries.add(image, label, sign, raw, source, confidence)
    return unlabelled


def _read_target(node: Node, classes: list[str]) -> tuple[str, str, float]:
    """The class, source and score of a target: the number or name of a class, or an object."""
    target = node["label"] if isinstance(node.value, dict) else node
    if isinstance(target.value, int) and not isinstance(target.value, bool):
        if not 0 <= target.value < len(classes):
            message = f"class number {target.value}, but only {len(classes)} classes are listed"
            raise target.error(message, "complete the list 'classes'")
        target = node.child("label", classes[target.value])
    confidence, source = node["confidence"].score(), node["attributes"]["source"].value
    if source is None and not math.isnan(confidence):
        source = "model"  # people give no confidences
    return target.name(), source if isinstance(source, str) else "", confidence
