"""Coverage of 95 % intervals of AP, mAP and differences of mAP, on image sets drawn from a known population.

    python benchmarks/coverage.py [--trials 1] [--settings 3x100 20x400 300x400] [--known 1.0]

The scores of a class are N(0, 1) for negatives and N(d, 1) for positives; part of the noise is shared by all classes of
an image. For every set, d is drawn from 0.5 to 3.5 and the share of positive images from 0.2 to 20 %. The true AP is
that of the whole population, an integral; the true mAP is the mean over the classes with a known positive in the set. A
second model with correlated scores gives the differences. All kinds of intervals use the same replicates:

    quantiles    2.5 and 97.5 % of the replicates
    basic        2 value - quantiles
    shifted      quantiles - bias, where bias = mean of the replicates - value
    normal       value ± 1.96 sd of the replicates
    unbiased     value - bias ± 1.96 sd
    limits       metrics.limits, which halflabel prints; for differences `experiments.result.difference`

AP is evaluated on at most 20 classes of a set, grouped by their number of known positives. Prints a table of coverage
and mean width and writes benchmarks/out/coverage.json. Takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from halflabel import metrics
from halflabel.comparison.result import difference

OUT = Path(__file__).parent / "out" / "coverage.json"
RESAMPLES, CLASSES_PER_SET, SHARED_NOISE = 400, 20, 0.3
BINS = {1: "1", 2: "2", 3: "3-4", 5: "5-9", 10: "10-29", 30: "30 or more"}  # lower bound of known positives -> name
SETS = {100: 60, 400: 60, 5000: 20}  # images -> sets per trial; three times as many for 3 classes, half for 300
Ends = tuple[float, float]


def true_ap(d: np.ndarray, share: np.ndarray) -> np.ndarray:
    """∫ precision d recall over all thresholds, per class."""
    cut = np.linspace(-8, 12, 2001)
    true_positives, false_positives = share[:, None] * norm.sf(cut - d[:, None]), (1 - share[:, None]) * norm.sf(cut)
    precision = np.divide(
        true_positives,
        true_positives + false_positives,
        out=np.zeros_like(true_positives),
        where=true_positives + false_positives > 0,
    )
    return -np.trapezoid(precision, norm.sf(cut - d[:, None]), axis=1)


def intervals(value: float, replicates: np.ndarray) -> dict[str, Ends]:
    drawn = replicates[np.isfinite(replicates)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    bias, half = drawn.mean() - value, 1.96 * drawn.std(ddof=1) if len(drawn) > 1 else 0.0
    return {
        "quantiles": (low, high),
        "basic": (2 * value - high, 2 * value - low),
        "shifted": (low - bias, high - bias),
        "normal": (value - half, value + half),
        "unbiased": (value - bias - half, value - bias + half),
    }


class Tally:
    """For each key and kind: whether intervals contain the true value and the estimate, and their clipped widths."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, ...], list[tuple[bool, bool, float]]] = defaultdict(list)

    def add(self, key: tuple[str, ...], truth: float, value: float, ends: dict[str, Ends], least: float = 0) -> None:
        for name, (low, high) in ends.items():
            width = min(high, 1) - max(low, least)
            self.rows[*key, name].append((low <= truth <= high, low <= value <= high, width))

    def means(self) -> dict[str, dict[str, float]]:
        return {
            " | ".join(key): dict(
                zip(("holds_truth", "holds_value", "width"), np.mean(rows, axis=0).tolist(), strict=True)
            )
            | {"intervals": len(rows)}
            for key, rows in self.rows.items()
        }


