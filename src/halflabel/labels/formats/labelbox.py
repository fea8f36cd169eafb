"""Labelbox: NDJSON, or the older JSON list. Objects and the answers of radio buttons and checklists are present."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node
from halflabel.labels.formats._records import ImageRecord, Label, load_items, reader, sniffer
from halflabel.labels.policy import LABEL_VALUES, VALUE_WORDS, Policy

USES = ("unlisted",)

_ENDINGS = "[.](nd)?jsonl?"
_IMAGES = ("external_id", "External ID", "global_key", "row_data", "Labeled Data", "id")
_NAMES = ("name", "title")
_ANSWERS = ("radio_answer", "answer", "checklist_answers", "answers")

sniff = sniffer(_ENDINGS, r"[\[{]", '"data_row"|"Labeled Data"', '"projects"|"Label"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The labels of all projects; an image without one is not labelled."""
    for item in load_items(path, _ENDINGS):
        row = item["data_row"] if "data_row" in item.object() else item
        given = [
            label["annotations"] for each in item["projects"].each() for label in each["labels"].list(optional=True)
        ]
        given += [item["Label"]] * bool(item["Label"].value)
        labels = []
        for each in given:
            labels += [Label(_first(node, _NAMES).name(), "object") for node in each["objects"].list(optional=True)]
            for question in each["classifications"].list(optional=True):
                answers = _first(question, _ANSWERS)
                chosen = answers.list() if isinstance(answers.value, list) else [answers]
                labels += [_label(question, node) for node in chosen if isinstance(node.value, dict)]
        yield ImageRecord(_first(row, _IMAGES), labels, bool(given))


def _first(node: Node, keys: tuple[str, ...]) -> Node:
    return node[next((key for key in keys if node[key].value), keys[0])]


def _label(question: Node, answer: Node) -> Label:
    """The class that an answer names; that of the question where the answer is yes, no or unknown."""
    name = _first(answer, _NAMES).name()
    meaning = VALUE_WORDS.get(name.lower())
    if meaning is None:
        return Label(name, "answer")
    return Label(_first(question, _NAMES).name(), f"answer {name}", LABEL_VALUES[meaning] or None)


read = reader("labelbox", entries)
