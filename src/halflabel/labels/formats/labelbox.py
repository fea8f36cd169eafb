"""Labelbox NDJSON, an image per line: objects, and choices of radio buttons and checklists, are present."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halflabel.labels.formats._json import Node, load_lines
from halflabel.labels.formats._records import ImageRecord, Label, reader, single_file, sniffer
from halflabel.labels.policy import LABEL_VALUES, VALUE_WORDS, Policy

USES = ("unlisted",)

_ENDINGS = "[.](nd)?jsonl?"
sniff = sniffer(_ENDINGS, "{", '"data_row"', '"projects"')


def entries(path: Path, policy: Policy) -> Iterator[ImageRecord]:
    """The labels of all projects; an image without one is not labelled."""
    for line in load_lines(single_file(path, _ENDINGS)):
        row = line["data_row"]
        images = (row[key] for key in ("external_id", "global_key", "row_data", "id"))
        given = [label for project in line["projects"].each() for label in project["labels"].list(optional=True)]
        labels = []
        for each in (label["annotations"] for label in given):
            labels += [Label(node["name"].name(), "object") for node in each["objects"].list(optional=True)]
            labels += [
                _label(question, node)
                for question in each["classifications"].list(optional=True)
                for node in _answers(question)
            ]
        yield ImageRecord(next((node for node in images if node.value), row["id"]), labels, bool(given))


def _answers(question: Node) -> list[Node]:
    """The chosen answers of a question; texts are none."""
    answers = question["checklist_answers"].list(optional=True)
    return answers + [question["radio_answer"]] * (question["radio_answer"].value is not None)


def _label(question: Node, answer: Node) -> Label:
    """The class that an answer names; that of the question where the answer is yes, no or unknown."""
    name = answer["name"].name()
    meaning = VALUE_WORDS.get(name.lower())
    if meaning is None:
        return Label(name, "answer")
    return Label(question["name"].name(), f"answer {name}", LABEL_VALUES[meaning] or None)


read = reader("labelbox", entries)
