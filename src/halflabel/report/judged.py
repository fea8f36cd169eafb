"""The parts of a run's page that were measured on held-out images: class by class, precision and recall, scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.papers.figures.score_distributions import probability_histograms
from halflabel.report import svg as charts
from halflabel.report.curves import precision_recall, reliability
from halflabel.report.layout import FEW, STATES, cell, left_out, listed, panelled, section, thinly_judged
from halflabel.report.run_facts import Facts, Measured
from halflabel.report.svg import figure
from halflabel.system.format import points
from halflabel.system.html import Html, count, decimal, el, join, percent, short

__all__ = ["calibration", "classes", "curves"]

# What is left out is said, and lies in the run's files.
POINTS = 60  # classes with a point and an interval
ENDS = 14  # of more, the best and the weakest
LINES = 200  # classes in the table
TALL = 30  # lines of a table from which on it scrolls in a box of its own
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
    positives = facts.table.stats().positives
    # Of equal ones those first that most is known of: a full score on one image is no feat.
    held = np.array([row["present"] for row in found.per_class]) if found is not None else positives
    ranked = judged[np.lexsort((-held[judged], -ap[judged]))]
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
            alt = f"{title} of {listed(names)}: from {points(value.max())} down to {points(value.min())}"
            weak = [thinly_judged(row) for row in rows]
            drawn = charts.intervals(names, value, low, high, alt=alt, mean=mean, weak=weak, x_label="AP")
            keys = [("f1 round", "AP, with its 95 % interval")] * (not all(weak))
            keys += [("ring round", f"fewer than {FEW} known positives")] * any(weak)
            keys.append(("mark across", f"mean: {points(mean)}"))
            panels.append(figure(drawn, title, legend=keys))
        if len(ranked) > POINTS:
            counts, edges = np.histogram(100 * ap[ranked], 20, (0, 100))
            alt = f"Average precision of {len(ranked)} classes: median {points(float(np.median(ap[ranked])))}"
            drawn = charts.columns(counts, edges, "plain", alt=alt, x_label="average precision", y_label="classes")
            panels.append(figure(drawn, "All classes"))
    order = np.argsort(-positives, kind="stable")[:LINES]
    weakest_first = order[np.argsort(np.nan_to_num(ap[order], nan=np.inf), kind="stable")]
    elsewhere = "; per_label.csv in the run's folder holds all" if found is not None else ""
    return section(
        "classes",
        "Class by class",
        el("div", *panels, class_="grid") if panels else None,
        left_out(len(order), len(facts.table.classes), "are listed: those with the most known positives" + elsewhere),
        _class_table(facts, weakest_first),
        on=found.where if found is not None else "Nothing was measured: what is known, over all images.",
    )


def _class_table(facts: Facts, order: NDArray[np.int64]) -> Html:
    stats, found = facts.table.stats(), facts.measured
    titles = ["class", "present", "absent", "unknown"]
    if found is not None:
        titles += ["held-out present", "held-out absent", "AP", "95 % interval", "threshold", "precision", "recall"]
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
            cells.append(cell(row["AP"], points(row["AP"])))
            interval = f"{points(row['AP_low'])} – {points(row['AP_high'])}"
            cells.append(cell(row["AP_high"] - row["AP_low"], interval if np.isfinite(row["AP_low"]) else "—"))
            cells += [cell(row[key], decimal(row[key])) for key in ("threshold", "precision", "recall")]
        rows.append(el("tr", *cells))
    heads = [el("th", title, scope="col") for title in titles]
    notes = "Present, absent and unknown: in how many images the class is known to be so, of all images."
    if found is not None:
        notes += " Held-out present, absent: the same, of the held-out images, by which the rest is measured."
        notes += (
            " AP (average precision): how well the model puts images with the class before those without; 100 is best."
        )
        if found.knows_absence:
            notes += " Precision and recall: at the threshold, which is the one with the best F1."
        notes += " A click on a title sorts; intervals sort by their width."
    table = el("table", el("thead", el("tr", *heads)), el("tbody", *rows), class_="sortable")
    wrapped = el(
        "div",
        table,
        class_="scroll tall" if len(rows) > TALL else "scroll",
        tabindex="0",
        role="region",
        aria_label="Table of classes",
    )
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
    panels = [figure(drawn, "all classes", join(["dot: each class", el("br"), "at its threshold"]))]
    positives = (found.labels > 0).sum(axis=0)
    judged = np.flatnonzero((positives > 0) & (found.labels < 0).any(axis=0))  # else every curve is perfect
    order = judged[np.argsort(-positives[judged], kind="stable")]
    for c in order[:RECALL].tolist():
        row = found.per_class[c]
        curve = precision_recall(found.scores[:, c], found.labels[:, c])
        alt = (
            f"{short(row['class'], 60)}: AP {points(row['AP'])}; at threshold {decimal(row['threshold'])} "
            f"recall {decimal(row['recall'])}, precision {decimal(row['precision'])}"
        )
        drawn = charts.recall_curve(curve.recall, curve.precision, alt=alt, at=(row["recall"], row["precision"]))
        panels.append(
            figure(
                drawn,
                short(row["class"], 22),
                join([f"AP {points(row['AP'])}", el("br"), f"threshold {_cut(row['threshold'])}"]),
            )
        )
    return section(
        "recall",
        "Precision and recall",
        el(
            "p",
            "Precision: of the entries called present, the share that is. Recall: of the entries that are present, the "
            "share that is called so. A lower threshold calls more present: from left to right on each curve. The dot "
            "is where the chosen threshold puts the class.",
            class_="said",
        ),
        left_out(min(RECALL, len(order)), len(order), "are drawn: those with the most known positives"),
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
        meaning = "On the dashed line scores mean what they say: of all entries scored 0.8, 80 % are present"
        panels.append(
            figure(drawn, "Reliability", f"{meaning}. Bars: 95 % intervals. Calibration error {decimal(ece)}.")
        )
    spread = probability_histograms(found.scores.clip(0, 1), found.labels, bins=20)
    rows = []
    for (state, meaning), counts in zip(STATES, (spread.present, spread.absent, spread.unknown), strict=True):
        total, high = int(counts.sum()), int(counts[len(counts) // 2 :].sum())
        if total:
            alt = f"Scores of {count(total)} {meaning} entries; {percent(high, total)} score 0.5 or more"
            rows.append(el("h4", f"{meaning}: {count(total)} entries"))
            rows.append(
                charts.columns(counts, spread.edges, state, alt=alt, x_label="score", y_label="entries", log=True)
            )
    histograms = el(
        "figure",
        el(
            "figcaption",
            el("b", "Scores"),
            el(
                "span",
                "Entries by score; the height is logarithmic, so that few can be seen beside many.",
                class_="said",
            ),
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


def _cut(value: float) -> str:
    """A threshold in two digits; a small one in as many as it takes, so that it is not 0."""
    return decimal(value, 2) if not 0 < value < 0.01 else f"{value:.1g}"


def _no_absence(what: str) -> Html:
    return el(
        "p", f"{what}: nothing is known to be absent among the held-out images. Label some negatives.", class_="none"
    )
