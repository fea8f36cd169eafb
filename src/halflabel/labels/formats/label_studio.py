"""Label Studio JSON: tasks with one question per class (yes, no, unsure) for annotators, and their answers back.

Written: the tasks, with the known labels as predictions, so that every task is open and annotators see it filled in;
next to them the labelling interface (`NAME.config.xml`), which has to be pasted into the project before the tasks are
imported. Read: Label Studio's JSON export. An answer becomes a row with the source "person"; "unsure" becomes a row
that retracts the label. Choices of other projects are read as the names of present classes.
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
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._json import Record, head_and_tail, load_json, read_score, starts_with
from halflabel.labels.formats._row_collector import RowCollector
from halflabel.labels.formats._unlisted import mark_unlisted_absent, unlisted_not_stated
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
_MEANINGS = {"yes": "present", "no": "absent", "unsure": "retracted"}
_ANSWER_WORDS = {1: "yes", -1: "no"}
_XML_QUOTE = {'"': "&quot;"}
_IMAGE_KEYS = ("image", "img", "url", "photo", "picture")


def sniff(path: Path) -> bool:
    """A JSON file with a list of tasks: objects with data, and annotations or predictions."""
    if path.suffix.lower() != ".json":
        return False
    text = head_and_tail(path)
    is_list = starts_with(text, "[")
    return is_list and '"data"' in text and ('"annotations"' in text or '"predictions"' in text)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the annotators' answers; if no task is answered, the predictions with their source and score.

    Predictions of another model, with the model_version M, get the source "model:M".

    As soon as there is an answer or a skipped task, predictions are left out: the tasks were made from them, and as
    newer rows they would override labels that were added since.
    """
    tasks = _load_tasks(path)
    audit = Audit("label-studio", [str(path)])
    collector = _Collector(path, audit, _own_questions(tasks))
    for name in _declared_classes(path):
        collector.rows.add_class(name)
    answered = any(_get_list(task, "annotations", path, f"[{number}]") for number, task in enumerate(tasks))
    for number, task in enumerate(tasks):
        _read_task(collector, task, number, policy, answered)
    if collector.choices and policy.unlisted is None:
        reason = f"{collector.choices} choices name classes that are present and none says absent"
        raise LabelError(*unlisted_not_stated(reason, "every choice was considered"), path)
    if policy.unlisted is not None and not collector.choices:
        message = "every class has its own question, so nothing is unlisted"
        raise LabelError(message, "leave ‹unlisted› out: an open question is unknown", path)
    if not collector.rows.classes:
        raise LabelError("the file has no choices", "export the project again, as JSON", path)
    return LabelImport(_build_rows(collector, policy, answered), audit)


def write(rows: Labels, path: Path, image_url: str = LOCAL_FILES) -> None:
    """Write the tasks, and the labelling interface next to them; `image_url` is the prefix of each image's path.

    The last row of each (image, class) counts. Paths are percent-encoded; an image whose name is a URL keeps it.
    Sources are kept in the data of the task, scores in the predictions; only overridden rows are lost.
    """
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
    answers = [(questions[rows.column[k]], int(rows.value[k]), shortest_float(rows.score[k])) for k in holding]
    sources = {questions[rows.column[k]]: rows.sources[rows.source[k]] for k in holding}
    if any(sources.values()):
        data["sources"] = sources
    return {"data": data, "predictions": [{"model_version": _WRITER, "result": list(_results(answers))}]}


def config_path(path: Path) -> Path:
    """The labelling interface of a file of tasks: tasks.json -> tasks.config.xml."""
    return path.with_suffix(".config.xml")


def _interface(classes: Names, questions: list[str]) -> str:
    """The labelling interface: the image, then one question per class."""
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


def _results(answers: list[tuple[str, int, float]]) -> Iterator[Record]:
    """The results of a prediction from (question, value, score)."""
    for number, (question, value, score) in enumerate(answers, 1):
        result: Record = {
            "id": f"halflabel-{number}",
            "from_name": question,
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [_ANSWER_WORDS[value]]},
        }
        if not math.isnan(score):
            result["score"] = score
        yield result


@dataclass
class _Collector:
    """Collects what is read: the rows, and counts for the audit."""

    path: Path
    audit: Audit
    own_questions: set[str]
    rows: RowCollector = field(default_factory=RowCollector)
    url_of: dict[str, str] = field(default_factory=dict)  # of each image
    answered_images: set[str] = field(default_factory=set)  # images with a submitted annotation
    counts: Counter[str] = field(default_factory=Counter)
    choices: int = 0  # choices of other projects, which name a class
    question_of: dict[str, str] = field(default_factory=dict)  # of each class that is a choice

    def error(self, message: str, fix: str, place: str) -> LabelError:
        return LabelError(message, fix, self.path, column=place)


