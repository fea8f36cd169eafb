"""Cross-fitting on frozen features: every training image is scored by models that saw none of its labels.

One call fits the whole frozen recipe: normalisation, strength of regularisation, similar images and the final head on
all images. The out-of-fold scores choose the strength and the similar images, and serve metrics, calibration,
thresholds, fill and questions afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation.ranking_quality import ranking_quality, sampling_step
from halflabel.features.feature_transform import BLOCK, Classifier, FeatureTransform, principal_components
from halflabel.features.heads import NormalisedLinear
from halflabel.features.similar_images import KEY_SIZE, SimilarImages, nearest_images
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.solver import LinearSolver
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.system import memory
from halflabel.system.threads import use_free_cores

FOLDS = 5
STRENGTHS = (1e-3, 3e-4, 1e-4, 3e-5)
COMPONENTS = 768  # principal components of the normalised features that heads are fitted on
WEAKEST, STRONGEST = 1e-6, 3e-2  # how far the path of strengths is extended when its end is best
# How many similar images, how sharply their similarity counts, and their weight in the score. Chosen for each training
# instead, by the known labels, they were on average worse: few labels choose by chance.
_COUNT, _SHARPNESS, _WEIGHT = 80, 10.0, 0.3
REFERENCES = 100_000  # images at most that similar ones are searched among: a random choice of more
LARGEST_SEARCH = 10**10  # pairs of images compared; for more than 100,000 images there are fewer references
_SCORED = 1 << 16  # images scored at once
# Similar images are left out if they lower the quality by more than this. A small loss can be a gain: they raise
# present labels that are not known, which the quality takes for mistakes where only positives are known.
_LARGEST_LOSS = 0.01
_LARGEST_SAMPLE = 16384  # images that the principal components are computed from
LARGE = 10**7  # entries (images × classes) from which on there are fewer folds, and a sample of classes chooses
LARGE_FOLDS = 3

MakeMethod = Callable[[], Method]


@dataclass(frozen=True)
class CrossFit:
    """The fitted head, and the scores of the training images by models that did not see their labels."""

    head: NormalisedLinear
    logits: NDArray[np.float32]  # (N, C) out-of-fold, similar images included; NaN for unreadable images
    fold: NDArray[np.int8]  # (N,) the fold of each image
    strength: float
    tried: dict[float, float]  # strength -> quality of the out-of-fold ranking, without similar images
    quality: float

    @property
    def log(self) -> list[EpochLog]:
        """One line per strength that was tried, in order."""
        return [
            EpochLog({"epoch": number, "strength": strength, "out_of_fold_mAP": quality})
            for number, (strength, quality) in enumerate(self.tried.items(), 1)
        ]

    @property
    def choice(self) -> str:
        """What the out-of-fold scores chose, in words."""
        similar, mixed = self.head.similar, ""
        if similar is not None:
            mixed = f", {similar.count} similar images with weight {similar.weight:.1g}"
            readable = int(np.count_nonzero(~np.isnan(self.logits[:, 0])))
            if (references := len(similar.keys)) < readable:
                mixed += f" (among {references:,} training images, chosen at random)"
        reduced = ""
        if self.logits.size >= LARGE:
            step = sampling_step(self.logits.shape)
            classes = f" and {len(range(0, self.logits.shape[1], step)):,} of the classes" if step > 1 else ""
            folds = int(self.fold.max()) + 1
            reduced = f" (a large table: {folds} folds; the first one{classes} chose the strength)"
        return f"chosen by out-of-fold scores{reduced}: strength {self.strength:g}{mixed}"


def crossfit(
    features: Tensor,
    table: Table,
    make_method: MakeMethod,
    *,
    classifier: Classifier | None = None,
    of_backbone: bool = True,
    strength: float | None = None,
    use_similar: bool = True,
    evaluation: Table | None = None,
    folds: int | None = None,
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> CrossFit:
    """Fit a linear head to pooled features (N, D), NaN rows for unreadable images, in the order of `table`.

    The strength, and whether similar images are used, are chosen by `ranking_quality` of out-of-fold scores on the
    labels of `evaluation`, the labels of `table` that people made; by default all of them. Out-of-fold scores with
    similar images need guesses that depend neither on the image they come from nor on the image they are passed to: for
    each pair of folds a model is fitted without both. The final head is fitted on all images. `of_backbone` False is
    for features that are any numbers (see FeatureTransform).

    Images are divided into `folds`, by default 5. Large tables have 3, of which the first alone chooses the strength,
    on classes at equal distances, which also decide on similar images: most losses are solved class by class, so that
    a sample of classes chooses like all of them.
    """
    folds = folds or default_folds(table)
    rows = np.flatnonzero(~torch.cat([torch.isnan(part).any(1) for part in torch.split(features, BLOCK)]).numpy())
    if len(rows) < 2 * folds:
        raise UserError(f"{len(rows)} readable images cannot be divided into {folds} folds", "use more images")
    fold_of_all = assign_parts(table, [1 / folds] * folds, groups=groups, seed=seed)
    known_table = table.subset(rows)
    fold = torch.from_numpy(fold_of_all[rows]).to(device)
    transform = FeatureTransform.fit(features, classifier, of_backbone=of_backbone, device=device)
    judged = (table if evaluation is None else evaluation).subset(rows)
    is_large = table.shape[0] * table.shape[1] >= LARGE
    pairs = folds * (folds - 1) // 2
    attempts = 0 if strength is not None else len(STRENGTHS) * (1 if is_large else folds)
    fold_fits = folds if is_large or strength is not None else 0
    steps = _Steps(progress, attempts + fold_fits + 1 + pairs * use_similar)
    tried: dict[float, float] = {}

    with use_free_cores():
        components, directions, variance = to_components(transform, features, torch.from_numpy(rows))
        task = _Task(make_method, components, variance, known_table, fold, folds, judged)
        if strength is None and not is_large:
            strength, task.out_of_fold, tried = _choose_strength(task, steps)
        else:
            if strength is None:
                strength, tried = _choose_strength_by_sample(task.sample(), steps)
            one_by_one = (task.solver(fold != number) for number in range(folds))  # all at once would take much memory
            task.out_of_fold = _score_folds(task, one_by_one, strength, steps)
        logits, count = task.out_of_fold, 0
        quality = task.quality(logits)
        tried = tried or {strength: quality}
        if use_similar:
            logits, count, quality = _mix_similar(task, strength, quality, is_large, steps)
        final = task.solver(torch.ones_like(fold, dtype=torch.bool))
        final.fit(strength)
    steps.done()
    head = NormalisedLinear(transform, len(table.classes))
    head.linear.weight.data = final.weight @ directions.T
    head.linear.bias.data = final.bias
    if count:
        # Guesses for new images: known labels, and out-of-fold scores elsewhere.
        head.similar = SimilarImages.build(
            directions[:, :KEY_SIZE],
            task.keys[task.references],
            task.known_or(torch.sigmoid(task.out_of_fold[task.references])),
            weight=_WEIGHT,
            count=count,
            sharpness=_SHARPNESS,
        )
    all_logits = np.full(table.shape, np.nan, np.float32)
    all_logits[rows] = logits.cpu().numpy()
    return CrossFit(head.cpu().eval(), all_logits, fold_of_all, strength, tried, quality)


def to_components(transform: FeatureTransform, features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the principal components (M, k) of some features (N, D), their directions (D, k) and variances (k,).

    The features are normalised first, on the device of the transform. The directions come from a sample of the images.
    """
    device = transform.mean.device
    sample = features[rows[:: -(-len(rows) // _LARGEST_SAMPLE)]].to(device)
    directions, variance = principal_components(transform(sample), COMPONENTS)
    components = _table((len(rows), directions.shape[1]), device)
    for into, part in zip(torch.split(components, BLOCK), torch.split(rows, BLOCK), strict=True):
        into.copy_(transform(features[part].to(device)) @ directions)
    return components, directions, variance


def _table(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return a table of features on a device; on the CPU in a scratch file if it is large."""
    return memory.table_on(device, shape, what=f"the features of {shape[0]} images take")


def _take(features: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of features, block by block."""
    taken = _table((len(rows), features.shape[1]), features.device)
    for into, part in zip(torch.split(taken, BLOCK), torch.split(rows, BLOCK), strict=True):
        into.copy_(features[part])
    return taken


def _score(solver: LinearSolver, features: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of some rows of features, block by block."""
    return torch.cat([solver.score(features[part]) for part in torch.split(rows, _SCORED)])


def default_folds(table: Table) -> int:
    """Return the number of folds that a table is divided into."""
    return FOLDS if table.shape[0] * table.shape[1] < LARGE else LARGE_FOLDS


class _Steps:
    """Counts finished solves for the progress bar."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self.progress, self.total, self.count = progress, total, 0

    def done(self) -> None:
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, max(self.total, self.count))


@dataclass
class _Task:
    """Principal components of the normalised features, labels and folds of the readable training images."""

    make_method: MakeMethod
    features: Tensor
    variance: Tensor
    table: Table
    fold: Tensor
    folds: int
    evaluation: Table

    def __post_init__(self) -> None:
        device = self.features.device
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
        sampled = replace(self, table=table, evaluation=evaluation)
        if len(self.out_of_fold):
            sampled.out_of_fold = self.out_of_fold[:, torch.from_numpy(columns).to(self.fold.device)]
        return sampled

    def solver(self, rows: Tensor) -> LinearSolver:
        """Return a solver for the images of a (N,) mask."""
        index = rows.nonzero()[:, 0]
        table = self.table.subset(index.cpu().numpy())
        return LinearSolver(self.make_method(), _take(self.features, index), table, variance=self.variance)

    @property
    def keys(self) -> Tensor:
        """What the similarity of images is computed on (N, KEY_SIZE)."""
        return self.features[:, :KEY_SIZE]

    def known_or(self, probabilities: Tensor) -> Tensor:
        """Replace the probabilities (R, C) of known entries of the references by 1 and 0."""
        labels = self.reference_labels
        return torch.where(labels == 0, probabilities, (labels > 0).to(probabilities.dtype))

    def quality(self, scores: Tensor) -> float:
        return ranking_quality(scores, self.evaluation_labels)


def _choose_strength(task: _Task, steps: _Steps) -> tuple[float, Tensor, dict[float, float]]:
    """Return the best strength, its out-of-fold logits, and the quality of every strength that was tried.

    Each fit starts from the solution of the last strength.
    """
    solvers = [task.solver(task.fold != number) for number in range(task.folds)]
    best = 0.0, torch.empty(0)

    def quality(strength: float) -> float:
        nonlocal best
        logits = _score_folds(task, solvers, strength, steps)
        reached = task.quality(logits)
        best = max(best, (reached, logits), key=lambda pair: pair[0])
        return reached

    strength, tried = best_strength(quality)
    return strength, best[1], tried


def _choose_strength_by_sample(task: _Task, steps: _Steps) -> tuple[float, dict[float, float]]:
    """Return the strength that is best for the first fold of a sample of classes, and the quality of each one tried.

    Each fit starts from zero, as that of all classes does: with few labels a fit that ends by the tolerance depends on
    where it starts.
    """
    rows = task.rows_of_fold[0]

    def quality(strength: float) -> float:
        solver = task.solver(task.fold != 0)
        solver.fit(strength)
        steps.done()
        return ranking_quality(_score(solver, task.features, rows), task.evaluation_labels[rows])

    return best_strength(quality)


def best_strength(quality: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """Return the strength of the highest quality, and the quality of each one tried, in falling order at first."""
    tried = {strength: quality(strength) for strength in STRENGTHS}

    def best() -> float:
        return max(tried, key=lambda strength: tried[strength])

    while best() == min(tried) >= 3 * WEAKEST:
        tried[min(tried) / 3] = quality(min(tried) / 3)
    while best() == max(tried) <= STRONGEST / 3:
        tried[max(tried) * 3] = quality(max(tried) * 3)
    return best(), tried


def _score_folds(task: _Task, solvers: Iterable[LinearSolver], strength: float, steps: _Steps) -> Tensor:
    """Return the out-of-fold logits (N, C) of one strength, by the solver of each fold."""
    logits = torch.empty(task.table.shape, device=task.features.device)
    for rows, solver in zip(task.rows_of_fold, solvers, strict=True):
        solver.fit(strength)
        logits[rows] = _score(solver, task.features, rows)
        steps.done()
    return logits


def _mix_similar(
    task: _Task, strength: float, quality: float, is_large: bool, steps: _Steps
) -> tuple[Tensor, int, float]:
    """Return the out-of-fold logits with similar images, how many there are per image, and the quality.

    Where they lower the quality too much, the count is 0. Of a large table a sample of the classes decides.
    """
    fold_sizes = torch.bincount(task.fold[task.references])
    count = min(_COUNT, int(fold_sizes.sum() - fold_sizes.max()))
    similar = nearest_images(task.keys, task.fold, task.references, count)
    sample = task.sample() if is_large else task
    mixed = _mixed(sample, *similar, _guesses_by_fold(sample, strength, steps))
    reached = sample.quality(mixed)
    if reached < quality - _LARGEST_LOSS:
        return task.out_of_fold, 0, quality
    if is_large:
        mixed = _mixed(task, *similar, _guesses_by_fold(task, strength, steps))
    return torch.logit(mixed.clamp_(1e-7, 1 - 1e-6)), count, reached


def _mixed(task: _Task, similarity: Tensor, index: Tensor, guesses: Sequence[Tensor]) -> Tensor:
    """Mix the out-of-fold probabilities with the mean guess of similar images (N, k), weighted by their similarity.

    Similar images come in falling order. `guesses` holds those of the references (R, C) for each fold.
    """
    total = torch.zeros(len(index), guesses[0].shape[1], device=index.device)
    sum_of_shares = torch.zeros(len(index), 1, device=index.device)
    for column in range(index.shape[1]):  # never (N, k, C) at once
        shares = torch.exp(_SHARPNESS * (similarity[:, column, None] - similarity[:, :1]))
        sum_of_shares += shares
        for fold, guess in enumerate(guesses):
            rows = task.rows_of_fold[fold]
            total.index_add_(0, rows, shares[rows] * guess[index[rows, column]])
    return torch.sigmoid(task.out_of_fold).mul_(1 - _WEIGHT).add_(total / sum_of_shares, alpha=_WEIGHT)


def _guesses_by_fold(task: _Task, strength: float, steps: _Steps) -> list[Tensor]:
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
            scores = solver.score(task.features[task.references[places]])
            guesses[fold, places] = torch.sigmoid(scores).half()
        steps.done()
    return [task.known_or(guess) for guess in guesses]
