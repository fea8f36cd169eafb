"""Where the ideas of plcl, imcl, srcr, rml and em-apl help on the frozen recipe, by controlled experiments, VOC 2012.

    python benchmarks/papers_on_base.py FEATURES.npy LABELS.csv [--classifier FILE.npz] [--seeds 3] [--jobs 8]
        [--shares 10,30,50,70,90] [--variants bce,imcl] [--out FILE.jsonl]

Features and labels are those of strong_base.py. Each row is one solve on all `train` photos, tested on `val` (mAP),
without similar images, at the strength that out-of-fold scores choose for `bce` with these labels: so rows of one share
and seed differ in the method alone. "10" is exactly 2 of 20 labels per photo, other shares draw each label; "single" is
one positive per photo. In variants with "true" an oracle takes the place of what the method guesses:

    plcl, true guesses     the entries that curriculum labelling picks get their true labels
    imcl, true neighbours  similar images are searched by, and pass on, the true labels
    imcl, true graph       A starts from, and stays at, the co-occurrence of all true labels
    imcl, memory M         similar images are searched among M random photos, not among all
    bce + graph network    plcl's graph network, fitted to the out-of-fold logits of bce on known (or true) labels
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halflabel import metrics
from halflabel.features.feature_transform import FeatureTransform, principal_components
from halflabel.features.heads import Head, Output
from halflabel.fitting.crossfit import COMPONENTS, crossfit
from halflabel.fitting.solver import LinearSolver
from halflabel.labels import drop
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, seeded
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.gnn_head import GnnHead
from halflabel.methods.parts.label_graph import from_cooccurrence
from halflabel.methods.parts.similarity_memory import impute
from halflabel.methods.parts.similarity_rounds import SimilarityRounds
from strong_base import Bench

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bce": ("bce", {}),
    "partial-bce": ("partial-bce", {}),
    "plcl": ("plcl", {}),
    "plcl, theta 1": ("plcl", {"strategy": "a", "theta": 1.0}),
    "plcl, theta 4": ("plcl", {"strategy": "a", "theta": 4.0}),
    "plcl, true guesses": ("plcl", {}),
    "curriculum": ("curriculum", {}),
    "bce + graph network": ("bce", {}),
    "bce + graph network, true": ("bce", {}),
    "srcr": ("srcr", {}),
    "srcr, tau 0.9": ("srcr", {"tau": 0.9}),
    "imcl": ("imcl", {}),
    "imcl, lambda_y 0.1": ("imcl", {"lambda_y": 0.1}),
    "imcl, lambda_y 0.3": ("imcl", {"lambda_y": 0.3}),
    "imcl, linear": ("imcl", {"activation": "linear"}),
    "imcl, A learned": ("imcl", {"graph": "cooccurrence"}),
    "imcl, A fixed": ("imcl", {"graph": "cooccurrence", "label_similarity": "fixed"}),
    "imcl, images fixed": ("imcl", {"image_similarity": "fixed"}),
    "imcl, true neighbours": ("imcl", {}),
    "imcl, true graph": ("imcl", {"label_similarity": "fixed"}),
    "imcl, memory 32": ("imcl", {}),
    "imcl, memory 256": ("imcl", {}),
    "rml": ("rml", {}),
    "rmlc": ("rmlc", {}),
    "em": ("em", {}),
    "em-apl": ("em-apl", {}),
}


class TrueGuesses(Curriculum):
    """Labels the entries that the strategy picks with their true labels."""

    truth: Tensor

    def _label(self, images: Tensor, sweep: Any) -> None:
        before = self.labels.rows(images)
        super()._label(images, sweep)
        after = self.labels.rows(images)
        self.labels.set_rows(images, torch.where((before == 0) & (after != 0), self.truth[images].to(after), after))


class TrueNeighbours(SimilarityRounds):
    """Searches similar images by true labels, and passes true labels on."""

    truth: Tensor

    def absorb(self, sweep: Any, epoch: int) -> dict[str, float]:
        known, self.labels = self.labels, self.truth
        log = super().absorb(sweep, epoch)
        self.labels = known
        return log

    def mixed(self, y: Tensor) -> Tensor:
        return super().mixed(impute(self.truth, y))


class SmallMemory(SimilarityRounds):
    """Searches similar images within random blocks of `memory` images."""

    memory: int

    def absorb(self, sweep: Any, epoch: int) -> dict[str, float]:
        find = self.similarity.neighbours

        def in_blocks(features: Tensor, logits: Tensor, labels: Tensor, groups: Any = None) -> Any:
            order = torch.randperm(len(features), generator=torch.Generator().manual_seed(epoch))
            index, weight = (
                torch.full((len(features), self.similarity.k), -1),
                torch.zeros(len(features), self.similarity.k),
            )
            for block in order.split(self.memory):
                similar = find(features[block], logits[block], labels[block])
                index[block] = torch.where(similar.index >= 0, block[similar.index.clamp(min=0)], -1)
                weight[block] = similar.weights[0]
            return type(similar)(index, (weight,))

        self.similarity.neighbours = in_blocks  # type: ignore[method-assign]
        log = super().absorb(sweep, epoch)
        self.similarity.neighbours = find  # type: ignore[method-assign]
        return log


class Scores(Head):
    """The input is the logits."""

    def forward(self, features: Tensor) -> Output:
        return Output(features, features)


class Experiments(Bench):
    """One transform and one set of principal components for all rows; the strength of bce for each set of labels."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        transform = FeatureTransform.fit(self.train, self.classifier)
        normalised = transform(self.train)
        directions, self.variance = principal_components(normalised, COMPONENTS)
        self.components, self.test_components = normalised @ directions, transform(self.test) @ directions
        self.base: dict[tuple[str, int], Any] = {}

    def share(self, share: str, seed: int) -> Table:
        if share == "single":
            return drop.single_positive(self.known, seed=seed)
        return drop.partial(self.known, int(share) / 100, seed=seed, exact=share == "10")

    def of_bce(self, share: str, seed: int) -> Any:
        """The cross-fit of bce (an without negatives), for the strength and the out-of-fold logits."""
        if (share, seed) not in self.base:
            name = "an" if share == "single" else "bce"
            self.base[share, seed] = crossfit(
                self.train,
                self.share(share, seed),
                recipe(name).make,
                classifier=self.classifier,
                use_similar=False,
                seed=seed,
            )
        return self.base[share, seed]

    def method(self, variant: str, seed: int) -> Method:
        name, options = VARIANTS[variant]
        if variant == "imcl, true graph":
            edges = from_cooccurrence(self.known)
            file = Path(tempfile.mkdtemp()) / "graph.csv"
            names = list(self.known.classes)
            rows = zip(edges.rows, edges.cols, edges.weights, strict=True)
            file.write_text("\n".join(f"{names[j]},{names[i]},{weight}" for j, i, weight in rows) + "\n")
            options = {**options, "graph": str(file)}
        method = seeded(seed, lambda: recipe(name).make(**options)).on_frozen_features()
        truth = torch.from_numpy(self.known.dense())
        if variant == "plcl, true guesses":
            method.relabel = TrueGuesses("a")
            method.relabel.truth = truth
        elif variant == "imcl, true neighbours":
            _change(method, TrueNeighbours, truth=truth)
        elif variant.startswith("imcl, memory"):
            _change(method, SmallMemory, memory=int(variant.split()[-1]))
        return method

    def run(self, share: str, seed: int, variant: str) -> dict[str, Any] | None:
        known = self.share(share, seed)
        if known.stats.regime not in recipe(VARIANTS[variant][0]).serves:
            return None
        base = self.of_bce(share, seed)
        if "graph network" in variant:
            labels = self.known if "true" in variant else known
            logits = fit_graph_network(base, self.test, torch.from_numpy(labels.dense()))
        else:
            solver = LinearSolver(self.method(variant, seed), self.components, known, variance=self.variance)
            solver.fit(base.strength)
            logits = solver.score(self.test_components)
        quality = round(100 * float(metrics.mean_average_precision(logits, self.truth)), 2)
        return {"share": share, "seed": seed, "variant": variant, "strength": base.strength, "mAP": quality}


