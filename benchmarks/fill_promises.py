"""How often `fill` reaches the precision that it promises: 24 cells of made-up scores, labels and answers.

    python benchmarks/fill_promises.py [--draws 100] [--precision 0.95] [--confidence 0.9]

Truth is drawn from σ(z); the model gives a distorted z, with a distortion per class. A cell is a number of photos and
classes, the way labels came to be known, and the share of known labels that are wrong:

    random    a random 15 % of the entries
    photos    all classes of a random 15 % of the photos
    easy      15 %, entries with sure scores five times as often as others
    positives half of the present entries, and nothing else

Where known labels do not show the precision, and `fill` says so, 100 random questions are asked and answered rightly.
`reached` counts the draws whose filled labels, present and absent each, are right as often as promised; nothing filled
breaks no promise. `filled` is the share of the missing present labels that were filled.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product

import numpy as np

from halflabel.evaluation.decisions import calibrate
from halflabel.evaluation.scores import Scores
from halflabel.filling.control import NothingToFill, draw_control, plan_present
from halflabel.filling.plan import FillOptions, FillPlan, plan_fill
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

SIZES = ((300, 5), (1500, 20), (5000, 5))
KINDS = ("random", "photos", "easy", "positives")
WRONG = (0.0, 0.05)


def simulate(images: int, classes: int, kind: str, wrong: float, seed: int) -> tuple[Scores, Table, np.ndarray]:
    """Return scores, known labels and the truth."""
    rng = np.random.default_rng([seed, images, classes, KINDS.index(kind)])
    z = 1.6 * rng.normal(0, 2.2, (images, classes)) + rng.uniform(-4, -0.5, classes)
    truth = np.where(rng.random(z.shape) < 1 / (1 + np.exp(-z)), 1, -1).astype(np.int8)
    logits = rng.uniform(0.4, 0.8, classes) * z + rng.uniform(-1, 1, classes)
    chance = np.full(z.shape, 0.15)
    if kind == "photos":
        chance[:] = rng.random((images, 1)) < 0.15
    elif kind == "easy":
        chance = np.where(np.abs(z) > 3, 0.2, 0.04)
    elif kind == "positives":
        chance = np.where(truth > 0, 0.5, 0.0)
    labels = truth * (rng.random(z.shape) < chance)
    flip = -1 if kind != "positives" else 1
    labels = np.where(rng.random(z.shape) < wrong, flip * labels, labels).astype(np.int8)
    if kind == "positives":  # a wrong label is an absent class that is listed
        listed = (truth < 0) & (rng.random(z.shape) < wrong * (labels > 0).sum() / (truth < 0).sum())
        labels[listed] = 1
    fold = rng.integers(0, 5, images).astype(np.int8)
    names = Names.numbered(images), Names.numbered(classes)
    return Scores(*names, logits.astype(np.float32), fold, "out-of-fold"), Table.from_dense(labels, *names), truth


def plan(
    scores: Scores, table: Table, truth: np.ndarray, options: FillOptions, seed: int, count: int = 100
) -> FillPlan | None:
    """Plan a fill as the command does; None where it has nothing to ask about."""
    if (table.value < 0).any() and not (first := plan_fill(scores, table, options)).unlike:
        return first
    calibration = calibrate(scores.logits, table.dense())
    try:
        asked = draw_control(scores, table, calibration, precision=options.precision, count=count, seed=seed)
    except NothingToFill:
        return None
    image, column = (np.array(part) for part in zip(*((item.image, item.column) for item in asked), strict=True))
    weight = np.array([item.weight for item in asked])
    value = truth[image, column]
    answers = Labels.build(table.images, table.classes, image, column, value, "person:a", weight=weight)
    planned = plan_present(scores, Labels.from_table(table), calibration, answers, options)
    return replace(planned, answered=Labels.from_table(table).append(answers).training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    options = FillOptions(precision=arguments.precision, confidence=arguments.confidence)
    print("cell                              reached  draws that fill  asked  filled  true precision, worst tenth")
    every = []
    for (images, classes), kind, wrong in product(SIZES, arguments.kinds, WRONG):
        rows = []
        for seed in range(arguments.draws):
            scores, table, truth = simulate(images, classes, kind, wrong, seed)
            planned = plan(scores, table, truth, options, seed)
            value = np.zeros_like(truth) if planned is None else planned.rows().training.dense()
            right = [float((truth[value == sign] == sign).mean()) for sign in (1, -1) if (value == sign).any()]
            missing = (truth > 0) & (table.dense() == 0)
            asked = planned is None or bool(planned.check)
            rows.append((min(right, default=1.0), bool(right), asked, (value[missing] > 0).mean()))
        worst, fills, asked_at_all, filled = np.array(rows, float).T
        reached = worst >= arguments.precision
        every.append(reached.mean())
        name = f"{images} x {classes}, {kind}, {100 * wrong:g} % wrong"
        print(
            f"{name:34}{reached.mean():7.2f}{fills.mean():17.2f}{asked_at_all.mean():7.2f}{filled.mean():8.2f}"
            f"{np.quantile(worst, 0.1):12.3f}",
            flush=True,
        )
    print(f"all {np.mean(every):.3f}, lowest {np.min(every):.2f}")


if __name__ == "__main__":
    main()
