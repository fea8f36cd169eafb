"""Sections of a run's page on how good its scores are: precision and recall, calibration, histograms."""

from __future__ import annotations

import numpy as np

from halflabel.report import svg
from halflabel.report.curves import precision_recall, probability_histograms, reliability
from halflabel.report.labels_page import STATES
from halflabel.report.layout import section, truncation_note
from halflabel.report.run_facts import HeldOutResults
from halflabel.report.svg import figure
from halflabel.system.format import decimal, points, shorten
from halflabel.system.html import Html, count, el, join, percent

CURVE_CLASSES = 23  # classes with a precision-recall curve


def precision_recall_section(results: HeldOutResults) -> Html:
    """Draw precision over recall: all classes together, then class by class, with the chosen thresholds."""
    overall = precision_recall(results.scores.ravel(), results.labels.ravel())
    operating = (results.overall.get("OR", np.nan), results.overall.get("OP", np.nan))
    alt = (
        f"Precision over recall of all classes; at the thresholds recall {decimal(operating[0])}, "
        f"precision {decimal(operating[1])}"
    )
    chart = svg.precision_recall_curve(overall, alt=alt, operating=operating)
    panels = [figure(chart, "all classes", join(["dot: each class", el("br"), "at its threshold"]))]
    positives = (results.labels > 0).sum(axis=0)
    # Without a known negative every curve would be perfect.
    measured = np.flatnonzero((positives > 0) & (results.labels < 0).any(axis=0))
    order = measured[np.argsort(-positives[measured], kind="stable")]
    for c in order[:CURVE_CLASSES].tolist():
        row = results.per_class[c]
        curve = precision_recall(results.scores[:, c], results.labels[:, c])
        alt = (
            f"{shorten(row['class'], 60)}: AP {points(row['AP'])}; at threshold {decimal(row['threshold'])} "
            f"recall {decimal(row['recall'])}, precision {decimal(row['precision'])}"
        )
        operating = (row["recall"], row["precision"])
        chart = svg.precision_recall_curve(curve, alt=alt, operating=operating)
        caption = join([f"AP {points(row['AP'])}", el("br"), f"threshold {_format_threshold(row['threshold'])}"])
        panels.append(el("div", figure(chart, shorten(row["class"], 22), caption), data_class=c))
    return section(
        "recall",
        "Precision and recall",
        el(
            "p",
            "Precision: of the entries called present, the share that is. Recall: of the entries that are present, the "
            "share that is called so. Along a curve from left to right the threshold falls and more entries are called "
            "present. The dot marks the chosen threshold of the class.",
            class_="muted",
        ),
        truncation_note(min(CURVE_CLASSES, len(order)), len(order), "are drawn: those with the most known positives"),
        el("div", *panels, class_="grid small"),
    )


def score_section(results: HeldOutResults) -> Html:
    """Draw the calibration of the scores, and histograms of the scores of known and unknown entries."""
    bins = reliability(results.scores, results.labels)
    ece = results.overall.get("ECE", np.nan)
    alt = f"Share present against mean score in ten bins; calibration error {decimal(ece)}"
    chart = svg.reliability_diagram(bins, alt=alt)
    meaning = "On the dashed line scores are calibrated: of all entries scored 0.8, 80 % are present"
    panels = [figure(chart, "Reliability", f"{meaning}. Bars: 95 % intervals. Calibration error {decimal(ece)}.")]
    spread = probability_histograms(results.scores.clip(0, 1), results.labels, bins=20)
    rows = []
    for (state, meaning), counts in zip(STATES, (spread.present, spread.absent, spread.unknown), strict=True):
        total, high = int(counts.sum()), int(counts[len(counts) // 2 :].sum())
        if total:
            alt = f"Scores of {count(total)} {meaning} entries; {percent(high, total)} score 0.5 or more"
            rows.append(el("h3", f"{meaning}: {count(total)} entries"))
            chart = svg.histogram(counts, spread.edges, state, alt=alt, x_label="score", y_label="entries", log=True)
            rows.append(chart)
    note = "Entries by score; the height is logarithmic, so that small bins show beside large ones."
    panels.append(figure(join(rows), "Scores", note))
    return section("scores", "What scores mean", el("div", *panels, class_="grid"))


def _format_threshold(value: float) -> str:
    """Format a threshold with two digits; a small one with one significant digit, so that it never shows as 0."""
    return decimal(value, 2) if not 0 < value < 0.01 else f"{value:.1g}"
