"""The page at /docs: what to send where, with a form to try it. No script, and nothing from elsewhere."""

from __future__ import annotations

from halflabel import __version__
from halflabel.report.markup import count, el, short
from halflabel.report.page import document
from halflabel.serve.limits import Limits

__all__ = ["docs_page"]


def docs_page(name: str, classes: int, limits: Limits) -> str:
    """The page as text."""
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
        action="predict",
        enctype="multipart/form-data",
    )
    content = el(
        "main",
        el(
            "section",
            el("h2", "Try it"),
            form,
            el(
                "p",
                "The answer is JSON, as programs get it: per photo the classes found, with their scores.",
                class_="said",
            ),
            el("p", limits.said, class_="said"),
        ),
        el(
            "section",
            el("h2", "From a program"),
            el("p", el("code", "curl -F files=@photo.jpg http://HOST:PORT/predict")),
            el("p", el("code", "curl --data-binary @photo.jpg http://HOST:PORT/predict")),
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
    head = el("header", el("h1", short(name, 80)), el("p", said, class_="said"))
    return document(short(name, 60), [head, content], script=False, forms="'self'")
