"""Label Studio JSON: tasks with one question per class (yes, no, unsure) for annotators, and their answers back.

Written: the tasks, with the known labels as predictions, and next to them the labelling interface (`NAME.config.xml`),
which has to be pasted into the project first. Read: an answer becomes a row with the source "person", "unsure" one that
retracts the label. Choices of other projects and labels of shapes are the names of present classes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._entries import (
    Entries,
    apply_unlisted_policy,
    mark_unlisted_absent,
    require_unlisted,
    utc_time,
)
from halflabel.labels.formats._json import Node, Record, head_and_tail, load_json, starts_with
from halflabel.labels.formats._write import check_names, shortest_float, split_by_image
from halflabel.labels.labels import Labels, model_source
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.system.files import atomic_write, is_utf8

USES = ("unlisted", "image_column")
OPTIONS = ("image_url",)

LOCAL_FILES = "/data/local-files/?d="  # Label Studio serves files below its document root here
PERSON = "person"
_WRITER = "halflabel"  # the model version of predictions that hold known labels of any source

_QUESTION_PREFIX = "class_"
_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts this before the name of an uploaded file

_ANSWERS = {"yes": 1, "no": -1, "unsure": 0}
_ANSWER_WORDS = {1: "yes", -1: "no"}
_EXPORT = "export the project again, as JSON"
_NOTES = {
    "skipped": "times a task was skipped: nothing is known from that",
    "drafts": "drafts were not submitted: left out",
    "predictions": "predictions are left out: annotators saw them",
    "left": "answers were submitted as predicted",
    "other": "results are left out: shapes beside our questions, texts, relations …",
}
_XML_QUOTE = {'"': "&quot;"}
_SHAPES = "boxes and other shapes"  # stands for a question
_SHAPE_TYPES = {
    *("labels", "rectanglelabels", "ellipselabels", "polygonlabels", "keypointlabels", "brushlabels"),
    *("bitmasklabels", "vectorlabels"),
}
_IMAGE_KEYS = ("image", "img", "url", "photo", "picture")


def sniff(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    text = head_and_tail(path)
    is_list = starts_with(text, "[")
    return is_list and '"data"' in text and ('"annotations"' in text or '"predictions"' in text)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the annotators' answers; if no task is answered, the predictions with their source and score.

    As soon as there is an answer or a skipped task, predictions are left out: the tasks were made from them, and as
    newer rows they would override labels that were added since.
    """
    content = load_json(path)
    is_one_task = isinstance(content.value, dict) and "data" in content.value  # as target storages have them
    tasks = [content] if is_one_task else content.list(_EXPORT)
    if not tasks:
        raise content.error("there are no tasks", _EXPORT)
    for task in tasks:
        task.object(_EXPORT)
    reading = _Reading(Entries("label-studio", path, classes=_declared_classes(path)), _own_questions(tasks))
    entries, counts = reading.entries, reading.counts
    answered = any(task["annotations"].value for task in tasks)
    for task in tasks:
        image = _image_name(reading, task["data"], policy)
        drafts, predictions = task["drafts"].value, task["predictions"].list(_EXPORT, optional=True)
        counts["drafts"] += len(drafts) if isinstance(drafts, list) else 0
        if answered:
            _read_annotations(reading, task, image)
            counts["predictions"] += sum(isinstance(node.value, dict) for node in predictions)
        else:
            _read_predictions(reading, task["data"], predictions, image)
    if reading.question_of:
        reason = "choices and shapes name classes that are present and none says absent"
        require_unlisted(policy, reason, path, "every class was considered")
    elif policy.unlisted is not None:
        message = "every class has its own question, so nothing is unlisted"
        raise LabelError(message, "leave ‹unlisted› out: an open question is unknown", path)
    if not entries.classes:
        message = "the file has no choices and no labels of shapes"
        raise LabelError(message, "submit annotations in Label Studio, and export the project again", path)
    audit, rows = entries.audit, entries.build()
    if policy.unlisted == "absent":
        # Only for annotated images, and not for our own questions, whose answers are explicit.
        is_answered = np.array([not answered or name in reading.answered_images for name in rows.images], bool)
        is_chosen = np.array([name in reading.question_of for name in rows.classes], bool)
        rows = mark_unlisted_absent(rows, audit, images=is_answered, classes=is_chosen, raw="not chosen")
    rows = apply_unlisted_policy(rows, Policy(), audit, raw="no answer")
    for what, note in _NOTES.items():
        audit.note_count(counts[what], note)
    if not answered:
        audit.note("no task is answered yet: these are the predictions, with their source and score")
    note = "entries are both present and absent: the last answer wins, all rows are kept"
    audit.note_count(rows.count_conflicts(), note)
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path, image_url: str = LOCAL_FILES) -> None:
    """Write the tasks, and the labelling interface next to them; `image_url` is the prefix of each image's path."""
    if path.suffix.lower() != ".json":
        raise UserError(f"Label Studio takes tasks from .json files, not {path.name}", "name the file tasks.json")
    check_names(rows)
    questions = [question_name(name) for name in rows.classes]
    holding = split_by_image(rows, rows.holding())
    with atomic_write(config_path(path)) as interface:
        interface.write_text(_interface(rows.classes, questions), encoding="utf-8")
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for number, name in enumerate(rows.images):
                url = name if "://" in name else image_url + quote(name)
                task = _task(rows, holding[number], name, url, questions)
                file.write(("[\n" if number == 0 else ",\n") + json.dumps(task, ensure_ascii=False))
            file.write("\n]\n" if len(rows.images) else "[]\n")


