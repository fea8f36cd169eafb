"""Frozen backbone, whole network tuned, and tuned with the head fitted again by the solver: test mAP on VOC 2012.

    python benchmarks/tuned_refit.py LABELS.csv PHOTOS [--regimes single,2of20,50%,all] [--seeds 1] [--method an]
        [--backbone fast] [--epochs 10] [--limit 0] [--out FILE.jsonl]

LABELS.csv is that of `strong_base.py`; PHOTOS holds its photos. `frozen` and `tuned` are `halflabel.train` with
--tune head and --tune all. `refit`: a linear head on the features of the tuned backbone, fitted by L-BFGS on the images
that tuning did not hold out; the strength is the one that ranks the held-out images best, because the features of the
other images have seen their labels. `chosen` says whether the refit ranks the held-out images better than the tuned
head: the test mAP of the better one is what a rule by held-out images would reach.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import halflabel
from halflabel import metrics
from halflabel.data.sources import open_images
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe
from halflabel.models.feature_transform import FeatureTransform, principal_components
from halflabel.models.scoring import score_source
from halflabel.runs.folder import RunFolder
from halflabel.runs.new_run import TrainedRun
from halflabel.training.crossfit import COMPONENTS, STRENGTHS, ranking_quality
from halflabel.training.solver import LinearSolver
from strong_base import REGIMES, read_labels


def score(run: TrainedRun, table: LabelTable, photos: Path) -> Any:
    """Return logits and features of the photos of a table by the model of a run."""
    model = run.model
    source = open_images(table.images, photos, model.views, workers=4)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return score_source(model.model.to(device), source, device=device)


def refit(
    name: str, known: LabelTable, features: torch.Tensor, held_out: np.ndarray[Any, Any], test: torch.Tensor
) -> tuple[float, float, torch.Tensor]:
    """Return the best strength, the ranking quality on the held-out images, and the logits of the test images."""
    inside, outside = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    transform = FeatureTransform.fit(features[inside])
    directions, variance = principal_components(transform(features[inside]), COMPONENTS)
    training, judging, tested = (transform(part) @ directions for part in (features[inside], features[outside], test))
    solver = LinearSolver(recipe(name).make(), training, known.subset(inside), variance=variance)
    labels = torch.from_numpy(known.subset(outside).dense())
    tried = []
    for strength in (*[30 * value for value in STRENGTHS[:2]], *STRENGTHS):
        solver.fit(strength)
        tried.append((ranking_quality(solver.score(judging), labels), strength, solver.score(tested)))
    quality, strength, logits = max(tried, key=lambda each: each[0])
    return strength, quality, logits


def measure(options: argparse.Namespace, regime: str, seed: int) -> dict[str, Any]:
    table, training = read_labels(options.labels)
    limit = options.limit or len(training)
    complete, test = (table.subset(np.flatnonzero(part)[:limit]) for part in (training, ~training))
    known = drop.single_positive(complete, seed=seed) if regime == "single" else REGIMES[regime](complete, seed)
    truth = test.dense()
    shared: dict[str, Any] = {"backbone": options.backbone, "seed": seed, "workers": 4}
    line: dict[str, Any] = {"regime": regime, "seed": seed, "method": options.method}

    def points(logits: torch.Tensor) -> float:
        return round(100 * float(metrics.mean_average_precision(logits, truth)), 2)

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        frozen = halflabel.train(known, options.photos, out / "frozen", options.method, **shared)
        line["frozen"] = points(score(frozen, test, options.photos).logits)
        tuned = halflabel.train(
            known, options.photos, out / "tuned", options.method, tune="all", epochs=options.epochs, **shared
        )
        tested, trained = (score(tuned, part, options.photos) for part in (test, known))
        held_out = RunFolder.open(out / "tuned").split_of(known.images) == 1
        line["tuned"] = points(tested.logits)
        strength, quality, logits = refit(options.method, known, trained.features, held_out, tested.features)
        labels = torch.from_numpy(known.subset(np.flatnonzero(held_out)).dense())
        line["refit"], line["strength"] = points(logits), strength
        line["chosen"] = "refit" if quality > ranking_quality(trained.logits[held_out], labels) else "tuned"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--regimes", default="single,2of20,50%%,all".replace("%%", "%"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--method", default="an", help="one that serves all the regimes")
    parser.add_argument("--backbone", default="fast")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=0, help="photos for training and for testing; 0: all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "tuned_refit.jsonl")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file:
        for seed in range(options.seeds):
            for regime in options.regimes.split(","):
                line = json.dumps(measure(options, regime, seed))
                print(line, flush=True)
                file.write(line + "\n")


if __name__ == "__main__":
    main()
