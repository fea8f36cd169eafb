"""COCO results: a list of the detections of a model, each with image_id, category_id and score.

The file has no names: images and classes are called by their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_document, model_score, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("machine",)

sniff = sniffer("[.]json", r"\[", '"image_id"', '"category_id"', '"score"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The detections of each image."""
    labels: dict[str, list[Label]] = {}
    for item in load_document(path).list():
        label = Label(str(item["category_id"].id()), "detection", 1, "model", model_score(item["score"]))
        labels.setdefault(str(item["image_id"].id()), []).append(label)
    return (ImageRecord(Node(image, path), each, is_labelled=False) for image, each in labels.items())


read = reader("coco-results", entries)
