"""HTML sections about a label table: what is known, and which classes occur together.

`halflabel report` shows them on the page of a run; `halflabel inspect --plot` writes a page with these two alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.calibration import has_as_many_negatives
from halflabel.labels.table import Table, top_pairs
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
TABLE_PAIRS = 15
LEAST_TOGETHER = 3  # images with both classes: shares of fewer say little
_LINKS = {"labels": "Known", "pairs": "Together"}


def write_labels_page(table: Table, path: Path) -> WrittenPage:
    """Write the page of a label table, for `halflabel inspect --plot`."""
    return write_page(path, lambda: build_labels_page(table, path.stem))


def build_labels_page(table: Table, name: str) -> str:
    """Return the page of a label table as HTML text."""
    sections = [known_labels_section(table), cooccurrence_section(table)]
    shown = [part for part in sections if part is not None]
    title = f"{shorten(name, 60)} · labels"
    header = el("header", el("h1", title))
    return document(title, [header, section_links(_LINKS, shown), el("main", *shown)])


def known_labels_section(table: Table, training: int | None = None) -> Html:
    """Show how much is known, in total and per class; `training` is the number of images that were trained on."""
    stats = table.stats
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
            chart = svg.histogram(heights, edges, "plain", alt=alt, labels=("number", "images"), integers=True)
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


def cooccurrence_section(table: Table) -> Html | None:
    """List the pairs of classes that occur together most often; None where no pair does."""
    pairs = top_pairs(table, TABLE_PAIRS)
    if not pairs:
        return None
    has_negatives = has_as_many_negatives(table.value)  # else shares would all be 1
    meaning = (
        "P(B | A): of the images with A in which B is known, the share with B. Lift: how many times its usual share "
        "that is; 1 means that A tells nothing about B."
    )
    least = min(LEAST_TOGETHER, pairs[0].together)
    rows = []
    for pair in (pair for pair in pairs if pair.together >= least):
        both = [
            el("td", shorten(name, 26), class_="name", title=shorten(name, 200)) for name in (pair.first, pair.second)
        ]
        numbers = [(pair.probability, 2), (pair.lift, 1)] if has_negatives else []
        cells = [cell(pair.together, count(pair.together)), *(cell(v, decimal(v, d)) for v, d in numbers)]
        rows.append(el("tr", *both, *cells))
    titles = ("A", "B", "images", *(("P(B\u00a0|\u00a0A)", "lift") if has_negatives else ()))
    return section(
        "pairs",
        "What comes together",
        el("p", "The most frequent pairs of classes. ", meaning if has_negatives else "", class_="muted"),
        scroll_table(titles, rows, "Pairs of classes", name_columns=2),
        on=f"Known labels of all {count(table.shape[0])} images.",
    )
