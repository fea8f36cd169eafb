"""LabelMe JSON, one file per image: a shape means present; a flag is present where it is true, absent where false."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._records import ImageRecord, Label, files_of, load_document, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)

sniff = sniffer("[.]json", "{", '"shapes"', '"imagePath"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The shapes and flags of each file; flags such as __ignore__ are LabelMe's own."""
    for document in map(load_document, files_of(path, "[.]json")):
        labels = [Label(shape["label"].name(), "shape") for shape in document["shapes"].list()]
        flags = {name: value for name, value in document["flags"].object().items() if not name.startswith("__")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise document["flags"][name].refuse("true or false", "check the flag in LabelMe")
            labels.append(Label(name, f"flag {value}".lower(), 1 if value else -1))
        yield ImageRecord(document["imagePath"], labels)


read = reader("labelme", entries)
