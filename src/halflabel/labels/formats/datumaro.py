"""Datumaro JSON: items with annotations, whose label_id is a number in the list of labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_document, reader, sniffer
from halflabel.labels.policy import Policy

USES = ("unlisted",)

sniff = sniffer("[.]json", "{", '"items"', '"categories"', '"label_id"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord | str]:
    """The annotations of each item that have a label."""
    document = load_document(path)
    classes = [label["name"].name() for label in document["categories"]["label"]["labels"].list()]
    yield from classes
    for item in document["items"].list():
        numbers = [each["label_id"] for each in item["annotations"].list() if each["label_id"].value is not None]
        name = item["image"]["path"] if item["image"]["path"].value else item["id"]
        yield ImageRecord(name, [Label(_class(classes, number), "annotation") for number in numbers])


def _class(classes: list[str], number: Node) -> str:
    if type(number.value) is not int or not 0 <= number.value < len(classes):
        raise number.error(f"{number.value!r:.40} is not one of {len(classes)} labels", "add it to the labels")
    return classes[number.value]


read = reader("datumaro", entries)
