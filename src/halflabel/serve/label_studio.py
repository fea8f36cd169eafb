"""Label Studio's ML backend protocol (https://labelstud.io/guide/ml_create).

Images are read from a local folder by the names in the tasks: a task must not make the server fetch an address.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fastapi import Request

from halflabel.images.decode import find_images, match_names
from halflabel.labels.formats.label_studio import image_name_from_url, question_name
from halflabel.serve.guard import Body, Limits, RequestRefused, Upload
from halflabel.system.remote import local_folder

_MAX_BYTES = 16_000_000
_MAX_TASKS = 1000


class TaskImages:
    """Finds the images of tasks in a folder or a pack; the folder is listed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = local_folder(folder)
        self.names = [path.relative_to(self.folder).as_posix() for path in find_images(self.folder)]

    def find(self, tasks: Sequence[Any]) -> list[Path | None]:
        """Return the file of each task's image, or None."""
        names = match_names([_image_name(task) for task in tasks], self.names, self.folder.resolve().parts)
        return [None if name is None else self.folder / name for name in names]


async def answer_tasks(
    request: Request,
    limits: Limits,
    model: str,
    images: TaskImages | None,
    predict: Callable[[Sequence[Upload], int, bool], Awaitable[list[dict[str, Any]]]],
) -> dict[str, Any]:
    """Predict the tasks of a project; a task whose image cannot be read gets no result."""
    if images is None:
        raise RequestRefused(400, "to answer tasks of Label Studio, start the server with --images FOLDER")
    content = await read_json(request, limits)
    tasks, interface = content.get("tasks"), content.get("label_config")
    if not isinstance(tasks, list) or len(tasks) > _MAX_TASKS:
        raise RequestRefused(400, f"a JSON request needs a list of tasks, at most {_MAX_TASKS}")
    paths = images.find(tasks)
    labels = iter(await predict([Upload(path.name, path) for path in paths if path is not None], 0, True))
    interface = interface if isinstance(interface, str) else ""
    results = [_results(interface, next(labels)["labels"]) if path is not None else [] for path in paths]
    # Label Studio can show tasks with a low score first.
    scores = [sum(item["score"] for item in result) / max(len(result), 1) for result in results]
    pairs = zip(scores, results, strict=True)
    return {"results": [{"model_version": model, "score": score, "result": result} for score, result in pairs]}


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the JSON object that a request sends."""
    try:
        content = json.loads(await Body(request.receive, _MAX_BYTES).read(limits.seconds))
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the request is not JSON") from None
    if not isinstance(content, dict):
        raise RequestRefused(400, "the request is not a JSON object")
    return content


def _image_name(task: Any) -> str:
    """The name of a task's image: as `halflabel convert --to label-studio` wrote it, else from its address."""
    data = task.get("data") if isinstance(task, dict) else None
    if not isinstance(data, dict):
        return ""
    if isinstance(data.get("name"), str):
        return str(data["name"])
    address = next((data[key] for key in ("image", "img", "url") if isinstance(data.get(key), str)), "")
    return image_name_from_url(address)


def _results(interface: str, labels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of one image in the terms of a labelling interface.

    A question per class, as `convert --to label-studio` makes them, is answered yes or no. Other Choices get the names
    of the present classes that they offer. Without an interface, one question per class is assumed.
    """
    try:
        root = ElementTree.fromstring(interface) if interface else ElementTree.Element("View")
    except ElementTree.ParseError:
        raise RequestRefused(400, "the labelling interface is not XML") from None
    questions, results = set(), []

    def add(name: str, to_name: str, chosen: list[str], score: float) -> None:
        about = {"from_name": name, "to_name": to_name, "type": "choices"}
        results.append({**about, "value": {"choices": chosen}, "score": score})

    for tag in root.iter("Choices"):
        offered = {choice.get("value", "") for choice in tag.iter("Choice")}
        present = [label for label in labels if label["present"] and label["class"] in offered]
        if {"yes", "no"} <= offered:
            questions.add(tag.get("name", ""))
        elif present:
            score = min(label["probability"] for label in present)
            add(tag.get("name", ""), tag.get("toName", "image"), [label["class"] for label in present], score)
    for label in labels:
        if not interface or question_name(label["class"]) in questions:
            p, is_present = label["probability"], label["present"]
            add(question_name(label["class"]), "image", ["yes" if is_present else "no"], p if is_present else 1 - p)
    return results
