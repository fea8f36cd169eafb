"""What class names add beside labels: test mAP of what `train` fits, with and without names.

python benchmarks/class_names.py FEATURES LABELS.csv [--backbone efficientnet-lite2] [--images 300,1000,0]
    [--protocols partial,single-positive,all] [--draws 5] [--method imcl] [--answers 200,500,1000]

FEATURES is a folder of `halflabel embed`. Labels are complete; without a column `split`, of which `train` is trained
on, 30 % of the images are the test. A draw takes other images and hides other labels, and both columns have the same
draws; `partial` leaves a tenth, 0 images are all of them. Needs the extra `names`.

`--answers 200,500,1000` is a review from nothing instead: half of the questions are the photos that a name ranks
highest, half are drawn at random. Columns: names alone, what learns from the first answers, and what
`train` chooses for the labels known by then.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from halflabel import metrics
from halflabel.features.backbones import build_backbone
from halflabel.features.embed import checked_features
from halflabel.features.heads import Head
from halflabel.features.names import likeness_for
from halflabel.fitting.assembly import pooled_features
from halflabel.fitting.auto import Choice, choose
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.images.stored_features import StoredFeatures
from halflabel.labels import drop, formats
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.runs.from_nothing import FROM_NOTHING, learn_from_answers
from halflabel.runs.new_run import make_config


def read(labels: Path) -> tuple[Table, Table]:
    """Return all labels of the images to train on, and of the test images."""
    fields = {"minus_one": "absent", "zero": "absent"}
    if "tags" in labels.read_text().partition("\n")[0]:
        fields = {"unlisted": "absent"}
    if "split" not in labels.read_text().partition("\n")[0]:
        table = formats.read(labels, Policy(**fields)).table()
        order = np.random.default_rng(0).permutation(len(table))
        return table.subset(order[int(0.3 * len(table)) :]), table.subset(order[: int(0.3 * len(table))])
    parts = ("train", next(part for part in ("val", "test") if f",{part}," in labels.read_text()))
    train, test = (formats.read(labels, Policy(**fields, where={"split": part})).table() for part in parts)
    return train, test


def answer(truth: Table, scores: np.ndarray, count: int, seed: int) -> Labels:
    """Return the answers to questions about photos that names rank high (weight 0), and to random ones."""
    labels, draw = truth.dense(), np.random.default_rng(seed)
    ranked = np.argsort(-scores, 0, kind="stable")[: -(-count // (2 * scores.shape[1]))]
    columns = np.broadcast_to(np.arange(scores.shape[1]), ranked.shape)
    asked = np.stack([ranked.ravel(), columns.ravel()])[:, : count // 2]
    chosen = set(map(tuple, asked.T.tolist()))
    random = [divmod(int(entry), scores.shape[1]) for entry in draw.permutation(scores.size)[:count]]
    random = [entry for entry in random if entry not in chosen][: count - asked.shape[1]]
    image, column = np.concatenate([asked, np.array(random).T], 1)
    weight = np.repeat([0, scores.size / len(random)], [asked.shape[1], len(random)])
    return Labels.build(truth.images, truth.classes, image, column, labels[image, column], "person", weight=weight)


def simulate(
    table: Table, inputs: Inputs, test: Callable[[Head], float], answers: list[int], backbone: str, seed: int
) -> None:
    """Print the test mAP of names alone, and after some answers by both methods."""
    assert inputs.scores_of_names is not None
    nothing = Labels.build(table.images, table.classes, *np.zeros((3, 0), np.int8))
    start = replace(make_config(Choice(FROM_NOTHING), {"backbone": backbone, "names": "on"}, {}), from_nothing=True)
    alone = test(fit(nothing, inputs, start).model.head)
    for count in answers:
        labels = answer(table, inputs.scores_of_names.numpy(), count, seed)
        known = labels.training
        auto = make_config(choose(known.stats), {"backbone": backbone}, {})
        reached = []
        for config in (learn_from_answers(start, known), auto):
            fitted = fit(labels, inputs, config)
            assert fitted.config is not None
            reached.append(test(fitted.model.head))
        print(f"{seed}: {count:5} answers, {known.stats.positives.sum()} present: names alone {alone:.1f}, ", end="")
        print(f"first answers {reached[0]:.1f}, auto {reached[1]:.1f} ({fitted.config.named})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--backbone", default="efficientnet-lite2")
    parser.add_argument("--images", default="300,1000,0")
    parser.add_argument("--protocols", default="partial,single-positive,all")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--answers", help="of a review from nothing")
    parser.add_argument("--method", help="by default that of --method auto")
    args = parser.parse_args()
    full, test = read(args.labels)
    names = [name for name in full.classes if name in set(test.classes)]
    full, test = (table.subset(classes=[list(table.classes).index(name) for name in names]) for table in (full, test))
    backbone, truth = build_backbone(args.backbone), torch.from_numpy(test.dense())
    views = Config(backbone=args.backbone).views(backbone)
    values, held = (
        pooled_features(checked_features(StoredFeatures(table.images, args.features, views), backbone))
        for table in (full, test)
    )
    likeness = likeness_for(names, backbone, "on")

    def test_of(head: Head) -> float:
        with torch.no_grad():
            logits = torch.cat([head(part.float()).logits for part in held.split(1024)])
        return 100 * metrics.mean_average_precision(logits, truth)

    for seed in range(args.draws if args.answers else 0):
        rows = np.random.default_rng(seed).permutation(len(full))[:2000]
        features = Features(values[torch.from_numpy(rows)].float(), full.subset(rows).images)
        inputs = Inputs(lambda features=features: features, backbone, likeness=likeness)
        counts = list(map(int, args.answers.split(",")))
        simulate(full.subset(rows), inputs, test_of, counts, args.backbone, seed)
    if args.answers:
        return
    for images in map(int, args.images.split(",")):
        for protocol in args.protocols.split(","):
            results, seconds = [], []
            for seed in range(args.draws):
                rows = np.random.default_rng(seed).permutation(len(full))[: images or len(full)]
                table = full.subset(rows)
                options = {"partial": {"share": 0.1}}.get(protocol, {})
                table = table if protocol == "all" else drop.apply(protocol, table, seed=seed, **options)
                config = make_config(choose(table.stats, method=args.method), {"backbone": args.backbone}, {})
                features = Features(values[torch.from_numpy(rows)].float(), table.images)
                for each in (None, likeness):
                    begun = time.process_time()
                    inputs = Inputs(lambda features=features: features, backbone, likeness=each)
                    head = fit(Labels.of(table), inputs, config).model.head
                    seconds.append(time.process_time() - begun)
                    results.append(test_of(head))
            without, with_names = np.reshape(results, (-1, 2)).T
            gains, cpu = with_names - without, np.reshape(seconds, (-1, 2)).mean(0)
            print(
                f"{len(rows):5} {protocol:15} {config.method:10} {without.mean():.1f} → {with_names.mean():.1f}  "
                f"gain {gains.mean():+.2f} (least {gains.min():+.2f})  CPU {cpu[0]:.1f} → {cpu[1]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
