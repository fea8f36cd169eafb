"""Cross-fitting on frozen features: every training image is scored by models that saw none of its labels.

One call fits the whole frozen recipe: normalisation, strength of regularisation, similar images and the final head.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation.ranking import (
    has_negatives_to_rank,
    ranking_quality,
    ranking_quality_of_classes,
    sampling_step,
)
from halflabel.features.feature_transform import BLOCK, Classifier, FeatureTransform, principal_components
from halflabel.features.heads import NormalisedLinear
from halflabel.features.names import NameScores
from halflabel.features.similar_images import KEY_SIZE, SimilarImages, nearest_images
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.measured import Measured, choose_members
from halflabel.fitting.solver import AverageSolver, LinearSolver
from halflabel.fitting.trust import choose_trust
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.system import memory
from halflabel.system.threads import use_free_cores

FOLDS = 5
STRENGTHS = (1e-3, 3e-4, 1e-4, 3e-5)
_TRIAL = 0.5  # trust in class names that is compared with none
_FEW_POSITIVES = 25  # known per class: fewer choose a strength by chance
COMPONENTS = 768  # principal components of the normalised features that heads are fitted on
WEAKEST, STRONGEST = 1e-6, 3e-2  # how far the path of strengths is extended when its end is best
# How many similar images, how sharply their similarity counts and their weight in the score: the first pair, unless
# another one is clearly better on known labels. Few labels choose by chance.
_COUNT, _MIXES = 80, ((10.0, 0.3), (10.0, 0.5), (20.0, 0.3))
REFERENCES = 100_000  # images at most that similar ones are searched among: a random choice of more
LARGEST_SEARCH = 10**10  # pairs of images compared; for more than 100,000 images there are fewer references
_SCORED = 1 << 16  # images scored at once
# Similar images are left out if they lower the quality by more than this. A small loss can be a gain: they raise
# present labels that are not known, which the quality takes for mistakes where only positives are known.
_LARGEST_LOSS = 0.01
_LARGEST_SAMPLE = 16384  # images that the principal components are computed from
LARGE = 10**7  # entries (images × classes) from which on there are fewer folds, and a sample of classes chooses
LARGE_FOLDS = 3
_GROWTH = 1.2  # from so many times the labels on, folds and strength are chosen anew
_FURTHER_ITERATIONS = 6  # of L-BFGS, from the solution for fewer labels

MakeMethod = Callable[[], Method]
Heads = list[tuple[Tensor, Tensor]]  # weights and biases, by fold


class Basis(NamedTuple):
    """Principal components (M, k) of the normalised features of the readable images."""

    transform: FeatureTransform
    rows: NDArray[np.int64]  # (M,) the readable images
    features: Tensor
    directions: Tensor  # (D, k)
    variance: Tensor  # (k,)
    scorer: NameScores | None = None
    names: Tensor | None = None  # (M, C) its scores

    @classmethod
    def of(
        cls,
        features: Tensor,
        classifier: Classifier | None = None,
        *,
        blocks: Sequence[int] | None = None,
        of_backbone: bool = True,
        device: str = "cpu",
    ) -> list[Basis]:
        """Take pooled features (N, D), NaN rows for unreadable images; of two blocks, both and each alone.

        A first block of another length than the second is not taken alone: it would have no class maps.
        """
        readable = ~torch.cat([torch.isnan(part).any(1) for part in torch.split(features, BLOCK)])
        rows = readable.nonzero()[:, 0]
        with use_free_cores():
            whole = FeatureTransform.fit(features, classifier, blocks=blocks, of_backbone=of_backbone, device=device)
            left_out = {1: (), 2: (1, 0) if len(set(whole.blocks)) == 1 else (0,)}[len(whole.blocks)]
            parts = [whole.without(block) for block in left_out]
            return [cls(each, rows.numpy(), *to_components(each, features, rows)) for each in (whole, *parts)]

    def with_names(self, scorer: NameScores | None, names: Tensor) -> Basis:
        """Return the same with scores from class names (N, C) of all images."""
        return self._replace(scorer=scorer, names=names[torch.from_numpy(self.rows)].to(self.features.device))


@dataclass(frozen=True)
class CrossFit:
    """The scores of the training images by models that did not see their labels, and the head of all images."""

    logits: NDArray[np.float32]  # (N, C) out-of-fold, similar images included; NaN for unreadable images
    fold: NDArray[np.int8]  # (N,) the fold of each image
    strength: float
    tried: dict[float, float]  # strength -> quality of the out-of-fold ranking, without similar images
    quality: float
    known: int  # labels for which the strength was chosen among all
    _task: _Task
    chosen_strength: float  # among all
    members: tuple[int, ...]  # numbers of the methods that are averaged
    measured: Sequence[Measured]  # what `--method auto` compared
    next_factor: float  # of the strength that a further fit tries; 1 where the strength was given

    def is_near(self, table: Table) -> bool:
        """Return whether a fit to this table can start from this one: with few more labels, and nearly its strength."""
        strengths = sorted((self.strength, self.chosen_strength))
        return table.known < _GROWTH * self.known and strengths[1] < 5 * strengths[0]

    @cached_property
    def head(self) -> NormalisedLinear:
        """The head, fitted to all images when it is first needed."""
        with use_free_cores():
            return self._task.final_head(self.strength)

    @property
    def log(self) -> list[EpochLog]:
        """One line per strength that was tried, in order."""
        return [
            EpochLog({"epoch": number, "strength": strength, "out_of_fold_mAP": quality})
            for number, (strength, quality) in enumerate(self.tried.items(), 1)
        ]

    @property
    def trust_in_names(self) -> str:
        """The trust in class names, in words; "" where they are not used."""
        if (trust := self._task.trust) is None:
            return ""
        return f"trust in class names {trust.mean():.2f} ({trust.min():.2f} to {trust.max():.2f} by class)"

    @property
    def choice(self) -> str:
        """What the out-of-fold scores chose, in words."""
        similar, mixed = self.head.similar, ""
        if similar is not None:
            mixed = f", {similar.count} similar images with weight {similar.weight:.1g}"
            readable = int(np.count_nonzero(~np.isnan(self.logits[:, 0])))
            if (references := len(similar.keys)) < readable:
                mixed += f" (among {references:,} training images, chosen at random)"
        names = f", {self.trust_in_names}" if self.trust_in_names else ""
        blocks = f", {words}" if (words := self.head.transform.words) else ""
        return f"chosen by out-of-fold scores: strength {self.strength:g}{names}{mixed}{blocks}"


def crossfit(
    features: Tensor | Sequence[Basis],
    table: Table,
    make_method: MakeMethod | Sequence[MakeMethod],
    *,
    measure: bool = False,
    classifier: Classifier | None = None,
    strength: float | None = None,
    use_similar: bool = True,
    evaluation: Table | None = None,
    unchosen: Table | None = None,
    folds: int | None = None,
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    start: CrossFit | None = None,
) -> CrossFit:
    """Fit a linear head to pooled features (N, D), NaN rows for unreadable images, in the order of `table`.

    `ranking_quality` of the out-of-fold scores on the labels of `evaluation` chooses the strength, the basis and
    whether similar images are used; with `measure` also the methods of which the logits are averaged. The labels of
    `unchosen` choose the trust in class names: answers to questions that the names chose cannot tell their worth.

    Guesses of similar images must depend neither on the image they come from nor on the image they are passed to: for
    each pair of folds a model is fitted without both. Of the 3 folds of large tables the first alone chooses, on a
    sample of classes: most losses are solved class by class, so that a sample chooses like all of them.
    """
    make_methods = make_method if isinstance(make_method, Sequence) else [make_method]
    if start is not None and start.is_near(table):
        return _fit_further(start, table, make_methods, table if evaluation is None else evaluation)
    is_large = table.shape[0] * table.shape[1] >= LARGE
    folds = folds or (LARGE_FOLDS if is_large else FOLDS)
    bases = Basis.of(features, classifier, device=device) if isinstance(features, Tensor) else features
    basis = bases[0]
    rows, device = basis.rows, str(basis.features.device)
    if len(rows) < 2 * folds:
        raise UserError(f"{len(rows)} readable images cannot be divided into {folds} folds", "use more images")
    fold_of_all = assign_parts(table, [1 / folds] * folds, groups=groups, seed=seed)
    fold = torch.from_numpy(fold_of_all[rows]).to(device)
    judged = (table if evaluation is None else evaluation).subset(rows)
    pairs = folds * (folds - 1) // 2
    searches = len(bases) + len(make_methods) - 1
    attempts = 0 if strength is not None else searches * len(STRENGTHS) * (1 if is_large else folds)
    fold_fits = folds if is_large or strength is not None else 0
    total, count = attempts + fold_fits + pairs * use_similar, itertools.count(1)

    def done() -> None:
        if progress is not None:
            number = next(count)
            progress(number, max(total, number))

    tried: dict[float, float] = {}
    factor = 1.0 if strength is not None else 3.0

    with use_free_cores():
        task = _Task(make_methods, basis, table.subset(rows), fold, folds, judged, basis.names, done=done)
        members = tuple(range(len(make_methods)))
        measured: list[Measured] = []
        if strength is None:
            choices = []
            choose = _choose_strength_by_sample if is_large else _choose_strength
            times = [time.perf_counter()]
            for each in bases:
                attempt = replace(task, make_methods=make_methods[:1], basis=each, scored={})
                choices.append((*choose(attempt), attempt))
            # The mean over strengths: the best of few labels is best by chance.
            strength, tried, task = max(choices, key=lambda choice: np.mean([choice[1][each] for each in STRENGTHS]))
            if len(make_methods) > 1:
                attempts_of_all = [(strength, task)]
                for make in make_methods[1:]:
                    times.append(time.perf_counter())
                    attempt = replace(task, make_methods=[make], scored={}, heads=[])
                    attempts_of_all.append((choose(attempt)[0], attempt))
                if measure:
                    seconds = np.diff([*times, time.perf_counter()]).tolist()
                    members, measured = choose_members([attempt.judged for _, attempt in attempts_of_all], seconds)
                strength, task = _average([attempts_of_all[member] for member in members])
        if not len(task.out_of_fold):
            task.out_of_fold = _score_folds(task, _solvers(task), strength)
        if task.names is not None:
            known = judged if unchosen is None else unchosen.subset(rows)
            use = _trust_names_by_sample if is_large else _trust_names
            strength = use(task, strength, torch.from_numpy(known.dense()).to(device))
        logits = task.out_of_fold
        quality = task.quality(logits)
        tried = tried or {strength: quality}
        if use_similar:
            logits, quality = _mix_similar(task, strength, quality, is_large)
    of_all = task.of_all(logits, len(table))
    return CrossFit(
        of_all, fold_of_all, strength, tried, quality, table.known, task, strength, members, measured, factor
    )


def to_components(transform: FeatureTransform, features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the principal components (M, k) of some features (N, D), their directions (D, k) and variances (k,).

    The features are normalised first, on the device of the transform. The directions come from a sample of the images.
    """
    device = transform.mean.device
    sample = features[rows[:: -(-len(rows) // _LARGEST_SAMPLE)]].to(device)
    directions, variance = principal_components(transform(sample), COMPONENTS)
    what = f"the features of {len(rows)} images take"
    components = memory.scratch_zeros((len(rows), directions.shape[1]), what=what, device=device)
    for into, part in zip(torch.split(components, BLOCK), torch.split(rows, BLOCK), strict=True):
        into.copy_(transform(features[part].to(device)) @ directions)
    return components, directions, variance


def _score(solver: LinearSolver | AverageSolver, task: _Task, rows: Tensor) -> Tensor:
    return torch.cat([solver.score(task.take(part)) for part in torch.split(rows, _SCORED)])


@dataclass
class _Task:
    """Principal components, labels and folds of the readable training images; and what was fitted to them."""

    make_methods: Sequence[MakeMethod]  # whose logits are averaged
    basis: Basis
    table: Table
    fold: Tensor
    folds: int
    evaluation: Table
    names: Tensor | None = None  # (N, C) scores from class names
    trust: Tensor | None = None  # (C,) the logits start from trust · names
    scored: dict[float, tuple[Tensor, Heads]] = field(default_factory=dict)  # by strength, until names are trusted
    heads: Heads = field(default_factory=list)  # weights and biases without each fold
    similar: _Similar | None = None  # where similar images are used
    guesses: list[Tensor] = field(default_factory=list)  # for the references (R, C), by fold
    factors: Sequence[float] = ()  # strengths of the methods, relative to that of the first; (): the same
    # The scores that chose the strength, and their labels.
    judged: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.empty(0), torch.empty(0)))
    done: Callable[[], None] = lambda: None  # called after each solve

    def __post_init__(self) -> None:
        self.features, device = self.basis.features, self.basis.features.device
        self.evaluation_labels = torch.from_numpy(self.evaluation.dense()).to(device)
        self.rows_of_fold = [(self.fold == number).nonzero()[:, 0] for number in range(self.folds)]
        self.out_of_fold = torch.empty(0)  # (N, C) logits
        # The images that similar ones are searched among, and their labels.
        count = min(REFERENCES, LARGEST_SEARCH // len(self.features))
        chosen = torch.randperm(len(self.features), generator=torch.Generator().manual_seed(0))[:count].sort()[0]
        self.references = chosen.to(device)
        self.reference_labels = torch.from_numpy(self.table.subset(chosen.numpy()).dense()).to(device)

    def sample(self) -> _Task:
        """Return the same task for the classes that the quality is measured on."""
        columns = np.arange(0, self.table.shape[1], sampling_step(self.table.shape))
        table, evaluation = (table.subset(classes=columns) for table in (self.table, self.evaluation))
        names, trust = (None if part is None else part[..., columns] for part in (self.names, self.trust))
        sampled = replace(self, table=table, evaluation=evaluation, names=names, trust=trust)
        if len(self.out_of_fold):
            sampled.out_of_fold = self.out_of_fold[:, torch.from_numpy(columns).to(self.fold.device)]
        return sampled

    def solver(self, rows: Tensor, start: tuple[Tensor, Tensor] | None = None) -> LinearSolver | AverageSolver:
        """Return a solver for the images of a (N,) mask."""
        index = rows.nonzero()[:, 0]
        table, features = self.table.subset(index.cpu().numpy()), self.take(index)
        how: dict[str, Any] = {"variance": self.basis.variance, "start": start, "trust": self.trust}
        solvers = [LinearSolver(make(), features, table, **how) for make in self.make_methods]
        return solvers[0] if len(solvers) == 1 else AverageSolver(solvers, self.factors or [1.0] * len(solvers))

    def take(self, rows: Tensor) -> Tensor:
        """Return the features of some images, block by block, and their scores from class names beside them."""
        parts = [self.features] if self.trust is None or self.names is None else [self.features, self.names]
        shape, what = (len(rows), sum(part.shape[1] for part in parts)), f"the features of {len(rows)} images take"
        taken = memory.scratch_zeros(shape, what=what, device=self.features.device)
        for into, block in zip(torch.split(taken, BLOCK), torch.split(rows, BLOCK), strict=True):
            torch.cat([part[block] for part in parts], 1, out=into)
        return taken

    def final_head(self, strength: float) -> NormalisedLinear:
        """Fit the head to all images; similar images guess by known labels, and out-of-fold scores elsewhere."""
        final = self.solver(torch.ones_like(self.fold, dtype=torch.bool))
        final.fit(strength)
        scorer = None if self.trust is None else self.basis.scorer
        head = NormalisedLinear(self.basis.transform, len(self.table.classes), names=scorer)
        head.linear.weight.data = final.weight @ self.basis.directions.T
        head.linear.bias.data = final.bias
        head.trust = self.trust
        if self.similar is not None:
            head.similar = SimilarImages.build(
                self.basis.directions @ self.similar.projection,
                (self.features @ self.similar.projection)[self.references],
                self.known_or(torch.sigmoid(self.out_of_fold[self.references])),
                weight=self.similar.weight,
                count=self.similar.images.shape[1],
                sharpness=self.similar.sharpness,
            )
        return head.cpu().eval()

    def of_all(self, logits: Tensor, images: int) -> NDArray[np.float32]:
        """Return the logits of all images, NaN for unreadable ones."""
        result = np.full((images, logits.shape[1]), np.nan, np.float32)
        result[self.basis.rows] = logits.cpu().numpy()
        return result

    def known_or(self, probabilities: Tensor) -> Tensor:
        """Replace the probabilities (R, C) of known entries of the references by 1 and 0."""
        labels = self.reference_labels
        return torch.where(labels == 0, probabilities, (labels > 0).to(probabilities.dtype))

    def quality(self, scores: Tensor) -> float:
        return ranking_quality(scores, self.evaluation_labels)


def _fit_further(start: CrossFit, table: Table, make_methods: Sequence[MakeMethod], evaluation: Table) -> CrossFit:
    """Fit to more labels of the same images, from the last solution: folds and guesses of similar images stay.

    The strength is compared with one neighbour, in turn the higher and the lower one until one of them is better.
    """
    task = start._task
    rows = task.basis.rows
    task = replace(task, make_methods=make_methods, table=table.subset(rows), evaluation=evaluation.subset(rows))
    task.done = lambda: None
    strength, next_factor = start.strength, start.next_factor
    with use_free_cores():
        solvers = [task.solver(task.fold != number, head) for number, head in enumerate(task.heads)]
        task.out_of_fold = _score_folds(task, solvers, strength, _FURTHER_ITERATIONS)
        quality, heads, other = task.quality(task.out_of_fold), task.heads, strength * next_factor
        if other != strength and WEAKEST <= other <= STRONGEST:
            logits = _score_folds(task, solvers, other, _FURTHER_ITERATIONS)
            if (reached := task.quality(logits)) > quality:
                strength, quality, heads, task.out_of_fold = other, reached, task.heads, logits
        task.heads = heads
        next_factor = next_factor if strength != start.strength else 1 / next_factor
        logits = task.out_of_fold
        if task.similar is not None:
            task.guesses = [task.known_or(guess) for guess in task.guesses]
            logits = torch.logit(_mixed(task, task.similar).clamp_(1e-7, 1 - 1e-6))
            quality = task.quality(logits)
    logits_of_all = task.of_all(logits, len(table))
    return replace(start, logits=logits_of_all, strength=strength, quality=quality, next_factor=next_factor, _task=task)


def _choose_strength(task: _Task) -> tuple[float, dict[float, float]]:
    """Return the best strength, whose out-of-fold logits are the task's, and the quality of each one tried.

    Each fit starts from the solution of the last strength.
    """
    solvers = [task.solver(task.fold != number) for number in range(task.folds)]
    best, heads = (-1.0, torch.empty(0)), task.heads

    def quality(strength: float) -> float:
        nonlocal best, heads
        logits = _score_folds(task, solvers, strength)
        if task.names is not None:
            task.scored[strength] = logits, task.heads
        reached = task.quality(logits)
        if reached > best[0]:
            best, heads = (reached, logits), task.heads
        return reached

    strength, tried = best_strength(quality)
    task.heads, task.out_of_fold, task.judged = heads, best[1], (best[1], task.evaluation_labels)
    return strength, tried


def _trust_names(task: _Task, strength: float, labels: Tensor) -> float:
    """Let the heads of a task start from class names, if that helps on `labels` (N, C); return the strength.

    A head without names and one with some trust give the head of any trust: the solution is nearly linear in it. Where
    few positives are known, the stronger strengths that were tried are compared again, each with its own trust.
    """
    scored, task.scored = task.scored or {strength: (task.out_of_fold, task.heads)}, {}
    has_few = int((labels > 0).sum()) < _FEW_POSITIVES * labels.shape[1]
    trial, best_quality = replace(task, trust=torch.full_like(labels[0], _TRIAL, dtype=torch.float32)), -1.0
    for tried, (without, heads) in scored.items():
        if tried != strength and not (tried > strength and has_few):
            continue
        gain = (_score_folds(trial, _solvers(trial, heads), tried) - without) / _TRIAL
        trust, _ = choose_trust(without, gain, labels)
        logits = without + trust * gain
        if (quality := task.quality(logits)) > best_quality:
            best, best_quality, task.trust, task.out_of_fold = tried, quality, trust, logits
            task.heads = _between(heads, trial.heads, trust / _TRIAL)
    if task.trust is None or not bool(task.trust.any()):
        task.trust, (task.out_of_fold, task.heads) = None, scored[strength]
        return strength
    return best


def _trust_names_by_sample(task: _Task, strength: float, labels: Tensor) -> float:
    """The same for large tables: a sample of the classes tells the trust of all, and the strength stays."""
    step, trial = sampling_step(task.table.shape), task.sample()
    trial.trust = torch.full((trial.table.shape[1],), _TRIAL, device=labels.device)
    without = task.out_of_fold[:, ::step]
    gain = (_score_folds(trial, _solvers(trial), strength) - without) / _TRIAL
    sampled, common = choose_trust(without, gain, labels[:, ::step])
    if bool(sampled.any()):
        task.trust = torch.full((task.table.shape[1],), common, device=labels.device)
        task.trust[::step] = sampled
        task.out_of_fold = _score_folds(task, _solvers(task), strength)
    return strength


def _between(first: Heads, second: Heads, share: Tensor) -> Heads:
    """Return the heads at a share (C,) of the way from the first to the second ones; beyond them above 1."""
    pairs = zip(first, second, strict=True)
    return [(torch.lerp(w, v, share[:, None]), torch.lerp(b, c, share)) for (w, b), (v, c) in pairs]


def _solvers(task: _Task, heads: Heads | None = None) -> Iterator[LinearSolver | AverageSolver]:
    """Make the solver of each fold when it is needed, as all at once would take much memory; it starts from a head."""
    return (task.solver(task.fold != number, heads[number] if heads else None) for number in range(task.folds))


def _choose_strength_by_sample(task: _Task) -> tuple[float, dict[float, float]]:
    """Return the strength that is best for the first fold of a sample of classes, and the quality of each one tried.

    Each fit starts from zero, as that of all classes does: with few labels a fit that ends by the tolerance depends on
    where it starts.
    """
    sample = task.sample()
    rows, scored = task.rows_of_fold[0], {}
    labels = sample.evaluation_labels[rows]

    def quality(strength: float) -> float:
        solver = sample.solver(task.fold != 0)
        solver.fit(strength)
        task.done()
        scored[strength] = _score(solver, sample, rows)
        return ranking_quality(scored[strength], labels)

    strength, tried = best_strength(quality)
    task.judged = scored[strength], labels
    return strength, tried


def _average(attempts: Sequence[tuple[float, _Task]]) -> tuple[float, _Task]:
    """Return the strength and the task of the average of several methods, from the strength and the task of each."""
    (strength, first), tasks = attempts[0], [task for _, task in attempts]
    if len(attempts) == 1:
        return strength, first
    make_methods = [make for task in tasks for make in task.make_methods]
    average = replace(first, make_methods=make_methods, factors=[other / strength for other, _ in attempts])
    average.out_of_fold, average.scored = torch.empty(0), {}
    if len(first.out_of_fold):
        average.out_of_fold, average.heads = _mean_scores([(task.out_of_fold, task.heads) for task in tasks])
        paths = [sorted(each for each in task.scored if each >= own) for own, task in attempts]
        for stronger in zip(*paths, strict=False):  # the strength of each one, and those above it, step by step
            scored = [task.scored[each] for each, task in zip(stronger, tasks, strict=True)]
            average.scored[stronger[0]] = _mean_scores(scored)
    return strength, average


def _mean_scores(scored: Sequence[tuple[Tensor, Heads]]) -> tuple[Tensor, Heads]:
    """Return the mean logits of several methods, and the mean head of each fold."""
    logits, heads = zip(*scored, strict=True)
    of_folds = (zip(*of_fold, strict=True) for of_fold in zip(*heads, strict=True))
    means = [(torch.stack(weights).mean(0), torch.stack(biases).mean(0)) for weights, biases in of_folds]
    return torch.stack(logits).mean(0), means


def best_strength(quality: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """Return the strength of the highest quality, and the quality of each one tried, in falling order at first."""
    return best_inside(quality, STRENGTHS, WEAKEST, STRONGEST)


def best_inside(
    quality: Callable[[float], float], first: Sequence[float], low: float, high: float
) -> tuple[float, dict[float, float]]:
    """Return the value of the highest quality, and the quality of each one tried: more while the best is an end.

    Of equal ones the first is the best. Values beyond `low` and `high` are not tried.
    """
    tried = {value: quality(value) for value in first}

    def best() -> float:
        return max(tried, key=lambda value: tried[value])

    while best() == min(tried) >= 3 * low:
        tried[min(tried) / 3] = quality(min(tried) / 3)
    while best() == max(tried) <= high / 3:
        tried[max(tried) * 3] = quality(max(tried) * 3)
    return best(), tried


def _score_folds(
    task: _Task,
    solvers: Iterable[LinearSolver | AverageSolver],
    strength: float,
    iterations: int | None = None,
) -> Tensor:
    """Return the out-of-fold logits (N, C) of one strength, by the solver of each fold; its heads are the task's."""
    logits = torch.empty(task.table.shape, device=task.features.device)
    task.heads = []
    for rows, solver in zip(task.rows_of_fold, solvers, strict=True):
        solver.fit(strength, iterations)
        logits[rows] = _score(solver, task, rows)
        task.heads.append((solver.weight.clone(), solver.bias.clone()))
        task.done()
    return logits


class _Similar(NamedTuple):
    """The similar images of each image (N, count), in falling order, and how they count."""

    projection: Tensor  # (D, KEY_SIZE) from principal components to the keys that are compared
    similarity: Tensor
    images: Tensor  # numbers among the references
    sharpness: float = _MIXES[0][0]
    weight: float = _MIXES[0][1]


def _mix_similar(task: _Task, strength: float, quality: float, is_large: bool) -> tuple[Tensor, float]:
    """Return the out-of-fold logits with similar images, and the quality.

    Similar images are not used where they lower the quality too much. Of a large table a sample of the classes decides.
    """
    projections = _projections(task.basis)
    similar, sample = _find_similar(task, projections[0]), task.sample() if is_large else task
    sample.guesses = _guesses_by_fold(sample, strength)
    if not is_large and has_negatives_to_rank(task.evaluation_labels):
        similar = _choose_similar(task, [similar, *(_find_similar(task, each) for each in projections[1:])])
    mixed = _mixed(sample, similar)
    reached = sample.quality(mixed)
    if reached < quality - _LARGEST_LOSS:
        return task.out_of_fold, quality
    task.similar = similar
    if is_large:
        task.guesses = _guesses_by_fold(task, strength)
        mixed = _mixed(task, similar)
    return torch.logit(mixed.clamp_(1e-7, 1 - 1e-6)), reached


def _projections(basis: Basis) -> list[Tensor]:
    """Return the projections (k, KEY_SIZE) from components to keys: without class probabilities, and of all features.

    Class probabilities mislead where photos are not like those of the pretraining. Without them the keys are the
    principal components of the other features: eigenvectors of their similarity.
    """
    size, width = basis.features.shape[1], sum(basis.transform.blocks)
    first = torch.eye(size, device=basis.features.device)[:, :KEY_SIZE]
    if width == len(basis.directions):
        return [first]
    spread = basis.variance.clamp(min=1e-12).sqrt()
    similarity = basis.directions[:width].T @ basis.directions[:width]
    values, vectors = torch.linalg.eigh(spread[:, None] * similarity * spread)
    roots = values[-KEY_SIZE:].clamp(min=0).sqrt()
    return [vectors[:, -KEY_SIZE:] * roots / spread[:, None], first]


def _find_similar(task: _Task, projection: Tensor) -> _Similar:
    fold_sizes = torch.bincount(task.fold[task.references])
    count = min(_COUNT, int(fold_sizes.sum() - fold_sizes.max()))
    return _Similar(projection, *nearest_images(task.features @ projection, task.fold, task.references, count))


def _choose_similar(task: _Task, spaces: Sequence[_Similar]) -> _Similar:
    """Return the first of all ways to mix, or the best one of those better by a standard error over the classes."""
    ways = [each._replace(sharpness=sharpness, weight=weight) for each in spaces for sharpness, weight in _MIXES]
    of_classes = [ranking_quality_of_classes(_mixed(task, way), task.evaluation_labels) for way in ways]
    gains = torch.stack(of_classes) - of_classes[0]
    gains = gains[:, ~gains.isnan().any(0)]
    if gains.shape[1] < 2:
        return ways[0]
    gain = gains.mean(1) * (gains.mean(1) > gains.std(1) / gains.shape[1] ** 0.5)
    return ways[int(gain.argmax())]


def _mixed(task: _Task, similar: _Similar) -> Tensor:
    """Mix the out-of-fold probabilities with the mean guess of similar images, weighted by their similarity."""
    guesses, (_, similarity, index, sharpness, weight) = task.guesses, similar
    total = torch.zeros(len(index), guesses[0].shape[1], device=index.device)
    sum_of_shares = torch.zeros(len(index), 1, device=index.device)
    for column in range(index.shape[1]):  # never (N, k, C) at once
        shares = torch.exp(sharpness * (similarity[:, column, None] - similarity[:, :1]))
        sum_of_shares += shares
        for fold, guess in enumerate(guesses):
            rows = task.rows_of_fold[fold]
            total.index_add_(0, rows, shares[rows] * guess[index[rows, column]])
    return torch.sigmoid(task.out_of_fold).mul_(1 - weight).add_(total / sum_of_shares, alpha=weight)


def _guesses_by_fold(task: _Task, strength: float) -> list[Tensor]:
    """Return guesses for the references (R, C), for each fold k by a model without fold k and the image's own.

    Known labels take the place of guesses. In half precision, which is what the index of similar images stores.
    """
    device = task.features.device
    guesses = torch.zeros(task.folds, *task.reference_labels.shape, dtype=torch.float16, device=device)
    reference_fold = task.fold[task.references]
    for first, second in itertools.combinations(range(task.folds), 2):
        solver = task.solver((task.fold != first) & (task.fold != second))
        solver.fit(strength)
        for fold, other in ((first, second), (second, first)):
            places = (reference_fold == other).nonzero()[:, 0]
            scores = solver.score(task.take(task.references[places]))
            guesses[fold, places] = torch.sigmoid(scores).half()
        task.done()
    return [task.known_or(guess) for guess in guesses]
