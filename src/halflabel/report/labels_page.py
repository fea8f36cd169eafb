"""What is known of a label table: a section of a run's page, and alone the page of `halflabel inspect --plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.table import Table
from halflabel.report import svg
from halflabel.report.layout import (
    Section,
    WrittenPage,
    limit,
    name_list,
    report_page,
    split_into_panels,
    write_page,
)
from halflabel.report.svg import figure
from halflabel.system.format import group_digits, percent, shorten
from halflabel.system.html import Html

STATES = (("present", "known present"), ("absent", "known absent"), ("unknown", "unknown"))
REGIMES = {
    "full": "Every class is known for every image that has labels.",
    "partial": "Some entries are known to be present, some to be absent, the rest is unknown.",
    "positives-only": "Only presence is known: nothing is known to be absent.",
    "single-positive": "One class per image is known to be present, and nothing else is known.",
    "empty": "Nothing is known.",
}
BAR_CLASSES = 28  # classes whose known labels are drawn as bars


def write_labels_page(labels: Table, path: Path) -> WrittenPage:
    """Write the page of a label table, for `halflabel inspect --plot`."""
    return write_page(path, lambda: report_page(f"{shorten(path.stem, 60)} · labels", [known_labels(labels)]))


def known_labels(labels: Table, training: int | None = None) -> Section:
    """Show how much is known, in total and per class; `training` is the number of images that were trained on."""
    stats = labels.stats
    total = stats.images * stats.classes
    counts = np.array([stats.positives.sum(), stats.negatives.sum(), stats.unknown.sum()])
    shares = ", ".join(
        f"{group_digits(n)} {meaning} ({percent(n, total)})" for n, (_, meaning) in zip(counts, STATES, strict=True)
    )
    split = on = ""
    if training is not None:
        split = f" {group_digits(training)} images to train on, {group_digits(stats.images - training)} held out."
        on = " of the run"
    drawn = min(stats.classes, BAR_CLASSES)
    return Section(
        "labels",
        "Known",
        "What was known",
        on=f"All {group_digits(stats.images)} images{on}.",
        text=(f"{stats.regime.capitalize()} labels. {REGIMES[stats.regime]}{split}", f"{shares}."),
        limits=limit(drawn, stats.classes, "are drawn: those with the most known positives"),
        panels=[*known_per_class(labels), *_per_image(labels)],
    )


def known_per_class(labels: Table) -> list[Html]:
    """Draw how much is known of the classes with the most known positives."""
    stats = labels.stats
    per_class = np.stack([stats.positives, stats.negatives, stats.unknown], axis=1)
    panels = []
    for title, columns in split_into_panels(
        "Known per class", np.argsort(-stats.positives, kind="stable")[:BAR_CLASSES]
    ):
        names = [labels.classes[int(c)] for c in columns]
        alt = "Images known present, known absent and unknown for " + name_list(names)
        states = [state for state, _ in STATES]
        chart = svg.stacked_bars(names, per_class[columns], states, alt=alt, total=max(stats.images, 1))
        panels.append(figure(chart, title, f"a full line is {group_digits(stats.images)} images", STATES))
    return panels


def _per_image(labels: Table) -> list[Html]:
    stats = labels.stats
    histograms = {"Known positives per image": stats.positives_per_image}
    if stats.negatives.any():
        histograms["Known labels per image"] = stats.known_per_image
    panels = []
    for title, spread in histograms.items():
        numbers = np.flatnonzero(spread)
        if len(numbers) > 1:  # all images alike: the text says it
            alt = f"{title}: from {int(numbers[0])} to {int(numbers[-1])}"
            heights, edges = _group_bins(spread)
            chart = svg.histogram(heights, edges, "plain", alt=alt, labels=("number", "images"), integers=True)
            panels.append(figure(chart, title))
    return panels


def _group_bins(spread: NDArray[np.int64], most: int = 40) -> tuple[NDArray[Any], NDArray[Any]]:
    """Group counts per number of labels into at most `most` bins; return heights and edges between the numbers."""
    step = -(-len(spread) // most)
    padded = np.pad(spread, (0, -len(spread) % step))
    return padded.reshape(-1, step).sum(axis=1), np.arange(0, len(padded) + 1, step) - 0.5
