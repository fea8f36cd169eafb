"""What `halflabel train` reaches against a plain logistic regression, on photo sets: mAP, CF1 and OF1 of new photos.

    python benchmarks/floor.py SETS [--voc FOLDER] [--sizes 300 1000 3000] [--draws 5] [--names]

SETS holds corel5k/ and ucmerced/, FOLDER labels.csv and features/ of VOC 2012 (`halflabel embed`). A draw takes so many
photos at random and hides labels; all other photos are the test. The floor is fitted to the same vectors, of unit norm
and centred: one strength for all classes by 5-fold mAP on the known labels, mixed with the known labels and
out-of-fold guesses of the 20 nearest photos, present from ½ on. From one positive per photo unknown counts as absent,
and probabilities are divided by the share of the present labels that were given (Elkan and Noto 2008). Printed is the
mean of the floor, and how much more `--method auto` reaches, with the standard error of the paired difference. Draws
are kept in benchmarks/out/floor.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import softplus

from halflabel import metrics
from halflabel.evaluation.evaluate import evaluate
from halflabel.labels import drop
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from known_sets import KnownSet, open_sets

OUT = Path(__file__).parent / "out" / "floor.jsonl"
METRICS = ("mAP", "CF1", "OF1")
LABELS: dict[str, Callable[[Table, int], Table]] = {
    "all": lambda table, seed: table,
    "a fifth": lambda table, seed: drop.partial(table, 0.2, seed=seed),
    "a tenth": lambda table, seed: drop.partial(table, 0.1, seed=seed),
    "one positive": lambda table, seed: drop.single_positive(table, seed=seed),
}
STRENGTHS = (1e-3, 3e-4, 1e-4, 3e-5)


def rates(probability: np.ndarray, truth: np.ndarray, thresholds: float | torch.Tensor) -> dict[str, float]:
    f1 = metrics.precision_recall_f1(probability, truth, thresholds)
    mean = metrics.mean_average_precision(probability, truth)
    return {name: 100 * float(value) for name, value in zip(METRICS, (mean, f1.CF1, f1.OF1), strict=True)}


def logistic(x: torch.Tensor, labels: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit all classes at once, each to the mean loss of its known labels."""
    weight = torch.zeros(x.shape[1], labels.shape[1], requires_grad=True)
    bias = torch.zeros(labels.shape[1], requires_grad=True)
    known, present = (labels != 0).float(), (labels > 0).float()
    solver = torch.optim.LBFGS([weight, bias], max_iter=100, history_size=10, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        solver.zero_grad()
        z = x @ weight + bias
        loss = ((known * (softplus(z) - present * z)).sum(0) / known.sum(0).clamp(min=1)).sum()
        loss = loss + strength * weight.square().sum() / 2
        loss.backward()
        return loss

    solver.step(objective)
    return weight.detach(), bias.detach()


def floor(features: torch.Tensor, known: np.ndarray, others: torch.Tensor) -> np.ndarray:
    """Return the probabilities of other photos."""
    mean = torch.nn.functional.normalize(features).mean(0)
    train, test = (torch.nn.functional.normalize(part) - mean for part in (features, others))
    only_positives = not (known < 0).any()
    labels = torch.from_numpy(np.where(known > 0, 1, -1) if only_positives else known)
    fold = np.random.default_rng(5).integers(0, 5, len(train))
    best = (-1.0, 0.0, np.zeros(0))
    for strength in STRENGTHS:
        held = np.zeros(known.shape, np.float32)
        for number in range(5):
            weight, bias = logistic(train[fold != number], labels[fold != number], strength)
            held[fold == number] = train[fold == number] @ weight + bias
        best = max(best, (metrics.mean_average_precision(held, labels), strength, held), key=lambda each: each[0])
    weight, bias = logistic(train, labels, best[1])
    p, guess = torch.sigmoid(test @ weight + bias).numpy(), 1 / (1 + np.exp(-best[2]))
    if only_positives:
        present = known > 0
        given = np.where(present.any(0), (guess * present).sum(0) / np.maximum(present.sum(0), 1), 1)
        p, guess = np.minimum(1, p / given), np.minimum(1, guess / given)
    guess = np.where(known > 0, 1.0, np.where(known < 0, 0.0, guess))
    near = torch.nn.functional.normalize(test) @ torch.nn.functional.normalize(train).T
    similarity, index = near.topk(20)
    share = torch.softmax(10 * similarity, 1).numpy()
    weight_of_near = 0.3 if (known != 0).all() else 0.5
    return (1 - weight_of_near) * p + weight_of_near * np.einsum("nk,nkc->nc", share, guess[index.numpy()])


def draw(data: KnownSet, size: int, kind: str, seed: int) -> tuple[np.ndarray, Labels, np.ndarray]:
    """Return the numbers of the photos, what is known of them, and the numbers of all others."""
    rows = data.draw(size, seed)
    return rows, Labels.of(LABELS[kind](data.table(rows), seed)), np.setdiff1d(np.arange(len(data.truth)), rows)


def measure(data: KnownSet, size: int, kind: str, seed: int, who: str) -> dict[str, float]:
    rows, known, rest = draw(data, size, kind, seed)
    begun = time.process_time()
    if who == "floor":
        values = rates(floor(data.features[rows], known.training.dense(), data.features[rest]), data.truth[rest], 0.5)
    else:
        scored = data.fit(rows, known, seed)
        decisions, _ = evaluate(scored.scores, known, resamples=0)
        probability = decisions.calibration.scores(scored.others.double())
        values = rates(probability.numpy(), scored.truth_of_others, decisions.thresholds)
    return values | {"seconds": time.process_time() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--voc", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--names", action="store_true", help="start from class names, which needs the extra `names`")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    who = "names" if options.names else "auto"
    sets = open_sets(options.sets, options.voc)
    done: dict[str, dict[str, float]] = {}
    if options.out.exists():
        done = {row.pop("cell"): row for row in map(json.loads, options.out.read_text().splitlines())}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.names:
        for data in sets.values():
            data.use_names()
    cells = [cell for cell in product(sets, options.sizes, options.labels) if cell[1] <= 0.7 * len(sets[cell[0]].truth)]
    for seed, (name, size, kind) in product(range(options.draws), cells):
        for each in ("floor", who):
            key = f"{name} {size} {kind} {seed} {each}"
            if key not in done:
                done[key] = measure(sets[name], size, kind, seed, each)
                with options.out.open("a") as file:
                    file.write(json.dumps({"cell": key, **done[key]}) + "\n")
    print(f"{'set':8}{'photos':>7}  {'labels':14}" + "".join(f"{metric:>20}" for metric in METRICS))
    for name, size, kind in cells:
        line = f"{name:8}{size:7}  {kind:14}"
        for metric in METRICS:
            pair = [
                [done[f"{name} {size} {kind} {seed} {each}"][metric] for seed in range(options.draws)]
                for each in ("floor", who)
            ]
            gain = np.subtract(pair[1], pair[0])
            error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.nan
            line += f"{np.mean(pair[0]):8.1f} {gain.mean():+5.1f} ±{error:4.1f}"
        print(line)


if __name__ == "__main__":
    main()
