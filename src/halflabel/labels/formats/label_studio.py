"""Label Studio JSON: tasks with one question per class (yes, no, unsure) to give to people, and their answers back.

Written: the tasks, with what is known as predictions, so that every task is open and people see it filled in; beside
them the labelling interface (`NAME.config.xml`), to be pasted into the project before the tasks are imported. Read:
Label Studio's own JSON export. An answer becomes a row of source "person", and "unsure" one that retracts. Other
projects' choices are read as the names of classes present.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._json import Record, head_and_tail, read_score, starts_with
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.formats._unlisted import mark_unlisted_absent
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.provenance import model_source
from halflabel.labels.rows import Rows
from halflabel.system.files import atomic_write

__all__ = ["LOCAL_FILES", "OPTIONS", "PERSON", "USES", "config_path", "read", "sniff", "write"]

USES = ("unlisted", "image_column")
OPTIONS = ("image_url",)

LOCAL_FILES = "/data/local-files/?d="  # where Label Studio serves the files below its document root
PERSON = "person"
_WRITER = "halflabel"  # the model version of predictions that hold what is known, of whatever source

_ANSWERS = {"yes": 1, "no": -1, "unsure": 0}
_MEANINGS = {"yes": "present", "no": "absent", "unsure": "retracted"}
_WORDS = {1: "yes", -1: "no"}
_PREFIX = "class_"
_QUOTE = {'"': "&quot;"}
_IMAGE_KEYS = ("image", "img", "url", "photo", "picture")
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio puts before the name of an uploaded file


def sniff(path: Path) -> bool:
    """A JSON file with a list of tasks: objects that have data, and annotations or predictions."""
    if path.suffix.lower() != ".json":
        return False
    text = head_and_tail(path)
    is_list = starts_with(text, "[")
    return is_list and '"data"' in text and ('"annotations"' in text or '"predictions"' in text)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read people's answers; from tasks that nobody has answered, the predictions, with their source and score.

    What another model has predicted, model_version M, is of the source "model:M".

    Once there is an answer or a skipped task, predictions are left out: they are what the tasks were made from, and as
    newer rows they would win over what has become known since.
    """
    tasks = _load(path)
    audit = Audit("label-studio", [str(path)])
    found = _Found(path, audit, _own_groups(tasks), classes=dict.fromkeys(_declared(path)))
    answered = any(_list(task, "annotations", path, f"[{number}]") for number, task in enumerate(tasks))
    for number, task in enumerate(tasks):
        _read_task(found, task, number, policy, answered)
    if found.chosen and policy.unlisted is None:
        raise LabelError(
            f"{found.chosen} choices name classes that are present and none says absent, "
            "so what was not chosen may be absent or unknown",
            "add --unlisted unknown (nobody looked) or --unlisted absent (every choice was looked at)",
            path,
        )
    if policy.unlisted is not None and not found.chosen:
        message = "every class has a question of its own here, so nothing is unlisted"
        raise LabelError(message, "leave --unlisted out: an open question is unknown", path)
    if not found.classes:
        raise LabelError("not one choice is in the file", "export the project again, as JSON", path)
    return LabelImport(_rows(found, policy, answered), audit)


def write(rows: Rows, path: Path, image_url: str = LOCAL_FILES) -> None:
    """Write the tasks, and the labelling interface beside them; `image_url` stands before each image's path.

    Of several rows for one (image, class) the last counts. Paths are percent-encoded; an image whose name is a URL
    keeps it. Nothing is lost but what was said before: sources are kept in the task's data, scores in the predictions.
    """
    if path.suffix.lower() != ".json":
        raise UserError(f"Label Studio takes tasks from .json files, not {path.name}", "name the file tasks.json")
    if "" in rows.images or "" in rows.classes:
        raise UserError("an image or a class has no name", "give every image and every class a name")
    groups = [_group(name) for name in rows.classes]
    by_image: list[list[int]] = [[] for _ in range(len(rows.images))]
    for k in rows.holding().tolist():
        by_image[rows.image[k]].append(k)
    with atomic_write(config_path(path)) as interface:
        interface.write_text(_interface(rows.classes, groups), encoding="utf-8")
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            for number, name in enumerate(rows.images):
                at = by_image[number]
                url = name if "://" in name else image_url + quote(name)
                data: Record = {"image": url, "name": name}
                task: Record = {"data": data}
                if len(at):
                    # Read back from its shortest spelling: 0.7, not 0.699999988.
                    said = [(groups[rows.column[k]], int(rows.value[k]), float(str(rows.score[k]))) for k in at]
                    task["predictions"] = [{"model_version": _WRITER, "result": list(_results(said))}]
                    if any(rows.sources[rows.source[k]] for k in at):
                        data["sources"] = {groups[rows.column[k]]: rows.sources[rows.source[k]] for k in at}
                else:
                    task["predictions"] = []
                file.write(("[\n" if number == 0 else ",\n") + json.dumps(task, ensure_ascii=False))
            file.write("\n]\n" if len(rows.images) else "[]\n")