def simulate_set(rng: np.random.Generator, classes: int, images: int, known: float, tally: Tally, seed: int) -> None:
    share = np.exp(rng.uniform(np.log(0.002), np.log(0.2), classes))
    strengths = [d := rng.uniform(0.5, 3.5, classes), np.maximum(d + rng.uniform(-0.3, 0.6, classes), 0)]
    present = rng.random((images, classes)) < share
    labels = (np.where(present, 1, -1) * (rng.random(present.shape) < known)).astype(np.int8)
    seen = (labels > 0).any(0)
    if not seen.any():
        return
    shared, own, other = rng.normal(size=(images, 1)), rng.normal(size=present.shape), rng.normal(size=present.shape)
    noises = [own, 0.8 * own + 0.6 * other]
    logits = [
        torch.from_numpy(SHARED_NOISE**0.5 * shared + (1 - SHARED_NOISE) ** 0.5 * noise + strength * present)[:, seen]
        for noise, strength in zip(noises, strengths, strict=True)
    ]
    labels = labels[:, seen]
    truth = [true_ap(strength[seen], share[seen]) for strength in strengths]
    first, second = (metrics.bootstrap(scores, labels, n=RESAMPLES, seed=seed) for scores in logits)
    where = (f"{classes} classes", f"{images} images")
    draws, positives = first.replicates.numpy(), (labels > 0).sum(0)
    ends = intervals(first.mean, draws) | {"limits": (first.mean_low, first.mean_high)}
    tally.add(("mAP", *where), truth[0].mean(), first.mean, ends)
    gap, gaps = first.mean - second.mean, draws - second.replicates.numpy()
    worth = metrics.positives_of_mean(torch.from_numpy(positives))
    _, low, high = difference(np.array([gap]), gaps[None], worth)
    tally.add(
        ("difference", *where), (truth[0] - truth[1]).mean(), gap, intervals(gap, gaps) | {"limits": (low, high)}, -1
    )
    for c in range(min(len(positives), CLASSES_PER_SET)):
        alone = metrics.bootstrap(logits[0][:, c : c + 1], labels[:, c : c + 1], n=RESAMPLES, seed=seed)
        ends = intervals(alone.mean, alone.replicates.numpy()) | {"limits": (alone.mean_low, alone.mean_high)}
        fewest = max(bound for bound in BINS if bound <= positives[c])
        tally.add(("AP", f"{BINS[fewest]} positives"), truth[0][c], alone.mean, ends)


def show(means: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(key.split(" | ")[-1] for key in means))
    rows = list(dict.fromkeys(key.rsplit(" | ", 1)[0] for key in means))
    print(f"{'coverage (mean width)':42}{'sets':>6}" + "".join(f"{name:>15}" for name in names))
    for row in sorted(
        rows, key=lambda row: [int(word.split("-")[0]) if word[0].isdigit() else word for word in row.split()]
    ):
        cells = [means[f"{row} | {name}"] for name in names]
        shown = "".join(f"{cell['holds_truth']:>8.2f} ({cell['width']:.2f})"[:15].rjust(15) for cell in cells)
        print(f"{row:42}{cells[0]['intervals']:>6}{shown}")
    for name in names:
        parts = [value for key, value in means.items() if key.endswith(f"| {name}")]
        held = sum(part["holds_value"] * part["intervals"] for part in parts) / sum(part["intervals"] for part in parts)
        print(f"{name}: {held:.2%} of the intervals contain the estimate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=float, default=1)
    every = [f"{classes}x{images}" for classes in (3, 20, 300) for images in SETS]
    parser.add_argument("--settings", nargs="+", default=every, choices=every)
    parser.add_argument("--known", type=float, default=1.0)
    args = parser.parse_args()
    tally = Tally()
    for setting in args.settings:
        classes, images = map(int, setting.split("x"))
        sets = round(args.trials * SETS[images] * (3 if classes == 3 else 0.5 if classes == 300 else 1))
        for number in range(max(sets, 1)):
            simulate_set(np.random.default_rng((classes, images, number)), classes, images, args.known, tally, number)
    means = tally.means()
    show(means)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"known": args.known, "trials": args.trials, "found": means}, indent=1) + "\n")


if __name__ == "__main__":
    main()
