"""CreateML JSON and its like: a list or lines of images, each with a list of class names or of objects with a label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._records import ImageRecord, Label, load_items, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)

_ENDINGS = "[.](jsonl?|ndjson)"
_IMAGES = ("image", "imagefilename", "filename", "file")  # with file_name it is imagefolder
_LABELS = ("annotations", "annotation", "labels", "tags")
_JSON_MIN = '"(annotator|annotation_id|lead_time)"'  # of Label Studio

sniff = sniffer(
    _ENDINGS,
    rf"[\[{{](?![\s\S]*{_JSON_MIN})",
    rf'^[\ufeff\s\[]*\{{[^\[{{}}]*"({"|".join(_IMAGES)})"\s*:\s*"',
    rf'"({"|".join(_LABELS)})"\s*:\s*\[',
)


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The annotations of each image."""
    for item in load_items(path, _ENDINGS):
        image, labels = (
            item[next((key for key in keys if key in item.object()), keys[0])] for keys in (_IMAGES, _LABELS)
        )
        named = [each["label"] if isinstance(each.value, dict) else each for each in labels.list()]
        yield ImageRecord(image, [Label(each.name(), "annotation") for each in named])


read = reader("createml", entries)