def config_path(path: Path) -> Path:
    """Where the labelling interface of a file of tasks is: tasks.json -> tasks.config.xml."""
    return path.with_suffix(".config.xml")


def _group(name: str) -> str:
    """A class's name as the name of its question: letters and digits stay, every other byte becomes _ and its number.

    >>> _group("traffic light"), _class("class_traffic_20light")
    ('class_traffic_20light', 'traffic light')
    """
    plain = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02X}" for byte in name.encode())
    return _PREFIX + "".join(plain)


def _class(group: str) -> str | None:
    """The class that a question is about; None where the name is not of our making."""
    if not group.startswith(_PREFIX):
        return None
    try:
        text = unquote(group.removeprefix(_PREFIX).replace("_", "%"), errors="strict")
    except UnicodeDecodeError:
        return None
    return text if text and _group(text) == group else None


def _interface(classes: Names, groups: list[str]) -> str:
    """The labelling interface: the image, then one question per class."""
    lines = ["<View>", '  <Image name="image" value="$image"/>']
    for name, group in zip(classes, groups, strict=True):
        # A $ would be taken for a field of the task; control characters are not allowed in XML.
        shown = re.sub(r"[\x00-\x1f\ufffe\uffff]", " ", name.replace("$", "＄"))
        lines += [
            f'  <Header value="{escape(shown, _QUOTE)}" size="5"/>',
            f'  <Choices name="{group}" toName="image" choice="single-radio" showInline="true">',
            *(f'    <Choice value="{answer}"/>' for answer in _ANSWERS),
            "  </Choices>",
        ]
    return "\n".join([*lines, "</View>"]) + "\n"


def _results(said: list[tuple[str, int, float]]) -> Iterator[Record]:
    for number, (group, value, score) in enumerate(said, 1):
        result: Record = {
            "id": f"halflabel-{number}",
            "from_name": group,
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [_WORDS[value]]},
        }
        if not math.isnan(score):
            result["score"] = score
        yield result


@dataclass
class _Found:
    """What has been read so far: names in order of appearance, and the rows as lists."""

    path: Path
    audit: Audit
    own: set[str]  # the questions that are ours
    images: dict[str, str] = field(default_factory=dict)  # name -> URL
    classes: dict[str, None] = field(default_factory=dict)
    rows: list[tuple[str, str, int, str, float]] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)  # images of which somebody handed in an answer
    counts: Counter[str] = field(default_factory=Counter)
    chosen: int = 0  # choices that name a class
    named: set[str] = field(default_factory=set)  # the classes they name

    def error(self, message: str, fix: str, place: str) -> LabelError:
        return LabelError(message, fix, self.path, column=place)


def _read_task(found: _Found, task: Record, number: int, policy: Policy, answered: bool) -> None:
    place = f"[{number}]"
    data = task.get("data")
    if not isinstance(data, dict):
        raise found.error("the task has no data", "export the project as JSON, not as JSON-MIN", f"{place}.data")
    image = _image(found, data, policy, f"{place}.data")
    annotations = _list(task, "annotations", found.path, place)
    predictions = _list(task, "predictions", found.path, place)
    found.counts["drafts"] += len(task["drafts"]) if isinstance(task.get("drafts"), list) else 0
    if answered:
        # The last one wins, so the latest goes last; times are ISO 8601 in UTC, which sorts as text.
        order = sorted(range(len(annotations)), key=lambda k: _time(annotations[k]))
        for k in order:
            where = f"{place}.annotations[{k}]"
            if not isinstance(annotations[k], dict):
                raise found.error("this is no annotation", "export the project again, as JSON", where)
            if annotations[k].get("was_cancelled"):
                found.counts["skipped"] += 1
                continue
            found.looked.append(image)
            for group, answer, result in _answers(found, annotations[k], where):
                found.counts["left"] += result.get("origin") == "prediction"
                _say(found, image, group, answer, PERSON, math.nan)
        found.counts["predictions"] += sum(isinstance(item, dict) for item in predictions)
        return
    kept = data.get("sources")
    sources: Record = kept if isinstance(kept, dict) else {}
    for k, prediction in enumerate(predictions):
        where = f"{place}.predictions[{k}]"
        if not isinstance(prediction, dict):  # an export may hold their ids only
            raise found.error("this is no prediction", "export the project again, with its predictions", where)
        version = str(prediction.get("model_version") or "")
        # Of our own making, it is what the tasks were filled in with; another model may have predicted for them since.
        own = "name" in data and version in ("", _WRITER)
        by = "" if own else model_source(version)
        for group, answer, result in _answers(found, prediction, where):
            given = read_score(result.get("score"), found.path, f"{where}.result")
            _say(found, image, group, answer, str(sources.get(group, by)) if own else by, given)


