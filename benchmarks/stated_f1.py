"""What `halflabel train` states about mAP and F1, with its 95 % interval, against the truth on photos it never saw.

    python benchmarks/stated_f1.py SETS [--voc FOLDER] [--sizes 300 800 3000] [--shares 0.1 0.15 0.2] [--draws 20]

SETS holds corel5k/ and ucmerced/, FOLDER labels.csv and features/ of VOC 2012 (`halflabel embed`). A draw takes so many
photos at random, hides all but a share of the labels, trains, and measures on all other photos. `bias` is the mean of
stated minus true, in points; `holds` the share of the intervals that contain the truth; `width` the mean width of an
interval, in points. Draws are kept in benchmarks/out/stated_f1, so that another measure is tried in seconds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

from halflabel.evaluation.evaluate import evaluate, measure
from halflabel.evaluation.scores import Scores
from halflabel.labels import drop
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from known_sets import KnownSet, Scored, open_sets

OUT = Path(__file__).parent / "out" / "stated_f1"
METRICS = ("mAP", "micro_f1", "macro_f1", "OP", "OR", "ECE")


def draw(data: KnownSet, name: str, size: int, share: float, seed: int) -> Scored:
    """Train on one draw, or read what an earlier run has kept of it."""
    path = OUT / f"{name}-{size}-{share:g}-{seed}.npz"
    if path.exists():
        kept = np.load(path)
        images, classes = Names.numbered(len(kept["logits"])), Names.numbered(kept["logits"].shape[1])
        scores = Scores(images, classes, kept["logits"], kept["fold"], "out-of-fold")
        known = Labels.of(Table.from_dense(kept["known"], images, classes))
        return Scored(scores, known, torch.from_numpy(kept["others"].astype(np.float32)), kept["truth"])
    rows = data.draw(size, seed)
    known = drop.apply("partial", data.table(rows), seed=seed, share=share)
    scored = data.fit(rows, Labels.of(known), seed)
    OUT.mkdir(parents=True, exist_ok=True)
    kept = {"logits": scored.scores.logits, "fold": scored.scores.fold, "known": known.dense()}
    np.savez_compressed(path, **kept, others=scored.others.numpy().astype(np.float16), truth=scored.truth_of_others)
    return scored


def compare(scored: Scored) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield metric, stated value, its interval, and the true value."""
    decisions, stated = evaluate(scored.scores, scored.known)
    truth = measure(
        scored.others, torch.from_numpy(scored.truth_of_others), scored.known.classes, decisions, resamples=0
    )
    values, measured = stated.overall, [not math.isnan(row["AP"]) for row in stated.per_class]
    true = dict(truth.overall)
    # Means over classes are over those that have a value in both.
    for metric, column in (("mAP", "AP"), ("macro_f1", "f1")):
        of_class = [row[column] for row, has in zip(truth.per_class, measured, strict=True) if has and column in row]
        true[metric] = float(np.nanmean(of_class)) if of_class else true[metric]
    for metric in METRICS:
        ends = (values.get(f"{metric}_{end}", math.nan) for end in ("low", "high"))
        yield (metric, values[metric], *ends, true[metric])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--voc", type=Path)
    parser.add_argument("--only", nargs="+", default=["aerial", "corel", "voc"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 800, 3000])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.15, 0.2])
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    sets = {name: data for name, data in open_sets(options.sets, options.voc).items() if name in options.only}
    print(
        f"{'set':8}{'photos':>7}{'known':>7}" + "".join(f"{metric + ': bias, holds, width':>31}" for metric in METRICS)
    )
    for (name, data), size, share in product(sets.items(), options.sizes, options.shares):
        if size > 0.7 * len(data.truth):
            continue
        rows = [list(compare(draw(data, name, size, share, seed))) for seed in range(options.draws)]
        cells = []
        for column in zip(*rows, strict=True):
            _, value, low, high, true = (np.array(part) for part in zip(*column, strict=True))
            holds = np.mean((low <= true) & (true <= high)) if not np.isnan(low).all() else math.nan
            bias, width = 100 * np.nanmean(value - true), 100 * np.nanmean(high - low)
            cells.append(f"{bias:+6.1f} ±{100 * np.nanstd(value - true):4.1f} {100 * holds:4.0f} % {width:5.1f}")
        print(f"{name:8}{size:7}{share:7g}" + "".join(f"{cell:>31}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
