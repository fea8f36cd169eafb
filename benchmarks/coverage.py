"""How often 95 % intervals of AP, of mAP and of a difference of mAP hold the truth, on sets drawn from a population.

    python benchmarks/coverage.py [--trials 1] [--settings 3x100 20x400 300x400] [--known 1.0]

The scores of a class are N(0, 1) where it is absent and N(d, 1) where it is present, in part shared by all classes of
an image; d is drawn from 0.5 to 3.5 and the share of images with the class from 0.2 to 20 %, anew for every set. The
truth is the AP on all images of that population, which is an integral; that of mAP is the mean over the classes that
have a known positive in the set. A second model, whose scores are related, gives the differences. Contestants take the
same replicates:

    quantiles    2.5 and 97.5 % of the replicates
    basic        2 value - quantiles
    shifted      quantiles - bias, where bias = mean of the replicates - value
    normal       value ± 1.96 sd of the replicates
    unbiased     value - bias ± 1.96 sd
    limits       metrics.limits, which halflabel prints; of differences compare's `difference`

AP is judged on at most 20 classes of a set, by their number of known positives. Prints a table of coverage and mean
width and writes benchmarks/out/coverage.json. Some five minutes on one core.
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
from halflabel.experiments.result import difference

OUT = Path(__file__).parent / "out" / "coverage.json"
RESAMPLES, JUDGED, SHARED = 400, 20, 0.3
BINS = {1: "1", 2: "2", 3: "3-4", 5: "5-9", 10: "10-29", 30: "30 or more"}  # known positives, by the fewest
SETS = {100: 60, 400: 60, 5000: 20}  # drawn per trial, by images; thrice as many of 3 classes, half of 300
Ends = tuple[float, float]


def true_ap(d: np.ndarray, share: np.ndarray) -> np.ndarray:
    """∫ precision d recall over all cuts, of each class."""
    cut = np.linspace(-8, 12, 2001)
    found, false = share[:, None] * norm.sf(cut - d[:, None]), (1 - share[:, None]) * norm.sf(cut)
    precision = np.divide(found, found + false, out=np.zeros_like(found), where=found + false > 0)
    return -np.trapezoid(precision, norm.sf(cut - d[:, None]), axis=1)


def contestants(value: float, replicates: np.ndarray) -> dict[str, Ends]:
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
    """Per key how many intervals held the truth, held the value, and their widths within the possible."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], list[tuple[bool, bool, float]]] = defaultdict(list)

    def add(self, key: tuple[str, ...], truth: float, value: float, ends: dict[str, Ends], least: float = 0) -> None:
        for name, (low, high) in ends.items():
            width = min(high, 1) - max(low, least)
            self.found[*key, name].append((low <= truth <= high, low <= value <= high, width))

    def means(self) -> dict[str, dict[str, float]]:
        return {
            " | ".join(key): dict(
                zip(("holds_truth", "holds_value", "width"), np.mean(rows, axis=0).tolist(), strict=True)
            )
            | {"intervals": len(rows)}
            for key, rows in self.found.items()
        }


def one_set(rng: np.random.Generator, classes: int, images: int, known: float, tally: Tally, seed: int) -> None:
    share = np.exp(rng.uniform(np.log(0.002), np.log(0.2), classes))
    strengths = [d := rng.uniform(0.5, 3.5, classes), np.maximum(d + rng.uniform(-0.3, 0.6, classes), 0)]
    present = rng.random((images, classes)) < share
    labels = (np.where(present, 1, -1) * (rng.random(present.shape) < known)).astype(np.int8)
    seen = (labels > 0).any(0)
    if not seen.any():
        return
    common, own, other = rng.normal(size=(images, 1)), rng.normal(size=present.shape), rng.normal(size=present.shape)
    noises = [own, 0.8 * own + 0.6 * other]
    logits = [
        torch.from_numpy(SHARED**0.5 * common + (1 - SHARED) ** 0.5 * noise + strength * present)[:, seen]
        for noise, strength in zip(noises, strengths, strict=True)
    ]
    labels = labels[:, seen]
    truth = [true_ap(strength[seen], share[seen]) for strength in strengths]
    first, second = (metrics.bootstrap(one, labels, n=RESAMPLES, seed=seed) for one in logits)
    where = (f"{classes} classes", f"{images} images")
    draws, positives = first.replicates.numpy(), (labels > 0).sum(0)
    ends = contestants(first.mean, draws) | {"limits": (first.mean_low, first.mean_high)}
    tally.add(("mAP", *where), truth[0].mean(), first.mean, ends)
    gap, gaps = first.mean - second.mean, draws - second.replicates.numpy()
    worth = metrics.positives_of_mean(torch.from_numpy(positives))
    _, low, high = difference(np.array([gap]), gaps[None], worth)
    tally.add(
        ("difference", *where), (truth[0] - truth[1]).mean(), gap, contestants(gap, gaps) | {"limits": (low, high)}, -1
    )
    for c in range(min(len(positives), JUDGED)):
        alone = metrics.bootstrap(logits[0][:, c : c + 1], labels[:, c : c + 1], n=RESAMPLES, seed=seed)
        ends = contestants(alone.mean, alone.replicates.numpy()) | {"limits": (alone.mean_low, alone.mean_high)}
        fewest = max(bound for bound in BINS if bound <= positives[c])
        tally.add(("AP", f"{BINS[fewest]} positives"), truth[0][c], alone.mean, ends)


def show(found: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(key.split(" | ")[-1] for key in found))
    rows = list(dict.fromkeys(key.rsplit(" | ", 1)[0] for key in found))
    print(f"{'share that holds the truth (mean width)':42}{'sets':>6}" + "".join(f"{name:>15}" for name in names))
    for row in sorted(
        rows, key=lambda row: [int(word.split("-")[0]) if word[0].isdigit() else word for word in row.split()]
    ):
        cells = [found[f"{row} | {name}"] for name in names]
        shown = "".join(f"{cell['holds_truth']:>8.2f} ({cell['width']:.2f})"[:15].rjust(15) for cell in cells)
        print(f"{row:42}{cells[0]['intervals']:>6}{shown}")
    for name in names:
        parts = [value for key, value in found.items() if key.endswith(f"| {name}")]
        held = sum(part["holds_value"] * part["intervals"] for part in parts) / sum(part["intervals"] for part in parts)
        print(f"{name}: {held:.2%} of the intervals hold the value itself")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=float, default=1)
    every = [f"{classes}x{images}" for classes in (3, 20, 300) for images in SETS]
    parser.add_argument("--settings", nargs="+", default=every, choices=every)
    parser.add_argument("--known", type=float, default=1.0)
    asked = parser.parse_args()
    tally = Tally()
    for setting in asked.settings:
        classes, images = map(int, setting.split("x"))
        sets = round(asked.trials * SETS[images] * (3 if classes == 3 else 0.5 if classes == 300 else 1))
        for number in range(max(sets, 1)):
            one_set(np.random.default_rng((classes, images, number)), classes, images, asked.known, tally, number)
    found = tally.means()
    show(found)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"known": asked.known, "trials": asked.trials, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