def _answers(found: _Found, given: Record, place: str) -> Iterator[tuple[str, str, Record]]:
    """(question, choice, the whole result) of each choice made."""
    for k, result in enumerate(_list(given, "result", found.path, place)):
        where = f"{place}.result[{k}]"
        if not isinstance(result, dict):
            raise found.error("this is no result", "export the project again, as JSON", where)
        if result.get("type") != "choices":
            found.counts["other"] += 1
            continue
        value, group = result.get("value"), result.get("from_name")
        choices = value.get("choices") if isinstance(value, dict) else None
        if not isinstance(choices, list) or not isinstance(group, str):
            raise found.error("the choices are no list", "export the project again, as JSON", f"{where}.value.choices")
        if group in found.own and len(choices) > 1:
            raise found.error("one question has two answers", "leave one of them", f"{where}.value.choices")
        for choice in choices:
            if not isinstance(choice, str) or not _is_text(choice) or not choice:
                raise found.error("a choice has no name", "give it one", f"{where}.value.choices")
            yield group, choice, result


def _say(found: _Found, image: str, group: str, answer: str, source: str, score: float) -> None:
    if group in found.own:
        label, value = _class(group), _ANSWERS[answer]
        assert label is not None
        found.counts[answer] += 1
    else:
        label, value = answer, 1
        found.chosen += 1
        found.named.add(label)
    found.classes.setdefault(label)
    found.rows.append((image, label, value, source, score))


def _rows(found: _Found, policy: Policy, answered: bool) -> Rows:
    audit, counts = found.audit, found.counts
    for answer, meaning in _MEANINGS.items():
        audit.add(answer, meaning, counts[answer])
    audit.add("chosen", "present", found.chosen)
    images = {name: number for number, name in enumerate(found.images)}
    classes = {name: number for number, name in enumerate(found.classes)}
    sources = list(dict.fromkeys(row[3] for row in found.rows)) or [""]
    source_at = {name: number for number, name in enumerate(sources)}
    rows = Rows.build(
        Names(images),
        Names(classes),
        np.array([images[row[0]] for row in found.rows], np.int32),
        np.array([classes[row[1]] for row in found.rows], np.int32),
        np.array([row[2] for row in found.rows], np.int8),
        np.array([source_at[row[3]] for row in found.rows], np.int32),
        np.array([row[4] for row in found.rows], np.float32),
        sources,
    )
    if policy.unlisted == "absent":
        # Where somebody has looked, and not of questions of our own: these have answers of their own.
        looked = set(found.looked) if answered else set(images)
        seen = np.array([name in looked for name in images], bool)
        named = np.array([name in found.named for name in classes], bool)
        rows = mark_unlisted_absent(rows, audit, images=seen, classes=named, raw="not chosen")
    asked = len(rows.images) * len(rows.classes)
    audit.add("no answer", "unknown", asked - len(set(zip(rows.image.tolist(), rows.column.tolist(), strict=True))))
    notes = {
        "skipped": "{} times a task was skipped: nothing is taken from that",
        "drafts": "{} drafts have not been handed in: left out",
        "predictions": "{} predictions are left out: they are what people were shown",
        "left": "{} answers were left as predicted, and handed in",
        "other": "{} results are no choices (boxes, texts …): left out",
    }
    for key, text in notes.items():
        if counts[key]:
            audit.note(text.format(counts[key]))
    if not answered:
        audit.note("nobody has answered yet: these are the predictions, with their source and score")
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries were called both present and absent: the last answer wins, all rows are kept")
    return rows


