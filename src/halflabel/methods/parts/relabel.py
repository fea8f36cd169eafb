"""Relabelers: from known labels to the weights of each entry in the loss; the only parts of a method with state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import in_words
from halflabel.labels.table import Table
from halflabel.system import distributed, memory
from halflabel.types import Batch, Sweep, Targets, at_least_float32

LARGEST = 2 * 10**9  # most bytes that a method may store in memory about images × classes


class Begins(NamedTuple):
    """A part of a method that begins with an epoch of training, or with a round of L-BFGS, counted from 1."""

    part: str
    first: int
    option: str = ""  # of the method, that makes it begin earlier

    def problem(self, length: int, unit: str = "epoch") -> str:
        """Return what is wrong if training has too few epochs (or rounds) for it to begin; else "".

        >>> Begins("labelling", 10).problem(4), Begins("labelling", 10).problem(10)
        ('labelling never starts in 4 epochs: it begins with epoch 10', '')
        """
        if self.first <= length:
            return ""
        number = f"1 {unit}" if length == 1 else f"{length} {unit}s"
        return f"{self.part} never starts in {number}: it begins with {unit} {self.first}"

    def fix(self) -> str:
        earlier = f", or a smaller ‹{self.option}›" if self.option else ""
        return f"use ‹epochs={self.first}› or more{earlier}"


def begin_early(first: int, epochs: int) -> int:
    """Return the published epoch after which a part begins, or 1 in a training that has no more epochs or rounds.

    >>> begin_early(5, 10), begin_early(5, 4)
    (5, 1)
    """
    return first if first < epochs else 1


class Relabeler(nn.Module):
    """Returns (pos, neg) for a batch. Its state is in buffers, so that checkpoints contain it."""

    passes: int = 0  # Monte-Carlo dropout passes that a sweep must include
    is_static = False  # whether targets depend on the known labels alone, not on scores or epoch
    wants_features = True  # whether a sweep must include the features of the images
    needs_group = False  # whether training is refused without --group
    group: str | None = None  # the option --group, set before `start` if it is needed

    def __init_subclass__(cls, **options: Any) -> None:
        """Take other targets than those of a static base class as not static, unless the subclass says so."""
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and "is_static" not in vars(cls):
            cls.is_static = False

    @property
    def words(self) -> str:
        """What it does with unknown labels, for people: by default the words of its class name."""
        return in_words(type(self).__name__)

    def plan(self, epochs: int) -> None:
        """Set the number of training epochs, for schedules; called before `start`."""

    def begins(self) -> Begins | None:
        """Return which part of the method begins later than training, and when; None if there is none.

        Called after `plan`.
        """
        return None

    def start(self, table: Table) -> None:
        """Receive the known training labels; called once, before training."""

    def __call__(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        """Return what `forward` does, but (t, 1 − t) for entries with a soft target t."""
        targets: Targets = super().__call__(batch, logits, epoch)
        if batch.soft is None:
            return targets
        has_none, soft = torch.isnan(batch.soft), batch.soft.to(targets.pos.dtype)
        return Targets(*(torch.where(has_none, old, new) for old, new in zip(targets, (soft, 1 - soft), strict=True)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        """Return the loss weights of each entry, from known labels and (B, C) detached logits. Epochs count from 1."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def wants_sweep(self, epoch: int) -> bool:
        """Whether `absorb` must be called after this epoch; the answer must be the same in every process."""
        return False

    def wants_sweep_first(self) -> bool:
        """Whether `absorb` must also be called before the first epoch, as epoch 0: for frozen features."""
        return False

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        """Process the scores of the whole training set; returns numbers for the log."""
        return {}

    def guesses(self) -> Tensor | None:
        """Return known and pseudo-labels, (N, C) int8, 0 = unknown; None if it stores none per image."""
        return None


class Ignore(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, 0)."""

    is_static = True
    words = "known labels"

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return Targets((batch.labels > 0).to(logits.dtype), (batch.labels < 0).to(logits.dtype))


class AssumeNegative(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, weight); a weight of 0 means 1/(C − 1)."""

    words = "unknown as absent"

    is_static = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype  # in half precision a small weight would lose digits
        absent = (batch.labels < 0).to(dtype)
        unknown = (batch.labels == 0).to(dtype)
        weight = self.weight or 1 / max(logits.shape[1] - 1, 1)
        return Targets((batch.labels > 0).to(dtype), absent + weight * unknown)


class LabelSmoothing(Relabeler):
    """Unknown → absent, then (pos, neg) → ((1 − ε) pos + ε neg, (1 − ε) neg + ε pos).

    All labels are smoothed if `known`, else only unknown ones.
    """

    is_static = True

    def __init__(self, smoothing: float, known: bool) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.known = known
        self.assume = AssumeNegative()

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        pos, neg = self.assume(batch, logits, epoch)
        smoothed = torch.ones_like(pos) if self.known else (batch.labels == 0).to(pos.dtype)
        share = self.smoothing * smoothed
        return Targets((1 - share) * pos + share * neg, (1 - share) * neg + share * pos)


class FewAbsent(Relabeler):
    """Known + → (1, 0), unknown → (0, 0), known − → (0, 1), or (0, weight) where known positives outnumber them.

    With all labels known the weight is 1: there is no entropy term that they could outweigh.
    """

    words = "known labels"

    is_static = True

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.absent_weight = 1.0

    def start(self, table: Table) -> None:
        stats = table.stats
        few = stats.positives.sum() > stats.negatives.sum() and stats.unknown.sum() > 0
        self.absent_weight = self.weight if few else 1.0

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype
        return Targets((batch.labels > 0).to(dtype), self.absent_weight * (batch.labels < 0).to(dtype))


def check_bytes(needed: float, message: str, fix: str) -> None:
    """Raise if so many bytes are more than a method may store; `message` has a place for their number."""
    if needed > LARGEST:
        raise UserError(message.format(f"{needed / 1e9:.1f} GB"), fix)


def check_size(table: Table, bytes_per_entry: float, method: str, *, sweeps: int = 0, stored: float = 0.0) -> None:
    """Raise if a method would store more than 2·10⁹ bytes in memory, or if the temporary folder is too small.

    The temporary folder holds `sweeps` tables of logits of all images, 4 bytes per entry each, and the method's own
    stores of `stored` bytes per entry; tables below 256 MB are in memory instead. Each process has its own tables.
    """
    images, classes = table.shape
    check_bytes(
        images * classes * bytes_per_entry,
        f"{method} would store {{}} about {images} images × {classes} classes",
        "use a method that stores nothing per image, such as em or wan; or train on fewer images or classes",
    )
    tables = [stored * images * classes] + [4.0 * images * classes] * sweeps
    room = distributed.local_world_size() * sum(size for size in tables if memory.is_large(size))
    if room:  # all processes check before any of them allocates
        distributed.check_on_all(
            lambda: memory.check_scratch_space(
                room, f"{method} would score {images} images × {classes} classes at once:"
            )
        )
