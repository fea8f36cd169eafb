"""CVAT for images, XML: boxes, other shapes and tags of each image are present."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_xml, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)

_is_file = sniffer("[.]xml", "<", "<annotations[ >]", "<(image|track|meta)[ >]")


def sniff(path: Path) -> bool:
    """An XML file with <annotations>, or the folder of such an annotations.xml."""
    return _is_file(_file(path))


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The classes of the task, then its images; shapes with source="auto" are those of a model."""
    file = _file(path)
    root = load_xml(file)
    if root.find("track") is not None:
        raise LabelError("these are tracks of a video", "export the task as `CVAT for images`", file)
    for number, label in enumerate(root.iterfind(".//labels/label/name")):
        yield Node(label.text, file, key=f"labels[{number}].name").name()
    for number, image in enumerate(root.iter("image")):
        place = f"image[{number}]"
        labels = [
            Label(
                Node(shape.get("label"), file, key=f"{place}.{shape.tag}.label").name(),
                "tag" if shape.tag == "tag" else "shape",
                source="model" if shape.get("source") == "auto" else "",
            )
            for shape in image
        ]
        yield ImageRecord(Node(image.get("name"), file, key=f"{place}.name"), labels)


def _file(path: Path) -> Path:
    return path / "annotations.xml" if path.is_dir() else path


read = reader("cvat", entries)
