"""The page at / and /docs: a form to try photos, their labels, and how programs call the API. No script, no network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halflabel import __version__
from halflabel.runs.serve.limits import Limits
from halflabel.system.format import decimal, probability, shorten
from halflabel.system.html import Html, count, document, el, join

__all__ = ["try_page"]


def try_page(
    name: str,
    classes: int,
    limits: Limits,
    address: str = "http://HOST:PORT",
    *,
    predictions: Sequence[Mapping[str, Any]] = (),
    thresholds: Mapping[str, float] | None = None,
    refused: str = "",
) -> str:
    """Return the page as HTML text; `address` is the base URL of the server.

    After the form was sent, the page shows the `predictions` as /predict returns them, each with its "photo" as a data
    URL, and the `thresholds` of the classes; or why the photos were `refused`.
    """
    endpoints = [
        ("POST /predict", "images as files of a form, or one image as the body; ?top=5, ?all=true"),
        ("GET /classes", "the classes with their thresholds"),
        ("GET /health", "whether the model answers"),
        ("GET /openapi.json", "this API in machine-readable form"),
    ]
    rows = [
        el("tr", el("th", el("code", what), scope="row"), el("td", text, class_="name")) for what, text in endpoints
    ]
    form = el(
        "form",
        el("label", "Photos ", for_="files"),
        el("input", type="file", name="files", id="files", multiple=True, accept="image/*", required=True),
        " ",
        el("button", "Show the labels", type="submit"),
        method="post",
        action="try",
        enctype="multipart/form-data",
    )
    shown = [_prediction(image, thresholds or {}) for image in predictions]
    results = el("div", *shown, class_="grid", role="status") if shown else None
    target = shlex.quote(f"{address}/predict")
    content = el(
        "main",
        el(
            "section",
            el("h2", "Try it"),
            form,
            el("p", f"Refused: {refused}.", class_="warn", role="status") if refused else None,
            _legend() if shown else None,
            results,
            el("p", limits.description, class_="muted"),
        ),
        el(
            "section",
            el("h2", "From a program"),
            el("p", el("code", f"curl -F files=@photo.jpg {target}")),
            el("p", el("code", f"curl --data-binary @photo.jpg {target}")),
            el("p", "The answer is JSON: per photo the classes found, with their probabilities.", class_="muted"),
            el("div", el("table", el("tbody", *rows)), class_="scroll"),
            el(
                "p",
                "Errors have a reason: 400 damaged, 408 too slow, 413 too large, 415 not an image. 503: too many "
                "requests at a time, try again after Retry-After seconds.",
                class_="muted",
            ),
        ),
    )
    summary = f"Finds which of {count(classes)} classes are in a photo; halflabel {__version__}"
    head = el("header", el("h1", shorten(name, 80)), el("p", summary, class_="muted"))
    return document(shorten(name, 60), [head, content], scripts=(), forms="'self'")


def _legend() -> Html:
    keys = (("present", "present: at its threshold or above"), ("unknown", "below it"), ("mark across", "threshold"))
    return el("ul", *(el("li", el("span", class_=f"key {css}"), text) for css, text in keys), class_="legend")


def _prediction(prediction: Mapping[str, Any], thresholds: Mapping[str, float]) -> Html:
    """Show one photo: its labels with a bar each, or why it could not be read."""
    file = shorten(str(prediction["image"]) or "photo", 60)
    title = el("b", file, class_="name")
    if prediction["error"]:
        return el("div", title, el("p", str(prediction["error"]), class_="warn"))
    rows = []
    for label in prediction["labels"]:
        name, p, present = str(label["class"]), float(label["probability"]), bool(label["present"])
        threshold = thresholds.get(name)
        description = f"probability {probability(p)}" + (
            f", threshold {decimal(threshold)}" if threshold is not None else ""
        )
        bar = el(
            "svg",
            el("title", f"{description}: {'present' if present else 'not called present'}"),
            el("rect", width=100, height=10, class_="bed"),
            el("rect", width=round(100 * p, 1), height=10, class_="area present" if present else "area unknown"),
            el("line", x1=round(100 * threshold, 1), x2=round(100 * threshold, 1), y1=0, y2=10, class_="mark")
            if threshold is not None
            else None,
            viewBox="0 0 100 10",
            preserveAspectRatio="none",
            role="img",
            class_="meter",
        )
        shown_name = el("b", shorten(name, 40)) if present else shorten(name, 40)
        rows.append(el("tr", el("th", shown_name, scope="row", class_="name"), el("td", bar), el("td", probability(p))))
    table = el("table", el("tbody", *rows), class_="answer") if rows else el("p", "No class was found.", class_="none")
    photo = str(prediction.get("photo", ""))
    image = el("img", src=photo, alt="", class_="asked") if photo else None
    return el("div", join([title, image, table]))
