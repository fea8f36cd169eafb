"""The parts of a run's page that were measured on held-out images: class by class, precision and recall, scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.report import charts
from halflabel.report.analysis import probability_histograms
from halflabel.report.charts import figure
from halflabel.report.curves import precision_recall, reliability
from halflabel.report.facts import Facts, Measured
from halflabel.report.markup import Html, count, decimal, el, join, percent, short
from halflabel.report.sections import STATES, cell, left_out, listed, panelled, section

__all__ = ["calibration", "classes", "curves"]

# What is left out is said, and lies in the run's files.
POINTS = 60  # classes with a point and an interval
ENDS = 14  # of more, the best and the weakest
LINES = 200  # classes in the table
RECALL = 23  # classes with a curve of their own
LETTERS = 48  # of a class name in a table


def classes(facts: Facts) -> Html:
    """Average precision per class with its interval, as a picture and as a table to sort."""
    found = facts.measured
    ap = (
        np.array([row["AP"] for row in found.per_class])
        if found is not None
        else np.full(len(facts.table.classes), np.nan)
    )
    judged = np.flatnonzero(np.isfinite(ap))
    ranked = judged[np.argsort(-ap[judged], kind="stable")]
    panels = []
    if found is not None and len(ranked):
        mean = found.overall.get("mAP", np.nan)
        if len(ranked) <= POINTS:
            parts = panelled("Average precision", ranked)
        else:
            parts = [(f"The {ENDS} best classes", ranked[:ENDS]), (f"The {ENDS} weakest classes", ranked[-ENDS:])]
        for title, part in parts:
            rows = [found.per_class[int(c)] for c in part]
            names = [str(row["class"]) for row in rows]
            value, low, high = (np.array([row[key] for row in rows]) for key in ("AP", "AP_low", "AP_high"))
            alt = f"{title} of {listed(names)}: from {decimal(value.max())} down to {decimal(value.min())}"
            drawn = charts.intervals(names, value, low, high, alt=alt, mean=mean)
            panels.append(figure(drawn, title, f"with 95 % intervals; the line is the mean, {decimal(mean)}"))
        if len(ranked) > POINTS:
            counts, edges = np.histogram(ap[ranked], 20, (0, 1))
            alt = f"Average precision of {len(ranked)} classes: median {decimal(float(np.median(ap[ranked])))}"
            drawn = charts.columns(counts, edges, "plain", alt=alt, x_label="average precision")
            panels.append(figure(drawn, "All classes", "number of classes"))
    order = np.argsort(-facts.table.stats().positives, kind="stable")[:LINES]
    weakest_first = order[np.argsort(np.nan_to_num(ap[order], nan=np.inf), kind="stable")]
    elsewhere = "; per_label.csv in the run's folder holds all" if found is not None else ""
    return section(
        "classes",
        "Class by class",
        el("div", *panels, class_="grid") if panels else None,
        left_out(len(order), len(facts.table.classes), "with the most known positives are listed" + elsewhere),
        _class_table(facts, weakest_first),
        on=found.where if found is not None else "Nothing was measured: what is known, over all images.",
    )


def _class_table(facts: Facts, order: NDArray[np.int64]) -> Html:
    stats, found = facts.table.stats(), facts.measured
    titles = ["class", "+", "−", "?"]
    if found is not None:
        titles += ["held-out +", "held-out −", "AP", "95 % interval", "threshold", "precision", "recall"]
    rows = []
    for c in order.tolist():
        name = facts.table.classes[c]
        cells = [el("th", short(name, LETTERS), scope="row", class_="name", title=short(name, 200))]
        cells += [cell(float(part[c]), count(part[c])) for part in (stats.positives, stats.negatives, stats.unknown)]
        if found is not None:
            row = found.per_class[c]
            cells += [
                cell(row[key], count(row[key]) if np.isfinite(row[key]) else "—") for key in ("present", "absent")
            ]
            cells.append(cell(row["AP"], decimal(row["AP"])))
            interval = f"{decimal(row['AP_low'])} – {decimal(row['AP_high'])}"
            cells.append(cell(row["AP_high"] - row["AP_low"], interval if np.isfinite(row["AP_low"]) else "—"))
            cells += [cell(row[key], decimal(row[key])) for key in ("threshold", "precision", "recall")]
        rows.append(el("tr", *cells))
    heads = [el("th", title, scope="col") for title in titles]
    notes = (
        "+, − and ? count the images in which the class is known present, known absent and unknown, over all images."
    )
    if found is not None:
        notes += (
            " Precision and recall are those at the threshold, which has the best F1. Intervals sort by their width."
        )
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="sortable")
    wrapped = el("div", table, class_="scroll", tabindex="0", role="region", aria_label="Table of classes")
    return join([el("p", notes, class_="said"), wrapped])


def curves(found: Measured) -> Html:
    """Precision over recall: all classes together, then class by class, with the chosen thresholds."""
    if not found.knows_absence:
        return section("recall", "Precision and recall", _no_absence("Precision cannot be measured"), on=found.where)
    whole = precision_recall(found.scores.ravel(), found.labels.ravel())
    operating = (found.overall.get("OR", np.nan), found.overall.get("OP", np.nan))
    alt = (
        f"Precision over recall of all classes; at the thresholds recall {decimal(operating[0])}, "
        f"precision {decimal(operating[1])}"
    )
    drawn = charts.recall_curve(whole.recall, whole.precision, alt=alt, at=operating)
    panels = [figure(drawn, "all classes", "dot: each class at its own threshold")]
    positives = (found.labels > 0).sum(axis=0)
    judged = np.flatnonzero(positives)
    order = judged[np.argsort(-positives[judged], kind="stable")]
    for c in order[:RECALL].tolist():
        row = found.per_class[c]
        curve = precision_recall(found.scores[:, c], found.labels[:, c])
        alt = (
            f"{short(row['class'], 60)}: AP {decimal(row['AP'])}; at threshold {decimal(row['threshold'])} "
            f"recall {decimal(row['recall'])}, precision {decimal(row['precision'])}"
        )
        drawn = charts.recall_curve(curve.recall, curve.precision, alt=alt, at=(row["recall"], row["precision"]))
        panels.append(
            figure(drawn, short(row["class"], 22), f"AP {decimal(row['AP'])}, t = {decimal(row['threshold'], 2)}")
        )
    return section(
        "recall",
        "Precision and recall",
        el("p", "Up: precision; right: recall. The dot is where the chosen threshold t puts the class.", class_="said"),
        left_out(min(RECALL, len(order)), len(order), "with the most known positives are drawn"),
        el("div", *panels, class_="grid small"),
        on=found.where,
    )


def calibration(found: Measured) -> Html:
    """Whether scores mean what they say, and where scores of known and unknown entries lie."""
    panels: list[Html] = []
    if found.knows_absence:
        bins = reliability(found.scores, found.labels)
        ece = found.overall.get("ECE", np.nan)
        alt = f"Share present against mean score in ten bins; calibration error {decimal(ece)}"
        drawn = charts.calibration(bins.score, bins.present, bins.low, bins.high, bins.entries, alt=alt)
        meaning = "up: share that is present; on the dashed line scores mean what they say"
        panels.append(figure(drawn, "Reliability", f"{meaning}; calibration error {decimal(ece)}"))
    spread = probability_histograms(found.scores.clip(0, 1), found.labels, bins=20)
    rows = []
    for (state, meaning), counts in zip(STATES, (spread.present, spread.absent, spread.unknown), strict=True):
        total, high = int(counts.sum()), int(counts[len(counts) // 2 :].sum())
        if total:
            alt = f"Scores of {count(total)} {meaning} entries; {percent(high, total)} score 0.5 or more"
            rows.append(el("h4", f"{meaning}: {count(total)} entries"))
            rows.append(charts.columns(counts, spread.edges, state, alt=alt, x_label="", log=True))
    histograms = el(
        "figure",
        el(
            "figcaption",
            el("b", "Scores"),
            el("span", "number of entries by score, on a logarithmic scale", class_="said"),
        ),
        *rows,
    )
    return section(
        "scores",
        "What scores mean",
        None if found.knows_absence else _no_absence("Reliability cannot be measured"),
        el("div", *panels, histograms, class_="grid"),
        on=found.where,
    )


def _no_absence(what: str) -> Html:
    return el(
        "p", f"{what}: nothing is known to be absent among the held-out images. Label some negatives.", class_="none"
    )