def _read_task(collector: _Collector, task: Record, number: int, policy: Policy, answered: bool) -> None:
    """Read the answers of one task, or its predictions if no task is answered."""
    place = f"[{number}]"
    data = task.get("data")
    if not isinstance(data, dict):
        raise collector.error("the task has no data", "export the project as JSON, not as JSON-MIN", f"{place}.data")
    image = _image_name(collector, data, policy, f"{place}.data")
    annotations = _get_list(task, "annotations", collector.path, place)
    predictions = _get_list(task, "predictions", collector.path, place)
    collector.counts["drafts"] += len(task["drafts"]) if isinstance(task.get("drafts"), list) else 0
    if answered:
        # The last row wins, so the latest comes last.
        order = list(range(len(annotations)))
        if len(annotations) > 1:
            times = [
                _annotation_time(collector, item, f"{place}.annotations[{k}]") for k, item in enumerate(annotations)
            ]
            order.sort(key=times.__getitem__)
        for k in order:
            item_place = f"{place}.annotations[{k}]"
            if not isinstance(annotations[k], dict):
                raise collector.error("this is not an annotation", "export the project again, as JSON", item_place)
            if annotations[k].get("was_cancelled"):
                collector.counts["skipped"] += 1
                continue
            collector.answered_images.add(image)
            for question, answer, result in _answers(collector, annotations[k], item_place):
                collector.counts["left"] += result.get("origin") == "prediction"
                _add_answer(collector, image, question, answer, PERSON, math.nan)
        collector.counts["predictions"] += sum(isinstance(item, dict) for item in predictions)
        return
    task_sources = data.get("sources")
    sources: Record = task_sources if isinstance(task_sources, dict) else {}
    for k, prediction in enumerate(predictions):
        item_place = f"{place}.predictions[{k}]"
        if not isinstance(prediction, dict):  # an export may contain only their ids
            raise collector.error(
                "this is not a prediction", "export the project again, with its predictions", item_place
            )
        version = str(prediction.get("model_version") or "")
        # Our own predictions hold the known labels; another model may have added predictions since.
        is_own = "name" in data and version in ("", _WRITER)
        source = "" if is_own else model_source(version)
        for question, answer, result in _answers(collector, prediction, item_place):
            score = read_score(result.get("score"), collector.path, f"{item_place}.result")
            _add_answer(
                collector, image, question, answer, str(sources.get(question, source)) if is_own else source, score
            )


def _answers(collector: _Collector, annotation: Record, place: str) -> Iterator[tuple[str, str, Record]]:
    """(question, choice, the whole result) of each choice."""
    for k, result in enumerate(_get_list(annotation, "result", collector.path, place)):
        result_place = f"{place}.result[{k}]"
        if not isinstance(result, dict):
            raise collector.error("this is not a result", "export the project again, as JSON", result_place)
        if result.get("type") != "choices":
            collector.counts["other"] += 1
            continue
        value, question = result.get("value"), result.get("from_name")
        choices = value.get("choices") if isinstance(value, dict) else None
        if not isinstance(choices, list) or not isinstance(question, str):
            raise collector.error(
                "the choices are not a list", "export the project again, as JSON", f"{result_place}.value.choices"
            )
        if question in collector.own_questions and len(choices) > 1:
            raise collector.error("one question has two answers", "leave one of them", f"{result_place}.value.choices")
        for choice in choices:
            if not isinstance(choice, str) or not is_utf8(choice) or not choice:
                raise collector.error("a choice has no name", "give it one", f"{result_place}.value.choices")
            yield question, choice, result


def _add_answer(collector: _Collector, image: str, question: str, answer: str, source: str, score: float) -> None:
    """Add a row for an answer to one of our questions, or for a choice of another project."""
    if question in collector.own_questions:
        label, value = _class_of(question), _ANSWERS[answer]
        assert label is not None
        collector.counts[answer] += 1
    else:
        label, value = answer, 1
        collector.choices += 1
        if (other := collector.question_of.setdefault(label, question)) != question:
            message = f"the choice {label!r} answers two questions, {other!r} and {question!r}: the class is not clear"
            raise LabelError(message, "give the choices of each question names of their own", collector.path)
    collector.rows.add(image, label, value, source, score)


