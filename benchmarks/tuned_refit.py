"""Frozen backbone, whole network tuned, and tuned with the head fitted again by the solver: test mAP on VOC 2012.

    python benchmarks/tuned_refit.py LABELS.csv PHOTOS [--regimes single,2of20,50%,all] [--seeds 1] [--method an]
        [--backbone fast] [--epochs 10] [--limit 0] [--out FILE.jsonl]

LABELS.csv is that of `strong_base.py`; PHOTOS holds its photos. `frozen` is `halflabel.train` with --tune head. `tuned`
and `refit` are the two heads of --tune all: as tuned, and fitted again by L-BFGS (`training.refit`). `chosen` is the
one that `halflabel.train` uses, by the held-out images.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import halflabel
from halflabel import metrics
from halflabel.features.scoring import score_source
from halflabel.fitting.refit import refit_head
from halflabel.images.sources import open_images
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.runs.folder import RunFolder
from halflabel.runs.new_run import TrainedRun
from strong_base import REGIMES, read_labels


def score(run: TrainedRun, table: Table, photos: Path) -> Any:
    """Return logits and features of the photos of a table by the model of a run."""
    model = run.model
    source = open_images(table.images, photos, model.views, workers=4)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return score_source(model.model.to(device), source, device=device)


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
        run = RunFolder.open(out / "tuned")
        model = tuned.model.model
        line["chosen"] = "tuned"
        if run.tuned_head.exists():
            line["chosen"] = "refit"
            model.head = recipe(options.method).make().head(model.backbone.channels, len(known.classes))
            model.head.load_state_dict(load_file(run.tuned_head))
        tested, trained = (score(tuned, part, options.photos) for part in (test, known))
        line["tuned"] = points(tested.logits)
        held_out = np.flatnonzero(run.split_of(known.images) == 1)
        refitted = refit_head(trained.features, known, recipe(options.method).make, held_out, evaluation=known)
        with torch.no_grad():
            line["refit"], line["strength"] = points(refitted.head(tested.features).logits), refitted.strength
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
