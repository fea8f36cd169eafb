"""Large loss matters: unknown entries with the largest losses are probably present (Kim 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.label_store import EntryStore
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Begins, Relabeler
from halflabel.system.validate import between
from halflabel.types import Batch, Targets

_PAPER = "Kim 2022 (Large Loss Matters in Weakly Supervised Multi-Label Classification)"


def largest(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Return the `count` largest values among the candidates, with all ties of the last: (B, C) -> (B, C) bool.

    All ties are included, so that the order of the rows does not matter; with fewer candidates than `count`, all.
    """
    count = min(count, values.numel())
    if count <= 0:
        return torch.zeros_like(candidates)
    threshold = values.masked_fill(~candidates, -math.inf).flatten().topk(count).values[-1]
    return candidates & (values >= threshold)


class LargeLoss(Relabeler):
    """Unknown → absent, except for the k unknown entries of the batch with the largest losses.

    Scheme "reject" ignores these → (0, 0); "correct" takes them as present in this step → (1, 0); "keep" for ever, with
    1 byte per image and class.
    """

    flipped: EntryStore  # (N, C) int8: 1 where flipped

    def __init__(self, scheme: str, delta: float) -> None:
        super().__init__()
        self.scheme = scheme
        self.delta = delta  # percent

    def start(self, table: Table) -> None:
        if self.scheme == "keep":
            self.flipped = EntryStore()
            self.flipped.start(table, "ll-cp")

    def begins(self) -> Begins | None:
        if not self.delta:  # nothing is changed on purpose
            return None
        return Begins("leaving large losses out" if self.scheme == "reject" else "correcting large losses", 2)

    def count(self, entries: int, epoch: int) -> int:
        """Return k for a batch with this many entries."""
        times = min(epoch - 1, 1) if self.scheme == "keep" else epoch - 1
        # Decimal percentages are not exact in binary: 100 · 0.07 must not round up to 8.
        return math.ceil(entries * self.delta * times / 100 - 1e-9)

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        present, unknown = batch.labels > 0, batch.labels == 0
        if self.scheme == "keep":
            flipped = self.flipped.rows(batch.index) > 0
            present, unknown = present | flipped, unknown & ~flipped
        # The loss of an absent entry, softplus(x), grows with x, so the largest logits have the largest losses; logits
        # still differ where the losses are equal by rounding.
        large = largest(logits, unknown, self.count(logits.numel(), epoch))
        if self.scheme != "reject":
            present = present | large
        if self.scheme == "keep" and self.training:
            self.flipped.set_rows(batch.index, flipped | large)
        return Targets(present.to(logits.dtype), (~present & ~large).to(logits.dtype))


@method(serves=REGIMES, paper=_PAPER, tune={"delta": (0.2, 0.5, 1.0)})
def ll_r(delta: float = 0.5) -> Method:
    """Unknown entries count as absent, but those with the largest losses are ignored: they are likely present.

    A network learns clean labels first and memorises wrong ones later, so the ignored share grows with the epochs. Use
    it for positives-only labels as the cautious one of the three schemes: it ignores entries and never adds a positive.

        L = 1/(B·C) Σ λ · ℓ,   ℓ = −log p (present) or −log(1 − p) (absent or unknown)
        λ = 0 for the k = ceil(B·C·Δ·(epoch − 1)) largest ℓ of the batch's unknowns, else 1

    delta Δ: percent of all entries, added per epoch; epochs count from 1, so the first changes nothing. The paper
    trains 10 epochs: over many more, lower delta.

    Differs from the released code: entries that tie with the k-th are ignored with it; k never exceeds the number of
    unknowns; k is not rounded up if B·C·Δ·(epoch − 1) is whole.
    """
    between(0, 100, delta=delta)
    return Method(BCE(), LargeLoss("reject", delta))


@method(serves=REGIMES, paper=_PAPER, tune={"delta": (0.1, 0.2, 0.5)})
def ll_ct(delta: float = 0.2) -> Method:
    """Unknown entries count as absent, but those with the largest losses count as present, for that step only.

    The middle one of the three large-loss schemes: it uses the missing positives it finds and can revoke them in the
    next step. Use it for positives-only labels.

        L = 1/(B·C) Σ ℓ,   ℓ = −log p (present) or −log(1 − p) (absent or unknown), but −log p for the
        k = ceil(B·C·Δ·(epoch − 1)) largest ℓ of the batch's unknowns

    delta Δ: as in `ll-r`.

    Differs from the released code as `ll-r` does.
    """
    between(0, 100, delta=delta)
    return Method(BCE(), LargeLoss("correct", delta))


@method(serves=REGIMES, paper=_PAPER, tune={"delta": (0.05, 0.1, 0.2)})
def ll_cp(delta: float = 0.1) -> Method:
    """Unknown entries count as absent, but those with the largest losses become present and stay so.

    The boldest of the three large-loss schemes: labels are corrected permanently, a few per batch from the second
    epoch on. It stores a byte per training image and class.

        L = 1/(B·C) Σ ℓ,   ℓ = −log p (present, or flipped) or −log(1 − p) (absent or unknown);
        flipped: the k = ceil(B·C·Δ) largest ℓ of the batch's unknowns, and all entries flipped before

    delta Δ: percent of all entries flipped per epoch; epochs count from 1, so the first flips nothing.

    Differs from the released code as `ll-r` does, and: all k entries flipped in the loss are stored (there the k-th is
    not, and a scheme named on the command line stores none).
    """
    between(0, 100, delta=delta)
    return Method(BCE(), LargeLoss("keep", delta))