def _build_rows(collector: _Collector, policy: Policy, answered: bool) -> Labels:
    """The collected rows, with the policy for unlisted classes applied and the audit completed."""
    audit, counts = collector.audit, collector.counts
    for answer, meaning in _MEANINGS.items():
        audit.add(answer, meaning, counts[answer])
    audit.add("chosen", "present", collector.choices)
    rows = collector.rows.build()
    if policy.unlisted == "absent":
        # Only for annotated images, and not for our own questions, whose answers are explicit.
        is_answered = np.array([not answered or name in collector.answered_images for name in rows.images], bool)
        is_chosen = np.array([name in collector.question_of for name in rows.classes], bool)
        rows = mark_unlisted_absent(rows, audit, images=is_answered, classes=is_chosen, raw="not chosen")
    pairs = len(rows.images) * len(rows.classes)
    audit.add("no answer", "unknown", pairs - len(set(zip(rows.image.tolist(), rows.column.tolist(), strict=True))))
    audit.note_count(counts["skipped"], "times a task was skipped: nothing is known from that")
    audit.note_count(counts["drafts"], "drafts were not submitted: left out")
    audit.note_count(counts["predictions"], "predictions are left out: annotators saw them")
    audit.note_count(counts["left"], "answers were submitted as predicted")
    audit.note_count(counts["other"], "results are not choices (boxes, texts …): left out")
    if not answered:
        audit.note("no task is answered yet: these are the predictions, with their source and score")
    note = "entries are both present and absent: the last answer wins, all rows are kept"
    audit.note_count(rows.count_conflicts(), note)
    return rows


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


def _own_questions(tasks: list[Record]) -> set[str]:
    """The questions that are named like ours and whose answers are all yes, no or unsure."""
    is_own: dict[str, bool] = {}
    for result in _all_results(tasks):
        question = result.get("from_name")
        if isinstance(question, str) and _class_of(question) is not None:
            value = result.get("value")
            choices = value.get("choices") if isinstance(value, dict) else None
            fits = isinstance(choices, list) and all(isinstance(c, str) and c in _ANSWERS for c in choices)
            is_own[question] = is_own.get(question, True) and fits
    return {question for question, fits in is_own.items() if fits}


def _all_results(tasks: list[Record]) -> Iterator[Record]:
    """All results of all annotations and predictions; malformed ones are skipped, `_answers` reports them."""
    lists = (task.get(key) for task in tasks for key in ("annotations", "predictions"))
    answered = (item for items in lists if isinstance(items, list) for item in items if isinstance(item, dict))
    results = (item.get("result") for item in answered)
    yield from (result for items in results if isinstance(items, list) for result in items if isinstance(result, dict))


def _image_name(collector: _Collector, data: Record, policy: Policy, place: str) -> str:
    """The name of the image: as we wrote it, else from its URL. Two URLs with the same name are an error."""
    key = policy.image_column or next((key for key in _IMAGE_KEYS if isinstance(data.get(key), str)), None)
    url = data.get(key) if key is not None else None
    if not isinstance(url, str) or not url:
        keys = ", ".join(map(repr, list(data)[:8]))
        raise collector.error(
            f"no field has the URL of the image; found: {keys}", "name it: ‹image_column=FIELD›", place
        )
    own_name = data.get("name") if policy.image_column is None else None
    name = own_name if isinstance(own_name, str) and own_name else image_name_from_url(url)
    if not name or not is_utf8(name):
        raise collector.error(
            f"the URL {url!r} has no image name", "give the task the URL of the image", f"{place}.{key}"
        )
    if collector.url_of.setdefault(name, url) != url:
        message = f"{url!r} and {collector.url_of[name]!r} are both the image {name!r}"
        raise collector.error(message, "rename one of the images", f"{place}.{key}")
    collector.rows.add_image(name)
    return name


def _annotation_time(collector: _Collector, annotation: Any, place: str) -> datetime:
    """When an annotation was last changed; a time without a zone is UTC, an annotation without a time comes first."""
    for key in ("updated_at", "created_at") if isinstance(annotation, dict) else ():
        if (text := annotation.get(key)) is None:
            continue
        try:
            time = datetime.fromisoformat(text)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (TypeError, ValueError, OverflowError):
            fix = "write it like 2024-01-31T10:00:00Z: the latest answer wins"
            raise collector.error(f"{text!r:.60} is not a time", fix, f"{place}.{key}") from None
    return datetime.min.replace(tzinfo=UTC)


def _get_list(record: Record, key: str, path: Path, place: str) -> list[Any]:
    value = record.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise LabelError("this is not a list", "export the project again, as JSON", path, column=f"{place}.{key}")
    return value


def _load_tasks(path: Path) -> list[Record]:
    """The tasks of a file, each an object."""
    tasks = load_json(path)
    tasks = [tasks] if isinstance(tasks, dict) and "data" in tasks else tasks  # target storages have one file per task
    if not isinstance(tasks, list) or not tasks:
        raise LabelError("this is not a list of tasks", "export the project as JSON", path)
    for number, task in enumerate(tasks):
        if not isinstance(task, dict):
            raise LabelError("this is not a task", "export the project as JSON", path, column=f"[{number}]")
    return tasks


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
