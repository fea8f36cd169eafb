"""How the numbers of trials were obtained, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import Grid
from halflabel.comparison.result import RESAMPLES, Row, TaskScorer, Trials


def describe_trials(grid: Grid, bench: Bench, scorer: TaskScorer, trials: Trials) -> list[str]:
    """Return sentences that describe how the numbers were obtained."""
    rows = trials.rows
    test, known = bench.test, int((scorer.labels != 0).sum())
    source = "with separate labels" if bench.data.has_own_test else "a part of the images that is never trained on"
    lines = [
        f"Test: {len(test)} images, {source}, the same for all; {known:,} of {scorer.labels.numel():,} entries known, "
        f"unknown ones skipped; mAP over the {int(scorer.useful.sum())} of {len(test.classes)} classes with a known "
        "positive and a known negative there."
    ]
    if scorer.unreadable:
        lines.append(f"{scorer.unreadable} test images could not be read and are left out.")
    if any(label_mask.protocol for label_mask in grid.label_masks):
        lines.append("Labels were hidden from the training and validation images only; which ones depends on the seed.")
    if further := [row for row in rows if row.unused_seeds]:
        named = [f"{row.method} at {row.labels}: {row.unused_seeds}" for row in further]
        lines.append(
            "Ranked by the seeds that all have finished that are ranked together; further finished seeds are listed "
            f"and not used: {', '.join(named)}."
        )
    if apart := [f"{row.method} at {row.labels}" for row in rows if math.isnan(row.behind)]:
        lines.append(f"Not ranked, because of no seed in common with the others: {', '.join(apart)}.")
    lines += [f"Trained: {each}." for each in dict.fromkeys(bench.describe(candidate) for candidate, _ in grid.pairs)]
    lines += _describe_selection(grid, bench, rows)
    lines.append("CF1 and OF1: F1 on the test images at the thresholds that each run chose without them; ± over seeds.")
    lines.append(
        f"95 % intervals: their variance is that over {RESAMPLES} bootstrap samples of the test images plus that of "
        "the mean over seeds (a single seed: images alone), wider where known positives are few; mAP of few "
        "positives is too high on average, so its interval reaches further down than up. Differences to the best are "
        "paired by image and by seed. The best method was selected on these same images, which favours it slightly; "
        "there is no correction for multiple comparisons."
    )
    return lines


def _describe_selection(grid: Grid, bench: Bench, rows: Sequence[Row]) -> list[str]:
    """Return sentences on how strengths, epochs and settings were chosen."""
    solvers = {candidate.solver for candidate, _ in grid.pairs}
    lines = list[str]()
    if "lbfgs" in solvers:
        lines.append(
            "Methods with a linear head were fitted by L-BFGS to all images that are not for the test; strengths, "
            "similar images and settings were selected by out-of-fold scores, on the labels known there."
        )
    if "sgd" in solvers:
        share = f"{100 * bench.config.held_out:g} %"
        which = "The other methods" if "lbfgs" in solvers else "The methods"
        selected = f"epochs and settings were selected by mAP on the labels known of {share} of those images"
        selected = selected if bench.config.held_out else "the last epoch is evaluated"
        lines.append(f"{which} were trained in batches; {selected}.")
        if bench.config.tune == "all" and bench.config.fit != "batches":
            lines.append("Their heads were fitted again by L-BFGS where that ranks the validation images better.")
    if any(row.selected_on == "known positives" for row in rows):
        lines.append("Where no label is known to be absent, unknown ones count as absent for this selection only.")
    if grid.search == "small":
        rates = "the learning rate of methods trained in batches, a third and three times it; then "
        rates = rates if "sgd" in solvers else ""
        lines.append(f"Search with seed 0, used for the other seeds: {rates}the main option of each method.")
        if edge := [f"{row.method} at {row.labels}" for row in rows if row.rate_at_edge]:
            lines.append(f"Selected the highest or lowest rate, so a wider search may be better: {', '.join(edge)}.")
    return lines
