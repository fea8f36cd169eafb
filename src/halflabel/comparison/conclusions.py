"""What trials found and how, in sentences that claim no more than their intervals support."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import Grid
from halflabel.comparison.result import BASES, RESAMPLES, Gap, Growth, Interval, Row, TaskScorer, Trials
from halflabel.system.format import group_digits, points, signed_interval, signed_points

_MANY_SEEDS = 5  # with fewer, the spread over seeds is hardly known
MEANING = {
    "partial": "some labels of every image",
    "dense": "all labels of some images",
    "noisy": "all labels, some wrong",
    "noisy+": "one positive per image, all else negative",
}


def group_gaps(gaps: Iterable[Gap]) -> dict[str, list[Gap]]:
    """Return the differences by the two kinds of labels that they compare, in words."""
    groups: dict[str, list[Gap]] = {}
    for gap in gaps:
        name, other = MEANING.get(gap.strategy, gap.strategy), MEANING.get(gap.other, gap.other)
        wrong = f" ({_percent(1 - gap.other_share)} wrong)" if gap.other in ("noisy", "noisy+") else ""
        title = f"more and fewer labels, {name}" if gap.is_step else f"{name}, against {other}{wrong}"
        groups.setdefault(title, []).append(gap)
    return groups


def conclude(gaps: Sequence[Gap]) -> tuple[str, ...]:
    """Return for each pair of kinds of labels where the interval of the difference excludes 0."""
    compared = group_gaps(gap for gap in gaps if not gap.is_step)
    return tuple(f"{title[0].upper()}{title[1:]}: {_verdicts(group)}." for title, group in compared.items())


def _verdicts(gaps: Sequence[Gap]) -> str:
    kinds = {
        "a higher mAP with": [f"{_percent(gap.share)} ({_difference(gap)})" for gap in gaps if gap.better],
        "a lower mAP with": [f"{_percent(gap.share)} ({_difference(gap)})" for gap in gaps if gap.worse],
        "no significant difference with": [_percent(gap.share) for gap in gaps if not (gap.better or gap.worse)],
    }
    return "; ".join(f"{kind} {', '.join(shares)}" for kind, shares in kinds.items() if shares)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _difference(gap: Gap) -> str:
    return f"{signed_points(gap.difference)} points, {signed_interval(gap.low, gap.high)}"


def conclude_growth(law: Growth) -> str:
    """Return the expected gain of twice the labels, and whether it is worth it."""
    gain, backtest, worth = law.gain, law.backtest, law.worth
    if math.isnan(gain.mean):
        return "Too few runs are finished for a curve: give it more time."
    advice = f"Doubling the labels is expected to give {_between(gain)} points of mAP"
    advice += {
        "no": f": less than the {worth:g} that would make it worth it. Stop labelling more of the same.",
        "yes": f": at least the {worth:g} that make it worth it. Continue labelling.",
        "open": f"; whether it reaches the {worth:g} that would make it worth it is uncertain.",
    }[verdict(gain, worth)]
    if backtest is not None:
        advice += " Backtest: " if backtest.held else " Caution, the backtest failed: "
        advice += (
            f"from half of the labels the same fit predicted {_between(backtest.foretold)} for the last doubling, "
            f"which gave {signed_points(backtest.measured)}."
        )
    return advice


def verdict(gain: Interval, worth: float) -> Literal["yes", "no", "open"]:
    """Return whether a gain of mAP reaches `worth` points, by its interval."""
    return "no" if 100 * gain.high < worth else "yes" if 100 * gain.low >= worth else "open"


def _between(value: Interval) -> str:
    return f"{signed_points(value.mean)} ({signed_interval(value.low, value.high)})"


def conclude_comparison(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return for each set of labels and base which method is best, by how much, and whether that may be chance."""
    oracle = next((row for row in rows if row.role == "oracle"), None)
    ranked: dict[str, list[Row]] = {}
    bases = {row.fit for row in rows}
    for row in rows:
        if row.role != "oracle":
            base = f", {BASES[row.fit]}" if len(bases) > 1 else ""
            ranked.setdefault(row.labels + base, []).append(row)
    return tuple(
        f"Labels {labels}: {_best_method(methods)}{_references(methods, oracle)}" for labels, methods in ranked.items()
    )


