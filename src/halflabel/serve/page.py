"""The page at / and /docs: drop photos, see their labels, move the threshold; and how programs call the API."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from statistics import median

from halflabel import __version__
from halflabel.serve.guard import Limits
from halflabel.system.format import group_digits, shorten
from halflabel.system.html import Html, document, el


def try_page(name: str, thresholds: Mapping[str, float], limits: Limits, address: str = "http://HOST:PORT") -> str:
    """Return the page as HTML text; `thresholds` are those of the classes, `address` is the base URL of the server."""
    target = shlex.quote(f"{address}/predict")
    main = el(
        "main",
        el(
            "section",
            el(
                "label",
                el("b", "Drop photos here"),
                el("span", "or click to choose; photos stay on this server's machine", class_="muted"),
                el("input", type="file", id="files", multiple=True, accept="image/*,.dcm,.heic,.tif,.tiff"),
                id="drop",
            ),
            _slider(thresholds),
            el("div", id="results", class_="results"),
            el("noscript", el("p", "This page needs JavaScript; the commands below do not.", class_="warn")),
            aria_label="Try photos",
        ),
        el(
            "section",
            el(
                "details",
                el("summary", "From a program"),
                el("p", el("code", f"curl -F files=@photo.jpg {target}")),
                el("p", el("code", f"curl --data-binary @photo.jpg {target}")),
                el("p", "The answer is JSON; GET /openapi.json describes it and the other addresses.", class_="muted"),
                el("p", limits.description, class_="muted"),
            ),
        ),
    )
    summary = f"Finds which of {group_digits(len(thresholds))} classes are in a photo; halflabel {__version__}"
    head = el("header", el("h1", shorten(name, 80)), el("p", summary, class_="muted"))
    return document(shorten(name, 60), [head, main], scripts=("try_photos",), served=True)


def _slider(thresholds: Mapping[str, float]) -> Html:
    """Return the slider; until it is moved, each class has its own threshold."""
    values = list(thresholds.values()) or [0.5]
    start = median(values)
    text = f"{start:.2f}" if max(values) - min(values) < 0.005 else "one per class"
    slider = el(
        "input",
        type="range",
        id="threshold",
        class_="slider",
        min=0,
        max=100,
        value=round(100 * start),
        data_start=round(100 * start),
        data_text=text,
        data_thresholds=json.dumps({name: round(value, 6) for name, value in thresholds.items()}),
    )
    value = el("output", text, id="threshold-value", for_="threshold")
    reset = el("button", "Reset", type="button", id="reset", class_="plain", hidden=True)
    return el("p", el("label", "Present from a probability of", for_="threshold"), slider, value, reset, class_="tune")