def _change(method: Method, kind: type[SimilarityRounds], **attributes: Any) -> None:
    method.relabel.__class__ = kind
    for name, value in attributes.items():
        setattr(method.relabel, name, value)


def fit_graph_network(base: Any, test: Tensor, labels: Tensor) -> Tensor:
    """Fit plcl's graph network to out-of-fold logits, by Adam on all images; return the logits of the test photos."""
    torch.manual_seed(0)
    network = GnnHead(Scores(), labels.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    logits, known = torch.from_numpy(base.logits), labels != 0
    for _ in range(150):
        optimizer.zero_grad()
        x = network(logits).logits
        loss = (torch.nn.functional.softplus(-labels * x) * known).sum() / known.sum()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return torch.cat([network(base.head(part).logits).logits for part in test.split(1024)])


_experiments: Experiments | None = None


def _start(options: argparse.Namespace) -> None:
    global _experiments
    torch.set_num_threads(1)
    _experiments = Experiments(options)


def _run(task: tuple[str, int], variants: list[str]) -> list[dict[str, Any]]:
    assert _experiments is not None
    rows = []
    for variant in variants:
        if (row := _experiments.run(*task, variant)) is not None:
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--classifier", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", default="single,10,30,50,70,90")
    parser.add_argument("--variants", default="", help="all, if empty; separated by semicolons")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "papers_on_base.jsonl")
    options = parser.parse_args()
    options.no_similar, options.single = True, None
    variants = options.variants.split(";") if options.variants else list(VARIANTS)
    tasks = [(share, seed) for seed in range(options.seeds) for share in options.shares.split(",")]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    work: Callable[[tuple[str, int]], list[dict[str, Any]]] = partial(_run, variants=variants)
    with (
        ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=_start, initargs=(options,)) as pool,
        options.out.open("w") as file,
    ):
        for rows in pool.map(work, tasks):
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()


if __name__ == "__main__":
    main()
