"""Sections of a run's page: the training, thresholds, precision and recall, calibration, histograms of scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.report import svg
from halflabel.report.curves import reliability
from halflabel.report.labels_page import STATES
from halflabel.report.layout import Section, limit
from halflabel.report.run_facts import HeldOutResults
from halflabel.report.svg import Series, figure
from halflabel.system.format import decimal, group_digits, percent, points, shorten
from halflabel.system.html import Html, el, join, render

OTHER_COLUMNS = 6  # columns of the log that are drawn beside the standard ones
_STANDARD = {"epoch", "loss", "lr", "images_per_s", "seconds", "mAP", "assumed_mAP", "select"}
_RATES = {
    "label_proportion": "share labelled",
    "tp_rate": "TP rate",
    "tn_rate": "TN rate",
    "accuracy": "accuracy",
}
_STEPS = 100  # of the threshold slider
_SLIDER_CLASSES = 200


def training_section(log: Sequence[dict[str, Any]]) -> Section | None:
    """Draw the log of a run: over its epochs, or the strengths that were tried; None where there is nothing to see."""
    if any("strength" in line for line in log):
        return _strength_section(log) if len(log) > 1 else None
    if not log:
        return None
    loss = _column(log, "loss")
    assumed = any("assumed_mAP" in line for line in log)
    validation = _column(log, "assumed_mAP" if assumed else "mAP")
    has_validation = bool(np.isfinite(validation).any())
    caption = "what training minimises; losses of different methods cannot be compared"
    caption += ", and with this method the loss may be below 0" if bool((loss < 0).any()) else ""
    panels = [_chart("Training loss", log, {"loss": loss}, caption, "loss")]
    if has_validation:
        best = int(np.nanargmax(validation))
        caption = "over known entries; the model is that of the best epoch"
        if assumed:
            caption = "unknown counted as absent: nothing is known to be absent, and epochs must be ranked by something"
        mark = (float(log[best]["epoch"]), f"best: {points(validation[best])}")
        columns, title = {"mAP": 100 * validation}, "mAP of the held-out images"
        panels.append(_chart(title, log, columns, caption, "mAP", mark=mark, value_format=".1f"))
    rates = {title: values for key, title in _RATES.items() if np.isfinite(values := _column(log, key)).any()}
    if rates:
        caption = "share of all training entries that are known or have a pseudo-label"
        caption += "; rates of the pseudo-labels against the hidden truth" if len(rates) > 1 else ""
        panels.append(_chart("Pseudo-labels of the method", log, rates, caption, "share", y_range=(0, 1)))
    others = [key for key in dict.fromkeys(key for line in log for key in line) if key not in {*_STANDARD, *_RATES}]
    for key in others[:OTHER_COLUMNS]:
        title, values = shorten(key.replace("_", " "), 40), _column(log, key)
        if np.isfinite(values).any():
            panels.append(_chart(title, log, {title: values}))
    lost = int((~np.isfinite(loss)).sum())
    return Section(
        *("learning", "Learning", "How it learned"),
        on="Loss: training images." + (" mAP: held-out images, after each epoch." if has_validation else ""),
        warning=f"Epochs in which the loss was not a finite number: {group_digits(lost)}." if lost else "",
        limits=limit(OTHER_COLUMNS, len(others), "of what the method logged are drawn; log.csv holds all", "columns"),
        panels=panels,
    )


def _strength_section(log: Sequence[dict[str, Any]]) -> Section:
    """Draw the quality of each regularisation strength that the solver tried."""
    tried = sorted((float(line["strength"]), 100 * float(line["out_of_fold_mAP"])) for line in log)
    strengths, quality = np.array(tried).T
    best = strengths[quality.argmax()]
    chart = svg.line_chart(
        [Series("out-of-fold mAP", np.log10(strengths), quality)],
        alt=f"Out-of-fold mAP by regularisation strength, best at {best:g}",
        labels=("log10 of the strength", "mAP"),
        x_range=(float(np.log10(strengths[0])), float(np.log10(strengths[-1]))),
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


def _chart(
    title: str,
    log: Sequence[dict[str, Any]],
    columns: Mapping[str, NDArray[np.float64]],
    caption: str = "",
    y_label: str = "",
    **options: Any,
) -> Html:
    """Draw named columns of the log over the epochs, several with a legend."""
    epochs = _column(log, "epoch")
    series = [Series(name, epochs, values, shade) for shade, (name, values) in enumerate(columns.items(), start=1)]
    last = [(line.name, line.y[np.isfinite(line.y)][-1:]) for line in series]
    alt = f"{title} over {len(log)} epochs, at last: " + ", ".join(f"{name} {v:.4g}" for name, end in last for v in end)
    ends = float(epochs[0]), float(epochs[-1])
    chart = svg.line_chart(series, alt=alt, labels=("epoch", y_label), x_range=ends, **options)
    legend = [(f"f{line.shade}", line.name) for line in series]
    return figure(chart, title, caption, legend if len(legend) > 1 else ())


def score_section(results: HeldOutResults) -> Section:
    """Draw the calibration of the scores, and histograms of the scores of known and unknown entries."""
    ece = results.overall.get("ECE", np.nan)
    alt = f"Share present against mean score in ten bins; calibration error {decimal(ece)}"
    chart = svg.reliability_diagram(reliability(results.scores, results.labels), alt=alt)
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
