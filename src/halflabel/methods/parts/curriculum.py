"""Curriculum labelling: unknown entries that are easy for the model become weak labels (Durand 2019)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.parts.label_store import EntryStore, label_blocks
from halflabel.methods.parts.relabel import Begins, Relabeler, check_size
from halflabel.system.rng import hash_names
from halflabel.system.validate import at_least, one_of
from halflabel.types import Batch, Sweep, Targets

STRATEGIES = {"a": 2.0, "b": 0.8, "c": 5.0, "d": 2.0, "e": 0.3, "2steps": 0.0}  # with the paper's θ
_SHARES = (10 / 20, 15 / 20)  # the paper labels before epochs 10 and 15 of 20
_BLOCK_ENTRIES = 1 << 20  # entries labelled at a time


class Curriculum(Relabeler):
    """Known + or weak + → (1, 0), known − or weak − → (0, 1), still unknown → (0, 0). Algorithm 1.

    Before each of the epochs `before` the whole training set is scored, and the easy ones of the entries that are still
    unknown become weak labels. With x the logit, strategies and their default θ (theta 0):

        [a]  x ≥ θ present, x < −θ absent                                   θ = 2     (eq. 8)
        [b]  the ⌊θ M⌋ largest |x| of the M unknown entries of a block      θ = 0.8
        [c]  x ≥ θ present                                                  θ = 5     (eq. 9)
        [d]  [a] on the mean logit of an ensemble                           θ = 2     (eq. 10)
        [e]  variance of passes ≤ θ, label by the sign of the mean          θ = 0.3   (eq. 11)
        2steps  every entry once: [a] with θ = 0, before the first of the epochs only

    Weak labels stay, and later times add to them. A block of [b] is `block` images in the order of the hashes of their
    names, as random as a shuffled mini-batch but reproducible. Images that could not be read stay unknown. Memory: 1
    byte per image and class, and in a sweep the logits of all images, 4 bytes per image and class (12 for [e]).
    """

    labels: EntryStore  # (N, C) int8: known and weak labels
    order: Tensor  # (N,) int64: images by the hash of their names
    wants_features = False

    def __init__(
        self,
        strategy: str = "a",
        theta: float = 0.0,
        before: str = "",
        *,
        block: int = 16,
        passes: int = 20,
    ) -> None:
        super().__init__()
        one_of(STRATEGIES, strategy=strategy)
        at_least(1, block=block)
        at_least(2, passes=passes)
        if theta < 0 or (strategy == "b" and theta > 1) or (strategy == "2steps" and theta):
            raise UserError(
                f"strategy {strategy} cannot have theta {theta:g}", "use theta ≥ 0; ≤ 1 for b; none for 2steps"
            )
        self.strategy = strategy
        self.theta = theta or STRATEGIES[strategy]
        self.before_option = _read_epochs(before)
        self.block = block
        if strategy == "e":
            self.passes = passes
        self.plan(20)
        self.labels = EntryStore()
        self.register_buffer("order", None, persistent=False)

    @property
    def words(self) -> str:
        return f"curriculum {self.strategy}"

    def plan(self, epochs: int) -> None:
        """Choose the epochs before which labels are added: the option, else the paper's, scaled."""
        self.before = self.before_option or sorted({max(math.floor(share * epochs + 0.5), 2) for share in _SHARES})
        if self.strategy == "2steps":
            self.before = self.before[:1]
        self.epochs = epochs

    def begins(self) -> Begins | None:
        return Begins("labelling unknown entries", self.before[0], "relabel_at")

    def start(self, table: Table) -> None:
        tables = 3 if self.strategy == "e" else 1
        check_size(table, 0, "curriculum labelling", sweeps=tables, stored=1)
        self.table = table
        self.labels.start(table, "curriculum labelling")
        for rows, known in label_blocks(table):
            self.labels.values[rows] = known
        self.order = torch.from_numpy(np.argsort(hash_names(table.images.array), kind="stable"))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        labels = torch.where(batch.labels != 0, batch.labels, self.labels.rows(batch.index))
        return Targets((labels > 0).to(logits.dtype), (labels < 0).to(logits.dtype))

    def guesses(self) -> Tensor:
        return self.labels.values

    def wants_sweep(self, epoch: int) -> bool:
        """Whether labels are added before the next epoch."""
        all_known = self.table.known == self.table.shape[0] * self.table.shape[1]
        return not all_known and epoch < self.epochs and epoch + 1 in self.before

    @torch.no_grad()
    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        size = self.block if self.strategy == "b" else max(_BLOCK_ENTRIES // max(self.table.shape[1], 1), 1)
        # The other strategies label each entry separately: in table order, which is fast for a memory-mapped file.
        order = self.order if self.strategy == "b" else torch.arange(len(self.table), device=self.order.device)
        for images in torch.split(order, size):
            self._label(images, sweep)
        return self._counts()

    def _label(self, images: Tensor, sweep: Sweep) -> None:
        """Turn the easy unknown entries of these images into weak labels."""
        device = self.labels.values.device

        def rows(values: Tensor | None) -> Tensor:
            assert values is not None, "strategy e needs a sweep with passes"
            return values[images.to(values.device)].to(device)

        score = rows(sweep.mean if self.strategy == "e" else sweep.logits)
        labels = self.labels.rows(images).to(score.device)
        unknown = (labels == 0) & ~score.isnan()
        present, absent = score >= 0, score < 0
        match self.strategy:
            case "b":
                # 1e-9: 0.29 · 100 is 28.999… in floating point, and 29 is meant.
                count = math.floor(self.theta * int(unknown.sum()) + 1e-9)
                size = score.abs().masked_fill(~unknown, -1.0).flatten()
                easy = torch.zeros_like(size, dtype=torch.bool)
                easy[size.argsort(descending=True, stable=True)[:count]] = True
                easy = easy.view_as(score)
            case "c":
                easy = score >= self.theta
            case "e":
                easy = rows(sweep.spread).square() <= self.theta
            case _:
                easy = (score >= self.theta) | (score < -self.theta)
        weak = (present.to(torch.int8) - absent.to(torch.int8)) * (unknown & easy)
        self.labels.set_rows(images, labels + weak)

    def _counts(self) -> dict[str, float]:
        known = self.table.value
        present, absent = self.labels.count(lambda v: v > 0), self.labels.count(lambda v: v < 0)
        return {
            "label_proportion": (present + absent) / max(math.prod(self.table.shape), 1),
            "weak_positives": float(present - int((known > 0).sum())),
            "weak_negatives": float(absent - int((known < 0).sum())),
        }


def _read_epochs(text: str) -> list[int]:
    """Epochs from text such as "10,15"."""
    try:
        epochs = sorted({int(word) for word in text.split(",") if word.strip()})
    except ValueError:
        raise UserError(f"{text!r} is not a list of epochs", "write them as in 10,15") from None
    if epochs and epochs[0] < 2:
        raise UserError(f"the model has learned nothing before epoch {epochs[0]}", "start at epoch 2 or later")
    return epochs
