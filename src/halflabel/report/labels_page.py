"""HTML sections about a label table: what is known, and which classes occur together.

`halflabel report` shows them on the page of a run; `halflabel inspect --plot` writes a page with these two alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.stats import conditional_probabilities, top_pairs
from halflabel.labels.table import LabelTable
from halflabel.report import svg
from halflabel.report.layout import (
    WrittenPage,
    cell,
    name_list,
    scroll_table,
    section,
    section_links,
    split_into_panels,
    truncation_note,
    write_page,
)
from halflabel.report.svg import figure
from halflabel.system.format import decimal, shorten
from halflabel.system.html import Html, count, document, el, percent

STATES = (("present", "known present"), ("absent", "known absent"), ("unknown", "unknown"))
REGIMES = {
    "full": "Every class is known for every image that has labels.",
    "partial": "Some entries are known to be present, some to be absent, the rest is unknown.",
    "positives-only": "Only presence is known: nothing is known to be absent.",
    "single-positive": "One class per image is known to be present, and nothing else is known.",
    "empty": "Nothing is known.",
}
BAR_CLASSES = 28  # classes whose known labels are drawn as bars
HEATMAP_CLASSES = 14
TABLE_PAIRS = 15
LEAST_TOGETHER = 3  # images with both classes: shares of fewer say little
_LINKS = {"labels": "Known", "pairs": "Together"}


def write_labels_page(table: LabelTable, path: Path) -> WrittenPage:
    """Write the page of a label table, for `halflabel inspect --plot`."""
    return write_page(path, lambda: build_labels_page(table, path.stem))


def build_labels_page(table: LabelTable, name: str) -> str:
    """Return the page of a label table as HTML text."""
    sections = [known_labels_section(table), cooccurrence_section(table)]
    shown = [part for part in sections if part is not None]
    title = f"{shorten(name, 60)} · labels"
    header = el("header", el("h1", title))
    return document(title, [header, section_links(_LINKS, shown), el("main", *shown)])


def known_labels_section(table: LabelTable, training: int | None = None) -> Html:
    """Show how much is known, in total and per class; `training` is the number of images that were trained on."""
    stats = table.stats()
    total = stats.images * stats.classes
    counts = np.array([stats.positives.sum(), stats.negatives.sum(), stats.unknown.sum()])
    count_text = ", ".join(
        f"{count(n)} {meaning} ({percent(n, total)})" for n, (_, meaning) in zip(counts, STATES, strict=True)
    )
    split = on = ""
    if training is not None:
        split = f"{count(training)} images to train on, {count(stats.images - training)} held out."
        on = f"All {count(stats.images)} images of the run."
    order = np.argsort(-stats.positives, kind="stable")[:BAR_CLASSES]
    per_class = np.stack([stats.positives, stats.negatives, stats.unknown], axis=1)
    states = [state for state, _ in STATES]
    panels = []
    for title, columns in split_into_panels("Known per class", order):
        names = [table.classes[int(c)] for c in columns]
        alt = "Images known present, known absent and unknown for " + name_list(names)
        chart = svg.stacked_bars(names, per_class[columns], states, alt=alt, total=max(stats.images, 1))
        panels.append(figure(chart, title, f"a full line is {count(stats.images)} images", STATES))
    histograms = {"Known positives per image": stats.positives_per_image}
    if stats.negatives.any():
        histograms["Known labels per image"] = stats.known_per_image
    for title, spread in histograms.items():
        numbers = np.flatnonzero(spread)
        if len(numbers) > 1:  # all images alike: the text says it
            alt = f"{title}: from {int(numbers[0])} to {int(numbers[-1])}"
            heights, edges = _group_bins(spread)
            chart = svg.histogram(heights, edges, "plain", alt=alt, x_label="number", y_label="images", integers=True)
            panels.append(figure(chart, title))
    return section(
        "labels",
        "What was known",
        el("p", el("b", f"{stats.regime.capitalize()} labels."), " ", REGIMES[stats.regime], " ", split),
        el("p", count_text[:1].upper() + count_text[1:], "."),
        truncation_note(len(order), stats.classes, "are drawn: those with the most known positives"),
        el("div", *panels, class_="grid"),
        on=on or f"All {count(stats.images)} images.",
    )


def _group_bins(spread: NDArray[np.int64], most: int = 40) -> tuple[NDArray[Any], NDArray[Any]]:
    """Group counts per number of labels into at most `most` bins; return heights and edges between the numbers."""
    step = -(-len(spread) // most)
    padded = np.pad(spread, (0, -len(spread) % step))
    return padded.reshape(-1, step).sum(axis=1), np.arange(0, len(padded) + 1, step) - 0.5


def cooccurrence_section(table: LabelTable) -> Html | None:
    """Show which classes occur together: a heatmap and the most frequent pairs; None where no pair does."""
    top = top_pairs(table, 60)
    if not top:
        return None
    stats = table.stats()
    has_negatives = bool(stats.negatives.sum() >= stats.positives.sum())
    chosen = list(dict.fromkeys(name for pair in top for name in (pair.first, pair.second)))[:HEATMAP_CLASSES]
    columns = table.classes.index(chosen)
    columns = columns[np.argsort(-stats.positives[columns], kind="stable")]
    names = [table.classes[int(c)] for c in columns]
    pairs = conditional_probabilities(table)
    seen = pairs.seen[columns][:, columns].toarray()
    together = pairs.together[columns][:, columns].toarray().astype(np.float64)
    if has_negatives:
        shade = np.where(seen > 0, together / np.maximum(seen, 1), np.nan)
        title = "P(column | row)"
        caption = (
            "where the row's class is present: how often the column's class is too, of the images where it is known"
        )
        legend = [("shade zero", "0"), ("shade half", "½"), ("shade one", "1"), ("shade nil", "no image tells")]
    else:
        off_diagonal = together - np.diag(np.diag(together))
        shade = np.sqrt(together / max(float(off_diagonal.max()), 1.0)).clip(0, 1)
        title = "Images with both"
        caption = "counts, not shares: nothing is known to be absent, so shares would all be 1"
        legend = [("shade zero", "no image"), ("shade one", "most images")]
    tips = [
        [
            f"{shorten(a, 40)}, {shorten(b, 40)}: {count(together[i, j])} images with both"
            + (f", {decimal(shade[i, j], 2)} of {count(seen[i, j])} where the second is known" if has_negatives else "")
            for j, b in enumerate(names)
        ]
        for i, a in enumerate(names)
    ]
    first = f"{shorten(top[0].first, 40)} and {shorten(top[0].second, 40)}"
    alt = f"{title} for {name_list(names)}; most often together: {first}"
    heatmap = figure(svg.heatmap(names, shade, tips, alt=alt), title, caption, legend)
    meaning = (
        "P(B | A): of the images with A in which B is known, the share with B. Lift: how many times its usual share "
        "that is; 1 means that A tells nothing about B."
    )
    note = el("p", meaning, class_="muted") if has_negatives else None
    least = min(LEAST_TOGETHER, top[0].together)
    pair_table = _pair_table([pair for pair in top[:TABLE_PAIRS] if pair.together >= least], has_negatives)
    return section(
        "pairs",
        "What comes together",
        truncation_note(len(names), stats.classes, "are drawn: those of the most frequent pairs"),
        el("div", heatmap, el("div", el("p", el("b", "Most frequent pairs")), note, pair_table), class_="grid"),
        on=f"Known labels of all {count(stats.images)} images.",
    )


def _pair_table(pairs: list[Any], has_negatives: bool) -> Html:
    rows = []
    for pair in pairs:
        both = [
            el("td", shorten(name, 26), class_="name", title=shorten(name, 200)) for name in (pair.first, pair.second)
        ]
        numbers = [(pair.probability, 2), (pair.lift, 1)] if has_negatives else []
        cells = [cell(pair.together, count(pair.together)), *(cell(v, decimal(v, d)) for v, d in numbers)]
        rows.append(el("tr", *both, *cells))
    titles = ("A", "B", "images", *(("P(B\u00a0|\u00a0A)", "lift") if has_negatives else ()))
    return scroll_table(titles, rows, "Pairs of classes", name_columns=2)