def _task(rows: Labels, holding: NDArray[np.int64], name: str, url: str, questions: list[str]) -> Record:
    """The task of one image, with its labels (the rows `holding`) as a prediction."""
    data: Record = {"image": url, "name": name}
    if not len(holding):
        return {"data": data, "predictions": []}
    results: list[Record] = []
    sources = {questions[rows.column[k]]: rows.sources[rows.source[k]] for k in holding}
    for number, k in enumerate(holding, 1):
        result: Record = {
            "id": f"halflabel-{number}",
            "from_name": questions[rows.column[k]],
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [_ANSWER_WORDS[int(rows.value[k])]]},
        }
        results.append(result if np.isnan(rows.score[k]) else {**result, "score": shortest_float(rows.score[k])})
    if any(sources.values()):
        data["sources"] = sources
    return {"data": data, "predictions": [{"model_version": _WRITER, "result": results}]}


def config_path(path: Path) -> Path:
    """The labelling interface of a file of tasks: tasks.json -> tasks.config.xml."""
    return path.with_suffix(".config.xml")


def _interface(classes: Names, questions: list[str]) -> str:
    lines = ["<View>", '  <Image name="image" value="$image"/>']
    for name, question in zip(classes, questions, strict=True):
        # $ would refer to a field of the task; control characters are not allowed in XML.
        title = re.sub(r"[\x00-\x1f\ufffe\uffff]", " ", name.replace("$", "＄"))
        lines += [
            f'  <Header value="{escape(title, _XML_QUOTE)}" size="5"/>',
            f'  <Choices name="{question}" toName="image" choice="single-radio" showInline="true">',
            *(f'    <Choice value="{answer}"/>' for answer in _ANSWERS),
            "  </Choices>",
        ]
    return "\n".join([*lines, "</View>"]) + "\n"


@dataclass
class _Reading:
    """What is read, with counts for the audit."""

    entries: Entries
    own_questions: set[str]
    url_of: dict[str, str] = field(default_factory=dict)  # of each image
    answered_images: set[str] = field(default_factory=set)  # images with a submitted annotation
    counts: Counter[str] = field(default_factory=Counter)
    question_of: dict[str, str] = field(default_factory=dict)  # of each class that is a choice of another project


def _read_annotations(reading: _Reading, task: Node, image: str) -> None:
    annotations = task["annotations"].list(_EXPORT, optional=True)
    for annotation in sorted(annotations, key=_annotation_time) if len(annotations) > 1 else annotations:
        if annotation.object(_EXPORT).get("was_cancelled"):
            reading.counts["skipped"] += 1
            continue
        reading.answered_images.add(image)
        for question, answer, result in _answers(reading, annotation):
            reading.counts["left"] += result["origin"].value == "prediction"
            _add_answer(reading, image, question, answer, PERSON, math.nan)


def _read_predictions(reading: _Reading, data: Node, predictions: list[Node], image: str) -> None:
    for prediction in predictions:
        prediction.object("export the project again, with its predictions")  # an export may contain only their ids
        version = str(prediction["model_version"].value or "")
        # Our own predictions hold the known labels; another model may have added predictions since.
        is_own = "name" in data.value and version in ("", _WRITER)
        for question, answer, result in _answers(reading, prediction):
            source = str(data["sources"][question].value or "") if is_own else model_source(version)
            _add_answer(reading, image, question, answer, source, result["score"].score())


def _answers(reading: _Reading, annotation: Node) -> Iterator[tuple[str, Node, Node]]:
    """(question, choice, the whole result) of each choice, and in projects of others of each label of a shape."""
    shown = set[object]()  # classes of shapes, of which there may be many
    for result in annotation["result"].list(_EXPORT, optional=True):
        kind = result.object(_EXPORT).get("type")
        if kind != "choices" and (kind not in _SHAPE_TYPES or reading.own_questions):
            reading.counts["other"] += 1
            continue
        question = result["from_name"].name() if kind == "choices" else _SHAPES
        choices = result["value"][kind]
        if len(choices.list(_EXPORT)) > 1 and question in reading.own_questions:
            raise choices.error("one question has two answers", "leave one of them")
        new = [choice for choice in choices.list(_EXPORT) if question != _SHAPES or choice.name() not in shown]
        shown.update(choice.value for choice in new if question == _SHAPES)
        yield from ((question, choice, result) for choice in new)


