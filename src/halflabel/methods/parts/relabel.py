"""Relabelers: from what is known to how much each entry is charged. The only parts of a method that remember."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.system import distributed, memory
from halflabel.types import Batch, DropoutPasses, Sweep, Targets, at_least_float32

__all__ = [
    "AssumeNegative",
    "FewAbsent",
    "Ignore",
    "LabelSmoothing",
    "Relabeler",
    "SharedNegative",
    "check_size",
    "never_starts",
]

LARGEST = 2 * 10**9  # bytes that a method may remember about images × classes


class Relabeler(nn.Module):
    """Gives (pos, neg) for a batch. State lives in buffers, so that checkpoint and resume need no code of their own."""

    passes: DropoutPasses | None = None  # what a sweep is to add: passes with the head's dropout on
    is_static = False  # whether targets depend on the known labels alone, not on scores or epoch
    wants_features = True  # whether a sweep is to hold the images' features

    def plan(self, epochs: int) -> None:
        """Called before `start` with the number of epochs to come, for schedules that end with them."""

    def idle(self, epochs: int) -> str:
        """Why what it is there for will not happen in so many epochs, and what to change; "" if it will.

        Asked after `plan`; the user is told.
        """
        return ""

    def start(self, table: LabelTable) -> None:
        """Called once, before training, with the known training labels."""

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        """(B, C) detached logits and what is known -> how much each entry is charged. Epochs count from 1."""
        raise TypeError(f"{type(self).__name__} does not say how to relabel")

    def wants_sweep(self, epoch: int) -> bool:
        """Whether `absorb` is to be called after this epoch; every process must answer alike."""
        return False

    def wants_sweep_first(self) -> bool:
        """Whether `absorb` is to be called before the first epoch too, as of epoch 0: for features that stay."""
        return False

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        """Learn from the scores of the whole training set; what it returns goes to the log."""
        return {}

    def guesses(self) -> Tensor | None:
        """(N, C) int8: known labels and those it has made up (0 = neither); None if it keeps none per image."""
        return None


class Ignore(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, 0)."""

    is_static = True

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return Targets((batch.labels > 0).to(logits.dtype), (batch.labels < 0).to(logits.dtype))


class AssumeNegative(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, weight)."""

    is_static = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype  # a small weight would lose digits in half precision
        absent = (batch.labels < 0).to(dtype)
        unknown = (batch.labels == 0).to(dtype)
        return Targets((batch.labels > 0).to(dtype), absent + self.weight * unknown)


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


class SharedNegative(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, 1/(C − 1))."""

    is_static = True

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        targets: Targets = AssumeNegative(1 / max(logits.shape[1] - 1, 1))(batch, logits, epoch)
        return targets


class FewAbsent(Relabeler):
    """Known + → (1, 0), unknown → (0, 0), known − → (0, 1), or (0, weight) where known positives outnumber them.

    With all labels known the weight is 1: there is no entropy term that they could outweigh.
    """

    is_static = True

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.absent_weight = 1.0

    def start(self, table: LabelTable) -> None:
        stats = table.stats()
        few = stats.positives.sum() > stats.negatives.sum() and stats.unknown.sum() > 0
        self.absent_weight = self.weight if few else 1.0

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype
        return Targets((batch.labels > 0).to(dtype), self.absent_weight * (batch.labels < 0).to(dtype))


def never_starts(what: str, first: int, epochs: int, earlier: str = "") -> str:
    """A line for the user where training ends before epoch `first`, with which something begins; else "".

    `earlier` names options with which it would begin in time.

    >>> never_starts("labelling", 10, 4, "--relabel-at 2")
    'labelling never starts in 4 epochs: it begins with epoch 10; use --epochs 10 or more, or --relabel-at 2'
    >>> never_starts("labelling", 10, 10)
    ''
    """
    if first <= epochs:
        return ""
    number = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    fix = f"use --epochs {first} or more" + (f", or {earlier}" if earlier else "")
    return f"{what} never starts in {number}: it begins with epoch {first}; {fix}"


def check_size(table: LabelTable, bytes_per_entry: float, method: str, *, sweeps: int = 0, stored: float = 0.0) -> None:
    """Refuse a table about which a method would have to remember more than 2·10⁹ bytes in memory.

    And one for which the temporary folder has no room: a method that sweeps has the logits of all images at once, or
    `sweeps` tables of 4 bytes per entry; `stored` bytes per entry are those of its own stores. Tables below 256 MB are
    in memory and take no room there. Each process on this machine has tables of its own.
    """
    images, classes = table.shape
    needed = images * classes * bytes_per_entry
    if needed > LARGEST:
        raise UserError(
            f"{method} would remember {needed / 1e9:.1f} GB about {images} images × {classes} classes",
            "use a method that remembers nothing per image, such as em or wan; or train on fewer images or classes",
        )
    tables = [stored * images * classes] + [4.0 * images * classes] * sweeps
    room = distributed.local_world_size() * sum(size for size in tables if memory.is_large(size))
    if room:  # all ask before any of them takes its share
        distributed.check_on_all(
            lambda: memory.check_scratch_space(
                room, f"{method} would score {images} images × {classes} classes at once:"
            )
        )
