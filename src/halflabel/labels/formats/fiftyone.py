"""FiftyOne: a folder with labels.json, `{"classes": […], "labels": {image: [targets]}}`, for multilabel classification.

The layout of fiftyone.types.FiftyOneImageClassificationDataset. A target is a class's number or name, or an object with
`label`, `confidence` and `attributes`. The format knows no absence, so a second file of the same layout,
negatives.json, lists the classes that are not there: FiftyOne reads it into a field of its own, as it does for Open
Images.

    dataset = fo.Dataset.from_dir(dataset_type=kind, data_path="photos", labels_path="out/labels.json",
                                  label_field="positive_labels")
    dataset.merge_dir(dataset_type=kind, data_path="photos", labels_path="out/negatives.json",
                      label_field="negative_labels")

FiftyOne names an image by its path without the ending; the full names stand under "file_names", which it passes over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._json import Record, check_name, head_and_tail, load_object, read_score, starts_with
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
from halflabel.labels.formats._write import shortest_float, write_compact_json
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import Policy
from halflabel.labels.rows import Rows

__all__ = ["USES", "read", "sniff", "write"]

USES = ("unlisted",)

LABELS, NEGATIVES = "labels.json", "negatives.json"

_MAPPING = re.compile(r'"labels"\s*:\s*\{')
_LISTS = re.compile(r'"(images|annotations|categories)"\s*:\s*\[\s*\{')


def sniff(path: Path) -> bool:
    """A folder with labels.json, or a JSON file, whose "labels" are an object and which is not COCO's."""
    file = path / LABELS if path.is_dir() else path
    if file.suffix.lower() != ".json":
        return False
    text = head_and_tail(file)
    starts = starts_with(text, "{")
    return starts and _MAPPING.search(text) is not None and _LISTS.search(text) is None


def read(path: Path, policy: Policy) -> LabelImport:
    """Read labels.json as present and negatives.json beside it as absent; without the latter `unlisted` must be stated.

    An image whose target is null says nothing, also where what is not listed is absent.
    """
    file = path / LABELS if path.is_dir() else path
    negatives = file.parent / NEGATIVES
    has_negatives = negatives.is_file() and file.name != NEGATIVES
    if policy.unlisted is None and not has_negatives:
        raise LabelError(*unlisted_not_stated("every target says present and none says absent"), file)
    reading = _Reading()
    if has_negatives:  # first, so that present wins where an entry is in both
        reading.file(negatives, -1)
    silent = reading.file(file, 1)
    audit = Audit("fiftyone", [str(file), *([str(negatives)] if has_negatives else [])])
    rows = reading.rows()
    for sign, raw, meaning in ((1, "target", "present"), (-1, "target in negatives.json", "absent")):
        audit.add(raw, meaning, int(np.count_nonzero(rows.value == sign)))
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries are in both files: present wins, both rows are kept")
    rows = apply_unlisted_policy(rows, policy, audit, images=~np.isin(np.arange(len(rows.images)), list(silent)))
    if silent:
        audit.note(f"{len(silent)} images have null instead of labels: nothing is taken from that")
    return LabelImport(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write labels.json and negatives.json into a folder: of each (image, class) the last row, its source and score."""
    if path.suffix:
        raise UserError(f"FiftyOne reads a folder, not {path.name}", "name a folder to write")
    names = list(rows.images)
    keys = [_key(name) for name in names]
    if (again := first_duplicate(keys)) is not None:
        both = [name for name, key in zip(names, keys, strict=True) if key == again][:2]
        raise UserError(
            f"FiftyOne names images without their ending, and {both[0]!r} and {both[1]!r} differ in nothing else",
            "rename one of the images",
        )
    last = rows.holding()
    known = np.zeros(len(names), bool)
    known[rows.image[last]] = True
    for file, sign in ((LABELS, 1), (NEGATIVES, -1)):
        # null is an image that nobody has labelled; an empty list is one where nothing was found.
        labels: dict[str, list[Record] | None] = {
            key: [] if some else None for key, some in zip(keys, known.tolist(), strict=True)
        }
        for k in last[rows.value[last] == sign].tolist():
            listed = labels[keys[rows.image[k]]]
            assert listed is not None
            listed.append(_target(rows, k))
        content = {"classes": list(rows.classes), "labels": labels}
        if keys != names:
            content["file_names"] = dict(zip(keys, names, strict=True))
        write_compact_json(path / file, content)


def _target(rows: Rows, k: int) -> Record:
    target: Record = {"label": int(rows.column[k])}
    if not math.isnan(rows.score[k]):
        target["confidence"] = shortest_float(rows.score[k])
    if source := rows.sources[rows.source[k]]:
        target["attributes"] = {"source": source}
    return target


def _key(image: str) -> str:
    """The name that FiftyOne gives an image: its path without the ending.

    >>> _key("a.b/cat.v2.jpg"), _key("a.b/cat"), _key(".jpg")
    ('a.b/cat.v2', 'a.b/cat', '.jpg')
    """
    stem, dot, suffix = image.rpartition(".")
    return stem if dot and stem and not stem.endswith("/") and "/" not in suffix else image


class _Reading:
    """The files' names and rows, gathered in order of appearance."""

    def __init__(self) -> None:
        self.images: dict[str, int] = {}
        self.classes: dict[str, int] = {}
        self.sources: dict[str, int] = {"": 0}
        self.found: list[tuple[int, int, int, int, float]] = []

    def file(self, path: Path, sign: int) -> set[int]:
        """Read one file; the numbers of the images that it says nothing of."""
        content = load_object(path)
        listed = content.get("classes")
        if listed is not None and not isinstance(listed, list):
            raise LabelError("this is no list", "list the classes' names", path, column="classes")
        classes = [check_name(item, path, f"classes[{k}]") for k, item in enumerate(listed or ())]
        for item in classes:
            self.classes.setdefault(item, len(self.classes))
        labels, files = content.get("labels"), content.get("file_names")
        if not isinstance(labels, dict) or not labels:
            raise LabelError("there are no labels", "map each image to its targets", path, column="labels")
        files = files if isinstance(files, dict) else {}
        silent = set()
        for key, target in labels.items():
            place = f"labels[{key!r}]"
            title = check_name(files.get(key, key), path, place)
            image = self.images.setdefault(title, len(self.images))
            if target is None:
                silent.add(image)
                continue
            for value in target if isinstance(target, list) else [target]:
                self._target(image, value, sign, classes, path, place)
        return silent

    def _target(self, image: int, given: Any, sign: int, classes: list[str], path: Path, place: str) -> None:
        more = given if isinstance(given, dict) else {}
        target = more.get("label") if isinstance(given, dict) else given
        if isinstance(target, int) and not isinstance(target, bool):
            if not 0 <= target < len(classes):
                message = f"class number {target}, where {len(classes)} classes are listed"
                raise LabelError(message, "complete the list 'classes'", path, column=place)
            label = classes[target]
        else:
            label = check_name(target, path, place)
        confidence, attributes = read_score(more.get("confidence"), path, place), more.get("attributes")
        source = attributes.get("source") if isinstance(attributes, dict) else None
        column = self.classes.setdefault(label, len(self.classes))
        by = self.sources.setdefault(source if isinstance(source, str) else "", len(self.sources))
        self.found.append((image, column, sign, by, confidence))

    def rows(self) -> Rows:
        parts: Iterator[Any] = zip(*self.found, strict=True) if self.found else iter([()] * 5)
        image, column, value, source, score = (np.array(part) for part in parts)
        return Rows.build(
            Names(self.images), Names(self.classes), image, column, value, source, score, list(self.sources)
        )
