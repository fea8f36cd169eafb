"""Pascal VOC boxes: one XML file per image, in a folder or in its folder Annotations, annotations/xmls or labels.

A class is present if one of its objects is not difficult. If all are difficult it is unknown, as in the lists of VOC,
unless `difficult` states otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, files_of, load_xml, names_of_files, reader, sniffer
from halflabel.labels.policy import LABEL_VALUES, Policy

USES = ("unlisted", "difficult")

_is_file = sniffer("[.]xml", "<", "<annotation[ >]", "<(filename|object|folder)[ />]")


def sniff(path: Path) -> bool:
    """An XML file with an <annotation>, or a folder of such files."""
    return _is_file(_folder(path))


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The objects of each file."""
    difficult = LABEL_VALUES[policy.difficult or "unknown"] or None
    files = files_of(_folder(path), "[.]xml")
    roots = [load_xml(file) for file in files]
    images = names_of_files(
        files, [Node(root.findtext("filename"), file, key="filename") for file, root in zip(files, roots, strict=True)]
    )
    for file, root, image in zip(files, roots, images, strict=True):
        objects = [
            (Node(each.findtext("name"), file, key=f"object[{k}].name").name(), each.findtext("difficult"))
            for k, each in enumerate(root.iter("object"))
        ]
        plain = {name for name, mark in objects if mark != "1"}
        labels = [Label(name) for name, _ in objects if name in plain]
        labels += [Label(name, "difficult", difficult, "difficult") for name, _ in objects if name not in plain]
        yield ImageRecord(image, labels)


def _folder(path: Path) -> Path:
    folders = (path / name for name in ("Annotations", "annotations/xmls", "annotations", "xmls", "labels"))
    return next((folder for folder in folders if folder.is_dir() and next(folder.glob("*.xml"), None)), path)


read = reader("voc-xml", entries)
