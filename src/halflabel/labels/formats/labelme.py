"""LabelMe JSON, one file per image: a shape means present; a flag is present where it is true, absent where false.

X-AnyLabeling writes the same, with a score where a model drew the shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import (
    ImageRecord,
    Label,
    files_of,
    load_document,
    names_of_files,
    reader,
    sniffer,
)
from halflabel.labels.policy import Policy

USES = ("unlisted", "machine")

sniff = sniffer("[.]json", "{", '"shapes"', '"imagePath"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The shapes and flags of each file; flags such as __ignore__ are LabelMe's own."""
    files = files_of(path, "[.]json")
    documents = [load_document(file) for file in files]
    images = names_of_files(files, [document["imagePath"] for document in documents])
    for image, document in zip(images, documents, strict=True):
        labels = [_label(shape) for shape in document["shapes"].list()]
        flags = {name: value for name, value in document["flags"].object().items() if not name.startswith("__")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise document["flags"][name].refuse("true or false", "check the flag in LabelMe")
            labels.append(Label(name, f"flag {value}".lower(), 1 if value else -1))
        yield ImageRecord(image, labels, not any(label.source for label in labels))


def _label(shape: Node) -> Label:
    score = shape["score"].score()
    return Label(shape["label"].name(), "shape", 1, "" if math.isnan(score) else "model", score)


read = reader("labelme", entries)
