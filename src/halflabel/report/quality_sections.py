"""Sections of a run's page: the training, thresholds, precision and recall, calibration, histograms of scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.report import svg
from halflabel.report.labels_page import STATES
from halflabel.report.layout import Section, limit
from halflabel.report.run_facts import HeldOutResults
from halflabel.report.svg import figure
from halflabel.system.format import decimal, group_digits, percent, points, shorten
from halflabel.system.html import Html, el, join, render

MOST_COLUMNS = 9  # of the log that are drawn
_NOT_DRAWN = {"epoch", "lr", "images_per_s", "seconds", "select"}
_CAPTIONS = {
    "loss": ("Training loss", "what training minimises; losses of different methods cannot be compared"),
    "mAP": ("mAP of the held-out images", "over known entries; the model is that of the best epoch"),
    "assumed_mAP": (
        "mAP of the held-out images",
        "unknown counted as absent: nothing is known to be absent, and epochs must be ranked by something",
    ),
    "label_proportion": ("Share labelled", "of all training entries, those that are known or have a pseudo-label"),
    "tp_rate": ("TP rate", "of the pseudo-labels, against the hidden truth"),
    "tn_rate": ("TN rate", "of the pseudo-labels, against the hidden truth"),
}
_STEPS = 100  # of the threshold slider
_SLIDER_CLASSES = 200


def training_section(log: Sequence[dict[str, Any]]) -> Section | None:
    """Draw the log of a run: over its epochs, or the strengths that were tried; None where there is nothing to see."""
    if any("strength" in line for line in log):
        return _strength_section(log) if len(log) > 1 else None
    if not log:
        return None
    columns = dict.fromkeys([*_CAPTIONS, *(key for line in log for key in line if key not in _NOT_DRAWN)])
    values = {key: column for key in columns if np.isfinite(column := _column(log, key)).any()}
    panels = [_chart(key, log, column) for key, column in list(values.items())[:MOST_COLUMNS]]
    lost = int((~np.isfinite(_column(log, "loss"))).sum())
    measured = " mAP: held-out images, after each epoch." if values.keys() & {"mAP", "assumed_mAP"} else ""
    return Section(
        *("learning", "Learning", "How it learned"),
        on=f"Loss: training images.{measured}",
        warning=f"Epochs in which the loss was not a finite number: {group_digits(lost)}." if lost else "",
        limits=limit(MOST_COLUMNS, len(values), "of what was logged are drawn; log.csv holds all", "columns"),
        panels=panels,
    )


def _strength_section(log: Sequence[dict[str, Any]]) -> Section:
    """Draw the quality of each regularisation strength that the solver tried."""
    tried = sorted((float(line["strength"]), 100 * float(line["out_of_fold_mAP"])) for line in log)
    strengths, quality = np.array(tried).T
    best = strengths[quality.argmax()]
    chart = svg.line_chart(
        "out-of-fold mAP",
        np.log10(strengths),
        quality,
        alt=f"Out-of-fold mAP by regularisation strength, best at {best:g}",
        labels=("log10 of the strength", "mAP"),
    )
    return Section(
        *("learning", "Learning", "How it learned"),
        on="Each image scored by a head that was fitted without it.",
        text=[f"L-BFGS fitted the head to all images; the strength {best:g} ranked known labels best."],
        panels=[figure(chart, "Strengths that were tried", "before similar images")],
    )


def _column(log: Sequence[dict[str, Any]], key: str) -> NDArray[np.float64]:
    """Return one column of the log; NaN in epochs that lack it."""
    values = (line.get(key) for line in log)
    return np.array([np.nan if value is None else float(value) for value in values])


def _chart(key: str, log: Sequence[dict[str, Any]], values: NDArray[np.float64]) -> Html:
    """Draw a column of the log over the epochs."""
    title, caption = _CAPTIONS.get(key, (shorten(key.replace("_", " "), 40), ""))
    epochs, mark, scale = _column(log, "epoch"), None, 1
    if key in ("mAP", "assumed_mAP"):
        best, scale = int(np.nanargmax(values)), 100
        mark = (float(epochs[best]), f"best: {points(values[best])}")
    alt = f"{title} over {len(log)} epochs, at last {scale * values[np.isfinite(values)][-1]:.4g}"
    chart = svg.line_chart(title, epochs, scale * values, alt=alt, labels=("epoch", ""), mark=mark)
    return figure(chart, title, caption)


def score_section(results: HeldOutResults) -> Section:
    """Draw the calibration of the scores, and histograms of the scores of known and unknown entries."""
    ece = results.overall.get("ECE", np.nan)
    alt = f"Share present against mean score in ten bins; calibration error {decimal(ece)}"
    chart = svg.reliability_diagram(svg.reliability(results.scores, results.labels), alt=alt)
    meaning = "On the dashed line scores are calibrated: of all entries scored 0.8, 80 % are present"
    panels = [figure(chart, "Reliability", f"{meaning}. Bars: 95 % intervals. Calibration error {decimal(ece)}.")]
    edges, rows = np.linspace(0, 1, 21), []
    for (state, meaning), label in zip(STATES, (1, -1, 0), strict=True):
        counts = np.histogram(results.scores[results.labels == label].clip(0, 1), edges)[0]
        total, high = int(counts.sum()), int(counts[len(counts) // 2 :].sum())
        if total:
            entries = f"{group_digits(total)} {meaning} entries"
            alt = f"Scores of {entries}; {percent(high, total)} score 0.5 or more"
            chart = svg.histogram(counts, edges, state, alt=alt, labels=("score", "entries"), log=True)
            rows += [el("h3", f"{meaning}: {group_digits(total)} entries"), chart]
    note = "Entries by score; the height is logarithmic, so that small bins show beside large ones."
    return Section("scores", "Scores", "What scores mean", panels=[*panels, figure(join(rows), "Scores", note)])


def threshold_section(results: HeldOutResults) -> Section | None:
    """Return the slider; None where no class has known positives and negatives.

    For each class the page holds how many known positives and known negatives score at least 0.00, 0.01, …, 1.00.
    """
    positives, negatives = (results.labels > 0).sum(axis=0), (results.labels < 0).sum(axis=0)
    measured = np.flatnonzero((positives > 0) & (negatives > 0))
    if not results.knows_absence or not len(measured):
        return None
    columns = measured[np.argsort(-positives[measured], kind="stable")][:_SLIDER_CLASSES]
    cell = np.floor(results.scores.clip(0, 1) * _STEPS).astype(np.int64)
    counts = []
    for c in columns.tolist():
        hits, false = (
            np.bincount(cell[known, c], minlength=_STEPS + 1)[::-1].cumsum()[::-1].tolist()
            for known in (results.labels[:, c] > 0, results.labels[:, c] < 0)
        )
        counts.append({"column": c, "hits": hits, "false": false, "threshold": float(results.thresholds[c])})
    start = float(np.median(results.thresholds[columns]))
    return Section(
        *("threshold", "Threshold", "Try a threshold"),
        limits=limit(len(columns), len(measured), "are counted: those with the most known positives"),
        body=render(
            "report/threshold.html.j2", start=start, steps=_STEPS, counts=json.dumps(counts, separators=(",", ":"))
        ),
    )
