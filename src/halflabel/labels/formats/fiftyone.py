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
from typing import Any

import numpy as np

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._json import Record, check_name, head_and_tail, load_object, read_score, starts_with
from halflabel.labels.formats._row_collector import RowCollector
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
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
    if policy.unlisted is None and not has_negatives:
        raise LabelError(*unlisted_not_stated("every target says present and none says absent"), file)
    collector = RowCollector()
    if has_negatives:  # first, so that present wins if an entry is in both files
        _read_file(collector, negatives, -1)
    unlabelled_images = _read_file(collector, file, 1)
    audit = Audit("fiftyone", [str(file), *([str(negatives)] if has_negatives else [])])
    rows = collector.build()
    for sign, raw, meaning in ((1, "target", "present"), (-1, "target in negatives.json", "absent")):
        audit.add(raw, meaning, int(np.count_nonzero(rows.value == sign)))
    audit.note_count(rows.count_conflicts(), "entries are in both files: present wins, both rows are kept")
    rows = apply_unlisted_policy(
        rows, policy, audit, images=~np.isin(np.arange(len(rows.images)), list(unlabelled_images))
    )
    audit.note_count(len(unlabelled_images), "images have null instead of labels: nothing is known of them")
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


def _read_file(collector: RowCollector, path: Path, sign: int) -> set[int]:
    """Read one file; returns the numbers of the images without labels in it (null)."""
    content = load_object(path)
    class_list = content.get("classes")
    if class_list is not None and not isinstance(class_list, list):
        raise LabelError("this is not a list", "list the names of the classes", path, column="classes")
    classes = [check_name(item, path, f"classes[{k}]") for k, item in enumerate(class_list or ())]
    if (duplicate := first_duplicate(classes)) is not None:
        message = f"the class {duplicate!r} is listed twice, so its number is not clear"
        raise LabelError(message, "list every class once", path, column="classes")
    for item in classes:
        collector.add_class(item)
    labels, files = content.get("labels"), content.get("file_names")
    if not isinstance(labels, dict) or not labels:
        raise LabelError("there are no labels", "map each image to its targets", path, column="labels")
    files = files if isinstance(files, dict) else {}
    if (duplicate_image := first_duplicate(str(files.get(key, key)) for key in labels)) is not None:
        raise LabelError(
            f"the image {duplicate_image!r} has labels twice", "leave one of them", path, column="file_names"
        )
    unlabelled = set()
    for key, target in labels.items():
        place = f"labels[{key!r}]"
        image = check_name(files.get(key, key), path, place)
        number = collector.add_image(image)
        if target is None:
            unlabelled.add(number)
            continue
        for item in target if isinstance(target, list) else [target]:
            label, source, confidence = _read_target(item, classes, path, place)
            if classes and label not in collector.classes:
                raise LabelError(f"{label!r} is not in the list 'classes'", "add it to the list", path, column=place)
            collector.add(image, label, sign, source, confidence)
    return unlabelled


def _read_target(item: Any, classes: list[str], path: Path, place: str) -> tuple[str, str, float]:
    """The class, source and score of a target: the number or name of a class, or an object."""
    fields = item if isinstance(item, dict) else {}
    target = fields.get("label") if isinstance(item, dict) else item
    if isinstance(target, int) and not isinstance(target, bool):
        if not 0 <= target < len(classes):
            message = f"class number {target}, but only {len(classes)} classes are listed"
            raise LabelError(message, "complete the list 'classes'", path, column=place)
        target = classes[target]
    confidence, attributes = read_score(fields.get("confidence"), path, place), fields.get("attributes")
    source = attributes.get("source") if isinstance(attributes, dict) else None
    if source is None and not math.isnan(confidence):
        source = "model"  # people give no confidences
    return check_name(target, path, place), source if isinstance(source, str) else "", confidence