def _best_method(rows: Sequence[Row]) -> str:
    """Return a sentence on the best of the rows, which are ordered."""
    best = rows[0]
    others = [row for row in rows[1:] if not math.isnan(row.behind)]
    if not others:
        return f"{best.method} has mAP {points(best.mAP)}; no other method was compared."
    second = others[0]
    if second.is_best:
        return f"{best.method} and {second.method} give every test image the same scores, mAP {points(best.mAP)}."
    naive = f" ({second.reference})" if second.reference else ""
    lead = f"{points(-second.behind, 2)} points of mAP ahead of {second.method}{naive} {_lead_interval(second)}"
    if second.behind_high < 0:
        small = ", but less than 1 point" if second.is_alike else ""
        return f"{best.method} is best, mAP {points(best.mAP)}, {lead}: hardly chance{small}."
    if second.is_alike:
        names = ", ".join(row.method for row in (best, *others) if row is best or row.is_alike)
        return f"alike within 1 point are {names}; {best.method} has mAP {points(best.mAP)}, {lead}."
    close = [row.method for row in others[1:] if row.behind_high >= 0]
    further = f", as may be that over {', '.join(close)}" if close else ""
    seeds = " and more seeds" if best.seeds < _MANY_SEEDS else ""
    return (
        f"{best.method} has the highest mAP, {points(best.mAP)}, {lead}: the lead may be chance{further}; to see a "
        f"difference of 1 point, you need about {group_digits(second.photos_to_see)} test photos{seeds}."
    )


def _references(rows: Sequence[Row], oracle: Row | None) -> str:
    """Return sentences on the naive reading and on full labels, where these were trained."""
    naive = next((row for row in rows if row.role == "naive"), None)
    text = ""
    if naive is not None and naive not in rows[:2] and not math.isnan(naive.behind):
        text += (
            f" The naive reading, {naive.reference}, has {points(naive.mAP)}: {points(-naive.behind, 2)} points less "
            f"{_lead_interval(naive)}."
        )
    if oracle is not None:
        text += f" With {oracle.reference}, {oracle.method} has {points(oracle.mAP)}."
    return text


def _lead_interval(row: Row) -> str:
    """The interval of the lead of the best method over this one."""
    return f"(95 %: {signed_interval(-row.behind_high, -row.behind_low)})"


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
    fits = {candidate.fit for candidate, _ in grid.pairs}
    lines = list[str]()
    if "linear" in fits:
        lines.append(
            "Methods with a linear head were fitted by L-BFGS to all images that are not for the test; strengths, "
            "similar images and settings were selected by out-of-fold scores, on the labels known there."
        )
    if "batches" in fits:
        share = f"{100 * bench.config.held_out:g} %"
        which = "The other methods" if "linear" in fits else "The methods"
        selected = f"epochs and settings were selected by mAP on the labels known of {share} of those images"
        selected = selected if bench.config.held_out else "the last epoch is evaluated"
        lines.append(f"{which} were trained in batches; {selected}.")
        if bench.config.tune == "all" and bench.config.fit != "batches":
            lines.append("Their heads were fitted again by L-BFGS where that ranks the validation images better.")
    if any(row.selected_on == "known positives" for row in rows):
        lines.append("Where no label is known to be absent, unknown ones count as absent for this selection only.")
    if grid.search == "small":
        rates = "in batches learning rates, each three times another, until the best is between two others; then "
        rates = rates if "batches" in fits else ""
        lines.append(f"Search with seed 0, used for the other seeds: {rates}the main option of each method.")
    return lines
