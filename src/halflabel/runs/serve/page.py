"""The page at /docs: what to send where, a form to try it and what it answered. No script, nothing from elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halflabel import __version__
from halflabel.runs.serve.limits import Limits
from halflabel.system.format import decimal, probability, shorten
from halflabel.system.html import Html, count, document, el, join

__all__ = ["docs_page"]


def docs_page(
    name: str,
    classes: int,
    limits: Limits,
    address: str = "http://HOST:PORT",
    *,
    answers: Sequence[Mapping[str, Any]] = (),
    thresholds: Mapping[str, float] | None = None,
    refused: str = "",
) -> str:
    """The page as text; `address` is where programs find it.

    After the form was sent it also shows the `answers`, as /predict gives them, each with its "picture" as a data
    address and the threshold of each class, or why the photos were `refused`.
    """
    lines = [
        ("POST /predict", "images as files of a form, or one image as the body; ?top=5, ?all=true"),
        ("GET /classes", "the classes with their thresholds"),
        ("GET /health", "whether the model answers"),
        ("GET /openapi.json", "all this for programs"),
    ]
    rows = [el("tr", el("th", el("code", what), scope="row"), el("td", said, class_="name")) for what, said in lines]
    form = el(
        "form",
        el("label", "Photos ", for_="files"),
        el("input", type="file", name="files", id="files", multiple=True, accept="image/*", required=True),
        " ",
        el("button", "Say what is in them", type="submit"),
        method="post",
        action="try",
        enctype="multipart/form-data",
    )
    shown = [_answer(answer, thresholds or {}) for answer in answers]
    found = el("div", *shown, class_="grid", role="status") if shown else None
    target = shlex.quote(f"{address}/predict")
    content = el(
        "main",
        el(
            "section",
            el("h2", "Try it"),
            form,
            el("p", f"Not answered: {refused}.", class_="warn", role="status") if refused else None,
            _legend() if shown else None,
            found,
            el("p", limits.said, class_="said"),
        ),
        el(
            "section",
            el("h2", "From a program"),
            el("p", el("code", f"curl -F files=@photo.jpg {target}")),
            el("p", el("code", f"curl --data-binary @photo.jpg {target}")),
            el("p", "The answer is JSON: per photo the classes found, with their probabilities.", class_="said"),
            el("div", el("table", el("tbody", *rows)), class_="scroll"),
            el(
                "p",
                "Refused with a reason: 400 damaged, 408 too slow, 413 too large, 415 not an image. 503 says that too "
                "many requests are under way: try again after Retry-After seconds.",
                class_="said",
            ),
        ),
    )
    said = f"Says which of {count(classes)} classes are in a photo; halflabel {__version__}"
    head = el("header", el("h1", shorten(name, 80)), el("p", said, class_="said"))
    return document(shorten(name, 60), [head, content], script=False, forms="'self'")


def _legend() -> Html:
    keys = (("present", "present: at its threshold or above"), ("unknown", "below it"), ("mark across", "threshold"))
    return el("ul", *(el("li", el("span", class_=f"key {css}"), said) for css, said in keys), class_="legend")


def _answer(answer: Mapping[str, Any], thresholds: Mapping[str, float]) -> Html:
    """One photo: its labels with a bar each, or what is wrong with it."""
    file = shorten(str(answer["image"]) or "photo", 60)
    title = el("b", file, class_="name")
    if answer["error"]:
        return el("div", title, el("p", str(answer["error"]), class_="warn"))
    rows = []
    for label in answer["labels"]:
        name, p, present = str(label["class"]), float(label["probability"]), bool(label["present"])
        cut = thresholds.get(name)
        told = f"probability {probability(p)}" + (f", threshold {decimal(cut)}" if cut is not None else "")
        drawn = el(
            "svg",
            el("title", f"{told}: {'present' if present else 'not called present'}"),
            el("rect", width=100, height=10, class_="bed"),
            el("rect", width=round(100 * p, 1), height=10, class_="area present" if present else "area unknown"),
            el("line", x1=round(100 * cut, 1), x2=round(100 * cut, 1), y1=0, y2=10, class_="mark")
            if cut is not None
            else None,
            viewBox="0 0 100 10",
            preserveAspectRatio="none",
            role="img",
            class_="meter",
        )
        said = el("b", shorten(name, 40)) if present else shorten(name, 40)
        rows.append(el("tr", el("th", said, scope="row", class_="name"), el("td", drawn), el("td", probability(p))))
    table = el("table", el("tbody", *rows), class_="answer") if rows else el("p", "No class was found.", class_="none")
    picture = str(answer.get("picture", ""))
    photo = el("img", src=picture, alt="", class_="asked") if picture else None
    return el("div", join([title, photo, table]))