def _add_answer(reading: _Reading, image: str, question: str, choice: Node, source: str, score: float) -> None:
    """Add a row for an answer to one of our questions, or for a choice of another project."""
    label = answer = choice.name()
    if question in reading.own_questions:
        label, value, raw = _class_of(question) or "", _ANSWERS[answer], answer
    else:
        value, raw = 1, "chosen" if question != _SHAPES else "shape"
        other = reading.question_of.setdefault(label, question)
        if _SHAPES not in (other, question) and other != question:
            message = f"the choice {label!r} answers two questions, {other!r} and {question!r}: the class is not clear"
            raise choice.error(message, "give the choices of each question names of their own")
    reading.entries.add(image, label, value, raw, source, score)


def _declared_classes(path: Path) -> list[str]:
    """The classes in the labelling interface next to the file, so that a class without answers keeps its place."""
    try:
        if not config_path(path).is_file():  # reading a pipe would wait forever
            return []
        # Our interface is a flat file; the interface of another project names none of our classes.
        tags = ElementTree.parse(config_path(path)).getroot().iter("Choices")
        classes = [_class_of(tag.get("name", "")) for tag in tags]
    except (OSError, ElementTree.ParseError, ValueError):
        return []
    return [name for name in classes if name is not None]


def _own_questions(tasks: list[Node]) -> set[str]:
    """The questions that are named like ours and whose answers are all yes, no or unsure."""
    lists = (task[key].list(_EXPORT, optional=True) for task in tasks for key in ("annotations", "predictions"))
    results = (result for nodes in lists for node in nodes for result in node["result"].list(_EXPORT, optional=True))
    is_own: dict[str, bool] = {}
    for result in results:
        question, choices = result["from_name"].value, result["value"]["choices"].value
        if isinstance(question, str) and _class_of(question) is not None:
            fits = isinstance(choices, list) and all(isinstance(c, str) and c in _ANSWERS for c in choices)
            is_own[question] = is_own.get(question, True) and fits
    return {question for question, fits in is_own.items() if fits}


def _image_name(reading: _Reading, data: Node, policy: Policy) -> str:
    """The name of the image: as we wrote it, else from its URL. Two URLs with the same name are an error."""
    data.object("export the project as JSON, not as JSON-MIN")
    key = policy.image_column or next((key for key in _IMAGE_KEYS if isinstance(data[key].value, str)), "")
    url = data[key].value
    if not isinstance(url, str) or not url:
        keys = ", ".join(map(repr, list(data.value)[:8]))
        raise data.error(f"no field has the URL of the image; found: {keys}", "name it: ‹image_column=FIELD›")
    own_name = data["name"].value if policy.image_column is None else None
    name = own_name if isinstance(own_name, str) and own_name else image_name_from_url(url)
    if not name or not is_utf8(name):
        raise data[key].error(f"the URL {url!r} has no image name", "give the task the URL of the image")
    if reading.url_of.setdefault(name, url) != url:
        message = f"{url!r} and {reading.url_of[name]!r} are both the image {name!r}"
        raise data[key].error(message, "rename one of the images")
    reading.entries.images.setdefault(name, len(reading.entries.images))
    return name


def _annotation_time(annotation: Node) -> datetime:
    """When an annotation was last changed; an annotation without a time comes first."""
    nodes = (annotation[key] for key in ("updated_at", "created_at"))
    node = next((node for node in nodes if node.value is not None), None)
    try:
        return datetime.min.replace(tzinfo=UTC) if node is None else utc_time(node.value)
    except (TypeError, ValueError, OverflowError):
        assert node is not None
        fix = "write it like 2024-01-31T10:00:00Z: the latest answer wins"
        raise node.error(f"{node.value!r:.60} is not a time", fix) from None


def question_name(name: str) -> str:
    """The name of a class's question: letters and digits stay, every other byte becomes _ and its hexadecimal code.

    >>> question_name("traffic light"), _class_of("class_traffic_20light")
    ('class_traffic_20light', 'traffic light')
    """
    plain = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02X}" for byte in name.encode())
    return _QUESTION_PREFIX + "".join(plain)


def _class_of(question: str) -> str | None:
    """The class of a question; None if `question_name` did not make the name."""
    if not question.startswith(_QUESTION_PREFIX):
        return None
    try:
        text = unquote(question.removeprefix(_QUESTION_PREFIX).replace("_", "%"), errors="strict")
    except UnicodeDecodeError:
        return None
    return text if text and question_name(text) == question else None


def image_name_from_url(url: str) -> str:
    """The path of a local file, the name of an uploaded file, else the last part of the URL.

    >>> image_name_from_url("/data/local-files/?d=a%20b/1%2B1.jpg")
    'a b/1+1.jpg'
    >>> image_name_from_url("/data/upload/3/0a1b2c3d-cat.jpg")
    'cat.jpg'
    >>> image_name_from_url("s3://bucket/x/cat%231.jpg"), image_name_from_url("photos/100%.jpg")
    ('cat#1.jpg', 'photos/100%.jpg')
    """
    if "?d=" in url:
        return unquote(url.split("?d=", 1)[1]).replace("\\", "/").lstrip("/")
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    last = unquote(parts.path).rsplit("/", 1)[-1]
    if "/upload/" in parts.path:
        return _UPLOAD_PREFIX.sub("", last)
    return last if parts.scheme and parts.netloc else url
