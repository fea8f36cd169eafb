"""Vertex AI and AutoML JSON Lines: an image with `imageGcsUri`, and its class, classes or boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import load_lines
from halflabel.labels.formats._records import ImageRecord, Label, reader, single_file, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)


_ENDINGS = "[.](jsonl?|ndjson)"

sniff = sniffer(_ENDINGS, "{", '"imageGcsUri"', '"[a-zA-Z]+Annotations?"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The annotations of each image."""
    for line in load_lines(single_file(path, _ENDINGS)):
        nodes = [node for key in line.value if key.endswith("Annotations") for node in line[key].list()]
        nodes += [line[key] for key in line.value if key.endswith("Annotation")]
        yield ImageRecord(line["imageGcsUri"], [Label(node["displayName"].name(), "annotation") for node in nodes])


read = reader("vertex", entries)
