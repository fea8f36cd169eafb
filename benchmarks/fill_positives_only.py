"""Fill from one positive per photo, VOC 2012: is the stated precision reached, and how many missing labels are filled?

    python benchmarks/fill_positives_only.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv [--classifier FILE.npz]
        [--methods n-ls,wan] [--seeds 3] [--draws 10] [--answers 100] [--precision 0.95] [--confidence 0.9]
        [--photos 300]

Features and files are those of strong_base.py; the `train` photos are filled. For each seed (choice of the positive,
folds) a head is fitted, and for each draw the control questions of `halflabel fill` are drawn and answered by the
hidden labels ("difficult" objects are absent). Prints the true precision and the share of the missing positives that
was filled, also under the assumption without answers, and the share at the best cut in hindsight. --photos takes so
many random photos for each seed, and prints the numbers of questions and of other labels that are filled.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import fit_decisions
from halflabel.evaluation.scores import Scores
from halflabel.filling.control import NothingToFill, draw_control, plan_present, unknown_curve
from halflabel.filling.plan import FillOptions
from halflabel.fitting.crossfit import crossfit
from halflabel.labels.labels import Labels
from halflabel.methods.base import recipe, seeded
from strong_base import Bench


class Fill:
    """One head, its known labels and the hidden truth."""

    def __init__(self, bench: Bench, method: str, seed: int, options: argparse.Namespace) -> None:
        self.known, self.truth, self.options = bench.labels("single", seed), bench.known.dense() > 0, options
        features = bench.train
        if options.photos:
            photos = np.sort(np.random.default_rng(seed).choice(len(features), options.photos, replace=False))
            features, self.known, self.truth = features[photos], self.known.subset(photos), self.truth[photos]
        fitted = crossfit(
            features,
            self.known,
            lambda: seeded(seed, recipe(method).make),
            classifier=bench.classifier,
            seed=seed,
            device=bench.device,
        )
        self.scores = Scores(self.known.images, self.known.classes, fitted.logits, fitted.fold, "out-of-fold")
        self.calibration: Calibration = fit_decisions(
            torch.from_numpy(fitted.logits), torch.from_numpy(self.known.dense())
        ).calibration

    def measure(self, answers: Labels | None) -> tuple[float, float]:
        """Return the true precision of the fills, and the share of the missing positives that they are."""
        rows = self.fill(answers)
        right = self.truth[rows.image, rows.column]
        missing = int((self.truth & (self.known.dense() == 0)).sum())
        return float(right.mean()) if len(rows) else 1.0, float(right.sum() / missing)

    def count(self, answers: Labels) -> tuple[int, int, int]:
        """Return the number of questions, of other labels that are filled, and of those that are right."""
        rows, is_asked = self.fill(answers), np.zeros(self.truth.shape, bool)
        is_asked[answers.image, answers.column] = True
        right = self.truth[rows.image, rows.column][~is_asked[rows.image, rows.column]]
        return len(answers.image), len(right), int(right.sum())

    def fill(self, answers: Labels | None) -> Labels:
        options = FillOptions(precision=self.options.precision, confidence=self.options.confidence)
        return plan_present(self.scores, Labels.from_table(self.known), self.calibration, answers, options).rows()

    def draw(self, seed: int) -> Labels:
        drawn = draw_control(
            self.scores,
            self.known,
            self.calibration,
            precision=self.options.precision,
            count=self.options.answers,
            seed=seed,
        )
        image, column, weight = (np.array([item[part] for item in drawn]) for part in (0, 1, 4))
        value = np.where(self.truth[image, column], 1, -1)
        return Labels.build(self.known.images, self.known.classes, image, column, value, weight=weight)

    def hindsight(self) -> float:
        """Return the share of the missing positives above the lowest cut with the precision."""
        unknown = self.known.dense() == 0
        p = unknown_curve(self.calibration, self.scores, self.known).scores(self.scores.logits)[unknown]
        right = self.truth[unknown][np.argsort(-p, kind="stable")]
        precise = np.flatnonzero(np.cumsum(right) / np.arange(1, len(right) + 1) >= self.options.precision)
        return float(right[: precise[-1] + 1].sum() / right.sum()) if len(precise) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "labels", "single"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--classifier", type=Path)
    parser.add_argument("--methods", default="n-ls")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--photos", type=int, default=0)
    parser.set_defaults(no_similar=False)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options)
    for method in options.methods.split(","):
        for seed in range(options.seeds):
            fill = Fill(bench, method, seed, options)
            if options.photos:
                try:
                    counts = np.array([fill.count(fill.draw(draw)) for draw in range(options.draws)])
                except NothingToFill:
                    counts = np.zeros((options.draws, 3), np.int64)
                fills = counts[counts[:, 1] > 0]
                reached = int((fills[:, 2] >= options.precision * fills[:, 1]).sum())
                print(
                    f"{method} seed {seed}: questions, other labels filled, right: {counts.sum(0).tolist()}; precision "
                    f"reached in {reached} of {len(fills)} draws that fill something",
                    flush=True,
                )
                continue
            results: Any = np.array([fill.measure(fill.draw(draw)) for draw in range(options.draws)])
            reached = int((results[:, 0] >= options.precision).sum())
            assumed = fill.measure(None)
            print(
                f"{method} seed {seed}: precision reached in {reached} of {options.draws} draws (lowest "
                f"{results[:, 0].min():.3f}), filled {100 * results[:, 1].mean():.1f} % of the missing positives "
                f"({100 * results[:, 1].min():.1f} to {100 * results[:, 1].max():.1f}); assumed: precision "
                f"{assumed[0]:.3f}, filled {100 * assumed[1]:.1f} %; best in hindsight {100 * fill.hindsight():.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
