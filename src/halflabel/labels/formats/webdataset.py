"""WebDataset tars with labels: KEY.json, KEY.cls or KEY.txt beside KEY.jpg.

KEY.json may hold the lists that `halflabel pack --labels` writes (`labels`, `absent`, and their scores and sources), a
list `labels`, `tags`, `classes` or `categories`, or a bare list. The number -1 means that nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels.formats._json import Node, Record
from halflabel.labels.formats._records import ImageRecord, Label, RecordFormat
from halflabel.labels.formats._write import shortest_float, split_by_image
from halflabel.labels.formats.imagefolder import IMAGE_COLUMN
from halflabel.labels.formats.tags import LIST_COLUMNS
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.system.files import DuplicateKey, parse_json
from halflabel.system.webdataset import list_members, split_key, tar_files

USES = ("unlisted",)
CANNOT_WRITE = ("WebDataset tars hold images too", "write both: halflabel pack IMAGES OUT --labels LABELS")

_LISTS = {"labels": 1, "absent": -1}
_LABEL_FILES = ("json", "cls", "txt")  # in order of preference
_MAX_BYTES = 1 << 24  # of the labels of one image
_NO_LABEL = "-1"


def sniff(path: Path) -> bool:
    return bool(tar_files(path))


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The lists of each image, and perhaps their sources and scores in parallel lists."""
    tars = tar_files(path)
    if not tars:
        raise LabelError("there are no tars", "name the folder with the .tar files", path)
    places: dict[str, Node] = {}
    for image, place, data in _samples(tars):
        node = Node({}, path / place)
        record, is_labelled = _read_record(data, node) if place else ({}, False)
        node = Node(record, node.path)
        name = node[IMAGE_COLUMN] if IMAGE_COLUMN in record else Node(image, node.path)
        if places.setdefault(name.name(), node) is not node:
            raise node.error(f"image {name.value!r} occurs twice", "leave one of them")
        labels = []
        for key, sign in _LISTS.items():
            listed = node[key].list("write a list of class names, or []", optional=True)
            sources, scores = (_parallel(node[f"{key}_{kind}"], len(listed)) for kind in ("source", "score"))
            for label, source, score in zip(listed, sources, scores, strict=True):
                of_source = "" if source.value is None else str(source.value)
                labels.append(Label(label.name(), f"in {key}", sign, of_source, score.score()))
        # Two empty lists know nothing.
        yield ImageRecord(
            name, labels, is_labelled and bool(record.get("labels") or record.get("absent", True)), "absent" in record
        )


read = RecordFormat("webdataset", entries, USES, sniff, complete="the lists are complete", has_paths=False).read


def _parallel(node: Node, count: int) -> list[Node]:
    items = node.list(optional=True) or [node.child(number, None) for number in range(count)]
    if len(items) != count:
        raise node.error(f"this is not one for each of the {count} classes", "make the lists the same length")
    return items


def image_records(rows: Labels) -> Iterator[Record]:
    """Yield the lists of each image, as a pack stores them: present and absent classes, their scores and sources."""
    holding = rows.holding()
    has_score = not bool(np.isnan(rows.score[holding]).all())
    has_source = any(rows.sources[number] for number in np.unique(rows.source[holding]))
    for part in split_by_image(rows, holding)[: len(rows.images)]:  # without images there is one empty part
        listed = {name: part[rows.value[part] == sign] for name, sign in _LISTS.items()}
        record: Record = {name: [rows.classes[c] for c in rows.column[k]] for name, k in listed.items()}
        for name, k in listed.items():
            if has_score:
                record[f"{name}_score"] = [None if np.isnan(x) else shortest_float(x) for x in rows.score[k]]
            if has_source:
                record[f"{name}_source"] = [rows.sources[number] for number in rows.source[k]]
        yield record


def _samples(tars: list[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Yield each image with the place and content of its label file; both are empty if it has none."""
    members = list_members(tars)
    names: list[str] = members.names.to_pylist()
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb")) for path in tars]
        for _, sample in groupby(range(len(names)), lambda number: split_key(names[number])[0]):
            parts = {split_key(names[number])[1]: number for number in sample}
            image = next((names[at] for ending, at in parts.items() if f".{ending}".endswith(IMAGE_ENDINGS)), None)
            if image is None:
                continue
            at = next((parts[kind] for kind in _LABEL_FILES if kind in parts), None)
            if at is None:
                yield image, "", b""
                continue
            file = files[members.tar[at]]
            file.seek(int(members.offset[at]))
            data = file.read(min(int(members.length[at]), _MAX_BYTES))
            yield image, f"{tars[members.tar[at]].name}: {names[at]}", data


def _read_record(data: bytes, node: Node) -> tuple[Record, bool]:
    """The content of a label file as a record with the list `labels`, and False if it is the number -1."""
    kind = node.path.suffix.lower()
    try:
        text = data.decode("utf-8").strip()
        if kind != ".json":
            names = _classes(text) if kind == ".txt" else [text] if text else []
            return {"labels": [name for name in names if name != _NO_LABEL]}, _NO_LABEL not in names
        content = parse_json(text)
    except DuplicateKey as error:
        raise node.error(f"the key {error.key!r} occurs twice", "write it once") from None
    except (ValueError, RecursionError):
        raise node.error(f"this is not {'JSON' if kind == '.json' else 'UTF-8 text'}", "write it again") from None
    record = content if isinstance(content, dict) else {"labels": content}
    labels: Any = next((record[name] for name in LIST_COLUMNS if name in record), [])
    if isinstance(labels, str):
        return {**record, "labels": _classes(labels)}, True
    items = labels if isinstance(labels, list) else [labels]
    is_number = [isinstance(item, int) and not isinstance(item, bool) for item in items]
    if all(is_number) and len(set(items)) < len(items) and set(items) <= {-1, 0, 1}:
        message = "the list holds one value per class, not the names of classes"
        raise node.error(message, "write the names of the classes that are present")
    names = [str(item) if number else item for item, number in zip(items, is_number, strict=True)]
    is_labelled = not any(number and item == -1 for item, number in zip(items, is_number, strict=True))
    return {**record, "labels": names if is_labelled else []}, is_labelled


def _classes(text: str) -> list[str]:
    return [name for part in re.split(r"[,\n]", text) if (name := part.strip())]
