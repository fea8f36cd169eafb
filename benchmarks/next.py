"""What answers are worth: 2,000 that `halflabel next` asks for against 2,000 random ones, on VOC 2012 photos.

python benchmarks/next.py --labels labels.csv --photos DIR --cache DIR [--methods an,wan] [--seeds 3] [--answers 2000]

Each seed hides all labels of the split `train` but one positive per image, trains a linear head on frozen
EfficientNet-Lite0 features, and lets a simulated person answer from the full labels. The same method then trains again
from the single positives and the answers, with the same settings; the test is the split `val` with all labels. With
`--rounds` the answers are asked for in so many portions, the model trained again after each. Nothing is selected on the
test: epochs are fixed. The strategy was chosen on other seeds, with a fifth of `train` in the place of the test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.data.sources import Features
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.review.questions import choose_questions
from halflabel.system.rng import bits, hash_names
from halflabel.training.config import Settings
from halflabel.training.loop import fit
from voc_frozen import load_features, read_labels

Entries = NDArray[np.int64]  # (K, 2) image and class numbers


def train(name: str, known: LabelTable, source: Features, seed: int, epochs: int) -> Model:
    how = recipe(name)
    method = how.make()
    head = seeded(seed, lambda: method.head(int(source.values.shape[1]), len(known.classes)))
    model = Model(None, head)
    settings = Settings(epochs=epochs, lr=how.lr, weight_decay=how.weight_decay, seed=seed, device="cpu")
    fit(model, method, source, known, settings)
    return model


def at_random(known: LabelTable, count: int, seed: int) -> Entries:
    """Unknown entries, each as likely as any other."""
    unknown = np.argwhere(known.dense() == 0)
    key = bits(seed, hash_names(known.images.array)[unknown[:, 0]], unknown[:, 1])
    return unknown[np.argsort(key, kind="stable")[:count]]


def by_next(known: LabelTable, model: Model, source: Features, count: int, seed: int) -> Entries:
    """What `halflabel next` asks for."""
    scores = torch.sigmoid(score_source(model, source, batch_size=512).logits).numpy()
    cuts = np.full(len(known.classes), 0.5)
    found = choose_questions(scores, known, cuts, count, features=np.asarray(source.values), seed=seed)
    return np.array([(question.image, question.column) for question in found])


def answer(known: LabelTable, entries: Entries, truth: NDArray[np.int8]) -> LabelTable:
    image, column = entries.T
    said = LabelTable.from_entries(known.images, known.classes, image, column, truth[image, column])
    return known.merge(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--methods", default="an")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "next.json")
    asked = parser.parse_args()

    full, whole_test = read_labels(asked.labels, "train"), read_labels(asked.labels, "val")
    train_features, test = (load_features(table, asked.photos, asked.cache, False) for table in (full, whole_test))
    source, test = (Features(torch.from_numpy(np.array(f.values)).float(), f.names) for f in (train_features, test))
    truth, hidden = full.dense(), torch.from_numpy(whole_test.dense())
    rows = []
    for method in asked.methods.split(","):
        for seed in range(asked.seeds):
            start = drop.apply("single-positive", full, seed=seed)

            def measure(model: Model) -> float:
                return 100 * metrics.mean_average_precision(score_source(model, test, batch_size=512).logits, hidden)

            first = train(method, start, source, seed, asked.epochs)
            row = {"method": method, "seed": seed, "before": measure(first)}
            for name in ("random", "next"):
                known, model, found = start, first, 0
                for portion in np.array_split(np.arange(asked.answers), asked.rounds):
                    many = len(portion)
                    if name == "random":
                        entries = at_random(known, many, seed)
                    else:
                        entries = by_next(known, model, source, many, seed)
                    found += int((truth[entries[:, 0], entries[:, 1]] > 0).sum())
                    known = answer(known, entries, truth)
                    model = train(method, known, source, seed, asked.epochs)
                row |= {name: measure(model), f"{name} present": found}
            rows.append(row)
            print(
                f"{method:8} seed {seed}: mAP {row['before']:.2f} before; {row['random'] - row['before']:+.2f} by "
                f"{asked.answers} random answers ({row['random present']} present), {row['next'] - row['before']:+.2f} "
                f"by next ({row['next present']} present)",
                flush=True,
            )
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps({"asked": vars(asked), "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
