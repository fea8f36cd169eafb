"""`taught` on the frozen recipe, VOC 2012: a student with few labels and the scores of another model.

    python benchmarks/teacher.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv --classifier FILE.npz
        --teacher-features OTHER.npy [--photos 300] [--regimes single,2of20] [--seeds 1]

The teacher is a linear head on other features (Lite2), fitted to all labels of a few photos that the student's table
holds with few labels; it scores all training photos. `shuffled` gives the same scores to other photos: the trust must
fall to 0. The last line of each regime is the teacher itself on the test photos.
"""

from __future__ import annotations

import argparse
import csv
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from halflabel import metrics
from halflabel.fitting.crossfit import crossfit
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from strong_base import Bench, make_parser


def write_scores(path: Path, table: Table, scores: np.ndarray[Any, Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", "probability"])
        for image, row in zip(table.images, scores, strict=True):
            writer.writerows([image, name, f"{p:.5f}"] for name, p in zip(table.classes, row, strict=True))


def main() -> None:
    parser = make_parser(__doc__, regimes="single,2of20", seeds=1)
    parser.add_argument("--teacher-features", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options)
    own = argparse.Namespace(**{**vars(options), "features": options.teacher_features, "classifier": None})
    other = Bench(own)
    with TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            rng = np.random.default_rng(seed)
            photos = rng.permutation(len(bench.known))[: options.photos]
            asl = recipe("asl").make
            fitted = crossfit(other.train[photos], other.known.subset(photos), asl, use_similar=False, seed=seed)
            with torch.no_grad():
                scores = torch.sigmoid(fitted.head(other.train).logits).numpy()
                scores[photos] = torch.sigmoid(torch.from_numpy(fitted.logits)).numpy()
                quality = metrics.mean_average_precision(fitted.head(other.test).logits, other.truth)
            files = {"": scores, "shuffled": scores[rng.permutation(len(scores))]}
            for name, values in files.items():
                write_scores(Path(folder) / f"{name}.csv", bench.known, values)
            for regime in options.regimes.split(","):
                for name in ("none", *files):
                    path = "" if name == "none" else str(Path(folder) / f"{name}.csv")
                    make = partial(recipe("taught").make, teacher=path)
                    known = bench.labels(regime, seed)
                    student = crossfit(
                        bench.train, known, make, classifier=bench.classifier, use_similar=bench.use_similar, seed=seed
                    )
                    with torch.no_grad():
                        value = metrics.mean_average_precision(student.head(bench.test).logits, bench.truth)
                    started = make()
                    started.start(known)
                    line = {"regime": regime, "seed": seed, "teacher": name or "lite2", "mAP": round(100 * value, 2)}
                    print(json.dumps({**line, "trust": round(float(started.relabel.trust.mean()), 2)}), flush=True)
            print(json.dumps({"seed": seed, "photos": options.photos, "mAP of the teacher": round(100 * quality, 2)}))


if __name__ == "__main__":
    main()
