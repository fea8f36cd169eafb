"""Try a threshold: a slider with the precision and recall that each class would have, from counts in the page."""

from __future__ import annotations

import json

import numpy as np

from halflabel.report.layout import section, truncation_note
from halflabel.report.run_facts import HeldOutResults
from halflabel.system.format import decimal
from halflabel.system.html import Html, el

STEPS = 100
CLASSES = 200


def threshold_section(results: HeldOutResults) -> Html | None:
    """Return the slider; None where no class has known positives and negatives.

    For each class the page holds how many known positives and known negatives score at least 0.00, 0.01, …, 1.00.
    """
    positives, negatives = (results.labels > 0).sum(axis=0), (results.labels < 0).sum(axis=0)
    measured = np.flatnonzero((positives > 0) & (negatives > 0))
    if not results.knows_absence or not len(measured):
        return None
    columns = measured[np.argsort(-positives[measured], kind="stable")][:CLASSES]
    cell = np.floor(results.scores.clip(0, 1) * STEPS).astype(np.int64)
    counts = []
    for c in columns.tolist():
        hits, false = (
            np.bincount(cell[known, c], minlength=STEPS + 1)[::-1].cumsum()[::-1].tolist()
            for known in (results.labels[:, c] > 0, results.labels[:, c] < 0)
        )
        counts.append({"column": c, "hits": hits, "false": false, "threshold": float(results.thresholds[c])})
    start = float(np.median(results.thresholds[columns]))
    slider = el(
        "input", type="range", min="0", max=STEPS, value=round(STEPS * start), class_="slider", aria_label="threshold"
    )
    return section(
        "threshold",
        "Try a threshold",
        el(
            "p",
            "Which share of what is called present is right (precision), and which share of what is present is found "
            f"(recall), if entries with a score of at least the threshold are called present. The run uses "
            f"{decimal(start, 2)}. To use another one: ",
            el("code", "halflabel predict RUN PHOTOS --threshold 0.4"),
            ".",
            class_="muted",
        ),
        truncation_note(len(columns), len(measured), "are counted: those with the most known positives"),
        el(
            "div",
            el("label", "threshold ", slider, " ", el("output")),
            el("div", _meter("precision"), _meter("recall"), class_="meters", aria_live="polite"),
            class_="thresholds",
            data_counts=json.dumps(counts, separators=(",", ":")),
            data_start=round(start, 4),
        ),
    )


def _meter(name: str) -> Html:
    """Return a bar from 0 to 100 %, which the script of the page fills."""
    bar = el(
        "svg",
        el("rect", width=100, height=6, class_="bed"),
        el("rect", width=0, height=6, class_="area plain value"),
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        role="img",
        aria_label=name,
        class_="chart bar",
    )
    return el("div", el("span", name, " ", el("b")), bar, el("small", class_="muted"), class_=name)
