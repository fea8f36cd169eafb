"""Unknown labels are learned from the scores of another model, as far as it can be trusted."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation.calibration import fit_platt, has_as_many_negatives
from halflabel.evaluation.positives_only import fit_positives_only
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, Method, Share, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler, check_size
from halflabel.system.validate import between
from halflabel.types import Batch, Targets, at_least_float32

COLUMNS = ("image", "class", "probability")


def teacher_probabilities(path: str, table: Table) -> NDArray[np.float32]:
    """Return the teacher's probabilities (N, C) for the entries of a table; NaN where the CSV file has none."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{path} is not a file", "give a CSV file with the columns image, class and probability")
    images, image, classes, label, scores = _read(file.resolve(), file.stat().st_mtime_ns)
    probabilities = np.full(table.shape, np.nan, np.float32)
    row, column = table.images.index(images.array)[image], table.classes.index(classes.array)[label]
    inside = (row >= 0) & (column >= 0)
    probabilities[row[inside], column[inside]] = scores[inside]
    if not inside.any():
        raise UserError(
            f"{path} has no image and class of the training labels",
            f"use the same names: images such as {table.images[0]!r}, classes such as {table.classes[0]!r}",
        )
    return probabilities


@lru_cache(maxsize=1)
def _read(path: Path, changed: int) -> tuple[Any, ...]:
    """Return image names and each row's image, class names and each row's class, and probabilities; read once."""
    sheet = CsvTable(path)
    sheet.check_columns(COLUMNS)
    has_class = pc.not_equal(sheet.column("class"), "")  # blank: an image that could not be read
    probability = sheet.numbers("probability", "write numbers from 0 to 1", least=0, most=1)
    columns = [pc.dictionary_encode(sheet.column(name).filter(has_class)) for name in COLUMNS[:2]]
    numbered = [part for each in columns for part in (Names(each.dictionary), each.indices.to_numpy().astype(np.int64))]
    return (*numbered, probability[has_class.to_numpy(zero_copy_only=False)])


_SHRINK = 10  # known positives that count as much as the mean of all classes
_SMALLEST = 1e-4  # probabilities of the teacher are clipped to [this, 1 − this]


@method(
    serves=REGIMES,
    paper="pseudo-labels of another model, in the manner of VLPL (Xing 2024)",
    lr=1e-3,
    tune={"trust": (0.1, 0.3)},
)
def taught(teacher: str = "", trust: Share = 0.2, smoothing: float = 0.1) -> Method:
    """Unknown labels are learned from another model's probabilities, weighted by how well it ranks the known labels.

    Use it if any other model, such as CLIP, an LLM or an older run, has scored the training images. The model learns
    from its own features and from the known labels too, so that it can become better than the teacher.

        q = σ(a · logit(t) + b),   t the teacher's probability; a and b are fitted on the known labels
        A_c = P(t of a known present entry > t of an entry that is not),   w_c = trust · max(2 A_c − 1, 0)
        unknown: pos = w_c q + (1 − w_c) ε₀,   neg = w_c (1 − q) + (1 − w_c) (1 − ε₀);   known: pos or neg = 1

    Where hardly any negative is known, unknown entries stand for the absent ones, and a and b are fitted to which
    labels were given. A_c is drawn towards the mean of all classes where few positives are known. If negatives are
    known, the part 1 − w_c of unknown entries is ignored instead of absent.

    teacher: CSV file with the columns image, class and probability, as `halflabel predict RUN PHOTOS --format csv
    --all` writes it; entries that it lacks are unknown. Empty: no teacher. trust: the weight of a teacher
    that ranks all known labels rightly, from 0 to 1; a known label has weight 1. smoothing (ε₀): the chance that an
    entry is present if nothing else is known.
    """
    between(0, 0.5, smoothing=smoothing)
    return Method(BCE(), Taught(teacher, trust, smoothing))


class Taught(Relabeler):
    """Targets from known labels and the calibrated probabilities of a teacher. Memory: 4 bytes per entry."""

    is_static = True
    probability: Tensor  # (N, C) q, 0 where the teacher has no score
    trust: Tensor  # (C,) w
    has_score: Tensor  # (N, C) bool
    absent_weight: Tensor  # () of unknown entries that no teacher is trusted for

    def __init__(self, teacher: str, trust: float, smoothing: float) -> None:
        super().__init__()
        self.teacher, self.largest_trust, self.smoothing = teacher, trust, smoothing

    def start(self, table: Table) -> None:
        check_size(table, 5, "taught")
        self.set_scores(table.dense(), teacher_probabilities(self.teacher, table) if self.teacher else None)

    def set_scores(self, labels: np.ndarray, t: np.ndarray | None) -> None:
        """Calibrate the teacher's probabilities (N, C), NaN for none, and weigh its classes by the known labels."""
        has_negatives = has_as_many_negatives(labels)
        q, trust = np.zeros(labels.shape, np.float32), np.zeros(labels.shape[1])
        has_score = np.zeros(labels.shape, bool)
        if t is not None:
            t = np.clip(t, _SMALLEST, 1 - _SMALLEST)
            has_score = ~np.isnan(t)
            x = logit(t.astype(np.float64))
            scored = np.where(has_score, labels, 0)
            calibration = fit_platt(x, scored) if has_negatives else fit_positives_only(x, labels)
            q = calibration.scores(torch.from_numpy(x)).nan_to_num(0.0).float().numpy()
            trust = self.largest_trust * class_trust(t, scored, against_unknown=not has_negatives)
        self.register_buffer("probability", torch.from_numpy(q))
        self.register_buffer("has_score", torch.from_numpy(has_score))
        self.register_buffer("trust", torch.from_numpy(trust).float())
        self.register_buffer("absent_weight", torch.tensor(float(not has_negatives)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype
        unknown = (batch.labels == 0).to(dtype)
        trust = self.trust.to(dtype) * self.has_score[batch.index].to(dtype)
        q, rest = self.probability[batch.index].to(dtype), (1 - trust) * self.absent_weight.to(dtype)
        pos = trust * q + rest * self.smoothing
        neg = trust * (1 - q) + rest * (1 - self.smoothing)
        return Targets((batch.labels > 0) + unknown * pos, (batch.labels < 0) + unknown * neg)


def class_trust(t: np.ndarray, labels: np.ndarray, *, against_unknown: bool) -> np.ndarray:
    """Return max(2 A_c − 1, 0) of each class, A_c drawn towards the mean over all positives.

    t, labels: (N, C), NaN and 0 where there is no score. With `against_unknown`, positives are compared with the
    unknown entries instead of the known absent ones.
    """
    ranks, counts = np.zeros(t.shape[1]), np.zeros(t.shape[1])
    for c in range(t.shape[1]):
        scored = ~np.isnan(t[:, c])
        present = t[(labels[:, c] > 0) & scored, c]
        others = np.sort(t[((labels[:, c] == 0) if against_unknown else (labels[:, c] < 0)) & scored, c])
        if len(present) and len(others):
            below = np.searchsorted(others, present, "left") + np.searchsorted(others, present, "right")
            ranks[c], counts[c] = (below / (2 * len(others))).sum(), len(present)
    mean = ranks.sum() / counts.sum() if counts.any() else 0.5
    return np.maximum(2 * (ranks + _SHRINK * mean) / (counts + _SHRINK) - 1, 0.0)
