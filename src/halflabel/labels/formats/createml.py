"""CreateML JSON: a list of images, each with annotations: objects with a label and perhaps a box, or class names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._records import ImageRecord, Label, load_document, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)

_IMAGES, _LABELS = ("image", "imagefilename", "filename"), ("annotations", "annotation")

sniff = sniffer(
    "[.]json", r"\[", '"(image|imagefilename|filename)"', '"annotations?"\\s*:\\s*\\[', '"(label|coordinates)"'
)


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The annotations of each image."""
    for item in load_document(path).list():
        image, labels = (
            item[next((key for key in keys if key in item.object()), keys[0])] for keys in (_IMAGES, _LABELS)
        )
        named = [each["label"] if isinstance(each.value, dict) else each for each in labels.list()]
        yield ImageRecord(image, [Label(each.name(), "annotation") for each in named])


read = reader("createml", entries)