def _declared(path: Path) -> list[str]:
    """The classes in the labelling interface beside the file, so that one without an answer keeps its place."""
    try:
        if not config_path(path).is_file():  # a pipe would be waited for
            return []
        # The interface is a flat file of our own making; another one names no class of ours.
        tags = ElementTree.parse(config_path(path)).getroot().iter("Choices")
        named = [_class(tag.get("name", "")) for tag in tags]
    except (OSError, ElementTree.ParseError, ValueError):
        return []
    return [name for name in named if name is not None]


def _own_groups(tasks: list[Record]) -> set[str]:
    """Questions named as ours are, of which every answer is yes, no or unsure."""
    own: dict[str, bool] = {}
    for task in tasks:
        for key in ("annotations", "predictions"):
            for given in task.get(key) or () if isinstance(task.get(key), list) else ():
                results = given.get("result") if isinstance(given, dict) else None
                for result in results if isinstance(results, list) else ():
                    group = result.get("from_name") if isinstance(result, dict) else None
                    if not isinstance(group, str) or _class(group) is None:
                        continue
                    value = result.get("value")
                    choices = value.get("choices") if isinstance(value, dict) else None
                    fits = isinstance(choices, list) and all(isinstance(c, str) and c in _ANSWERS for c in choices)
                    own[group] = own.get(group, True) and fits
    return {group for group, fits in own.items() if fits}


def _image(found: _Found, data: Record, policy: Policy, place: str) -> str:
    """The image's name: as we wrote it, else from its URL. Two URLs of one name are an error, not one image."""
    key = policy.image_column or next((key for key in _IMAGE_KEYS if isinstance(data.get(key), str)), None)
    url = data.get(key) if key is not None else None
    if not isinstance(url, str) or not url:
        keys = ", ".join(map(repr, list(data)[:8]))
        raise found.error(f"no field is the image's address; found: {keys}", "name it: --image-column FIELD", place)
    own = data.get("name") if policy.image_column is None else None
    name = own if isinstance(own, str) and own else _name_of(url)
    if not name or not _is_text(name):
        raise found.error(f"the address {url!r} names no image", "give the task the image's address", f"{place}.{key}")
    if found.images.setdefault(name, url) != url:
        message = f"{url!r} and {found.images[name]!r} are both the image {name!r}"
        raise found.error(message, "rename one of the images", f"{place}.{key}")
    return name


def _name_of(url: str) -> str:
    """The path of a local file, the name of an uploaded one, else the last part of a URL.

    >>> _name_of("/data/local-files/?d=a%20b/1%2B1.jpg"), _name_of("/data/upload/3/0a1b2c3d-cat.jpg")
    ('a b/1+1.jpg', 'cat.jpg')
    >>> _name_of("s3://bucket/x/cat%231.jpg"), _name_of("photos/100%.jpg")
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
        return _UPLOADED.sub("", last)
    return last if parts.scheme and parts.netloc else url


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time(annotation: Any) -> str:
    times = [annotation.get(key) for key in ("updated_at", "created_at")] if isinstance(annotation, dict) else []
    return next((time for time in times if isinstance(time, str)), "")


def _list(record: Record, key: str, path: Path, place: str) -> list[Any]:
    value = record.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise LabelError("this is no list", "export the project again, as JSON", path, column=f"{place}.{key}")
    return value


def _load(path: Path) -> list[Record]:
    """The tasks of a file, each an object."""
    path = existing_path(path)
    try:
        tasks = json.loads(path.read_bytes())
    except OSError as error:
        raise LabelError(f"cannot be read: {error.strerror}", "check that you may read the file", path) from None
    except json.JSONDecodeError as fault:
        message = f"this is not JSON: {fault.msg} at character {fault.colno}"
        raise LabelError(message, "export the project again", path, line=fault.lineno) from None
    except (ValueError, RecursionError, MemoryError):
        raise LabelError("this is not JSON in UTF-8", "export the project again", path) from None
    tasks = [tasks] if isinstance(tasks, dict) and "data" in tasks else tasks  # target storages keep a file per task
    if not isinstance(tasks, list) or not tasks:
        raise LabelError("this is no list of tasks", "export the project as JSON", path)
    for number, task in enumerate(tasks):
        if not isinstance(task, dict):
            raise LabelError("this is no task", "export the project as JSON", path, column=f"[{number}]")
    return tasks
