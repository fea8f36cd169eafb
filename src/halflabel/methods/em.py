"""Entropy maximisation and asymmetric pseudo-labels: what is unknown is acknowledged to be unknown (Zhou 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.label_store import Soft
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler, check_size, never_starts
from halflabel.methods.parts.terms import Entropy
from halflabel.system.rng import hash_names
from halflabel.system.validate import above, at_least, between
from halflabel.types import Batch, Sweep, Targets, at_least_float32

__all__ = ["APL", "FewAbsent", "em", "em_apl"]

_BYTES_FROM = 1 << 28  # bytes of soft labels from which on each takes one byte instead of four
_BLOCK = 1 << 20  # entries looked at together: few enough to stay in the processor's cache
_WIDE = 1 << 13  # classes looked at together: counts of their digits take 64 MB
_DIGIT = 11  # bits


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="Zhou 2022 (Acknowledging the Unknown), EM loss",
    tune={"alpha": (0.05, 0.1, 0.2, 0.5)},
)
def em(alpha: float = 0.2, few_absent: float = 0.1) -> Method:
    """Cross-entropy on known labels, and unknown entries kept as uncertain as can be instead of called absent.

    Use it for single positives and other positives-only labels: missing positives are not punished, and present classes
    still rise above the rest. Scores are not probabilities: the paper thresholds at 0.75. With all labels known it
    equals `bce`.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p)),  H(p) = −p log p − (1 − p) log(1 − p)

    The loss can be negative. Options: alpha (α); the released code's: 0.2 for VOC, 0.1 for COCO and NUS-WIDE, 0.01 for
    CUB. few_absent: the weight of a known negative's term where known positives outnumber them; 0 keeps it uncertain as
    if it were unknown. Such negatives are the few that somebody was asked about; charged in full they would outweigh
    all that is kept uncertain (VOC 2012, 2,000 answers picked by `halflabel next`, one seed, frozen features: mAP 82.3
    without them, 83.0 at 0.1, 80.1 at 1). The paper's figure (VOC 2012, one positive per image): mAP 89.09 against
    85.89 of `an` and 89.42 with all labels.

    Differs from the released code: known negatives, which it refuses, are charged as known negatives, by few_absent
    where they are few; and it adds 1e-5 inside every log.
    """
    at_least(0, alpha=alpha, few_absent=few_absent)
    return Method(BCE(), FewAbsent(few_absent), terms=[Entropy(-alpha)])


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="Zhou 2022 (Acknowledging the Unknown), EM loss + APL",
    tune={"alpha": (0.05, 0.1, 0.2, 0.5)},
)
def em_apl(
    alpha: float = 0.2,
    beta: float = 0.02,
    theta: float = 0.9,
    apl_from: int = 5,
    apl_to: int = 0,
    few_absent: float = 0.1,
) -> Method:
    """`em`, and after a warm-up the unknown entries with the lowest scores become soft negative labels, class by class.

    Use it for single positives and other positives-only labels when there is time for a pass over the training set per
    epoch. Only the negative side gets pseudo-labels (that is the asymmetry): most unknown entries are absent, so the
    lowest scores are almost surely right.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p) + β Σ_pseudo [−s log p − (1 − s) log(1 − p)])
        after each epoch e with W ≤ e < E: of class c, the ⌊θ U_c / (E − W)⌋ lowest of the entries still unknown
        become pseudo-labels for good, with s = p as scored then; U_c = entries unknown at the start

    Options: alpha (α), beta (β), theta (θ, the share of unknown entries labelled in the end, but for rounding down),
    apl_from (W, warm-up) and apl_to (E; 0 = the number of epochs trained, as in the released code). Its α, β, W: VOC
    0.2, 0.02, 5; COCO 0.1, 0.9, 5; NUS-WIDE 0.1, 0.2, 4; CUB 0.01, 0.4, 3; E = 10. few_absent: as in `em`. Training of
    W epochs or fewer is plain `em`. The paper's figure (VOC 2012, one positive per image): mAP 89.19 against 89.09 of
    `em` and 85.89 of `an`.

    Differs from the released code: known negatives stay known negatives (it would read one as a soft label of 1); the
    entries to label are scored on images as they are (there half of them mirrored, by chance); and it adds 1e-5 inside
    every log.
    """
    at_least(0, alpha=alpha, few_absent=few_absent)
    above(0, beta=beta)
    between(0, 1, theta=theta)
    if apl_from < 1 or (apl_to and apl_to <= apl_from):
        raise UserError(f"apl_from {apl_from} and apl_to {apl_to} do not fit", "1 ≤ apl_from < apl_to, or apl_to = 0")
    return Method(BCE(), APL(beta, theta, apl_from, apl_to, few_absent), terms=[Entropy(-alpha)])


class FewAbsent(Relabeler):
    """Known + → (1, 0), known − → (0, 1), or (0, weight) where known positives outnumber them, unknown → (0, 0).

    With all labels known there is nothing that they could outweigh: 1 then.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.charged = 1.0

    def start(self, table: LabelTable) -> None:
        stats = table.stats()
        few = stats.positives.sum() > stats.negatives.sum() and stats.unknown.sum() > 0
        self.charged = self.weight if few else 1.0

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = at_least_float32(logits).dtype
        return Targets((batch.labels > 0).to(dtype), self.charged * (batch.labels < 0).to(dtype))


class APL(Relabeler):
    """Known labels as in `FewAbsent`, pseudo-labelled → (β s, β (1 − s)), still unknown → (0, 0).

    Equal scores are taken in an order that is a function of the images' names, so the order of the table does not
    matter; images that cannot be read stay unknown.

    Memory: 4 bytes per image, and 4 per image and class; from 256 MB of these on 1 byte per image and class, in which s
    is wrong by at most 0.002, and from 256 MB of those on in a scratch file. In the end the share θ of the unknown
    entries holds an s of its own each, so two bits per entry, as for hard labels, would not do. A sweep adds 4 bytes
    per image and class, from 256 MB on in a scratch file, and up to 300 MB of memory. It goes over both tables in their
    order, four times and, where scores are equal at a class's cut-off, two or three times more.
    """

    soft: Tensor | None  # (N, C) float32: s where pseudo-labelled, −1 where known, NaN where still unknown
    bytes: Soft | None  # the same for large tables
    quota: Tensor  # (C,) int64: pseudo-labels per sweep
    rank: Tensor  # (N,) int32: the place of each image in the order of the hashes of their names
    wants_features = False

    def __init__(self, beta: float, theta: float, first: int, end: int, few_absent: float = 0.1) -> None:
        super().__init__()
        self.beta = beta
        self.theta = theta
        self.first = first
        self.given_end = end
        self.end = end
        self.unknown = 0  # entries, at the start
        self.known = FewAbsent(few_absent)
        self.bytes = None
        self.register_buffer("soft", None)
        self.register_buffer("quota", None, persistent=False)
        self.register_buffer("rank", None, persistent=False)

    def plan(self, epochs: int) -> None:
        self.end = self.given_end or epochs

    def idle(self, epochs: int) -> str:
        earlier = f"--apl-from {epochs - 1}" if epochs > 1 else ""
        return never_starts("learning from pseudo-labels", self.first + 1, epochs, earlier)

    def start(self, table: LabelTable) -> None:
        large = 4 * len(table) * len(table.classes) >= _BYTES_FROM
        check_size(table, 0 if large else 4, "em-apl", sweeps=1, stored=1 if large else 0)
        self.known.start(table)
        self.soft = self.bytes = None  # it may have been started before, on a table of another size
        if large:
            self.bytes = Soft()
            self.bytes.start(table, "em-apl")
        else:
            self.soft = torch.full(table.shape, math.nan)
            image, column, _ = table.entries()
            self.soft[torch.from_numpy(image), torch.from_numpy(column.astype(np.int64))] = -1.0
        # The tiny addend: 0.29 · 100 is 28.999… in floating point, and 29 is meant.
        unknown = table.stats().unknown
        self.unknown = int(unknown.sum())
        quota = np.floor(self.theta * unknown / max(self.end - self.first, 1) + 1e-9)
        self.quota = torch.from_numpy(quota.astype(np.int64))
        order = np.argsort(hash_names(table.images.array), kind="stable")
        self.rank = torch.from_numpy(np.argsort(order).astype(np.int32))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        wide = at_least_float32(logits)
        pos, neg = self.known(batch, wide, epoch)
        rows = self.bytes.rows(batch.index) if self.soft is None else self.soft[batch.index]  # type: ignore[union-attr]
        soft = rows.to(wide.dtype)
        pseudo = soft >= 0
        pos = pos + torch.where(pseudo, self.beta * soft, 0)
        neg = neg + torch.where(pseudo, self.beta * (1 - soft), 0)
        return Targets(pos, neg)

    def wants_sweep(self, epoch: int) -> bool:
        return self.unknown > 0 and self.first <= epoch < self.end

    @torch.no_grad()
    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        classes = sweep.logits.shape[1]
        left = sum(self._label(sweep.logits, slice(first, first + _WIDE)) for first in range(0, classes, _WIDE))
        labelled = self.unknown - left
        return {"pseudo_labels": float(labelled), "pseudo_share": labelled / max(self.unknown, 1)}

    def _label(self, logits: Tensor, classes: slice) -> int:
        """Turn the lowest entries still unknown of some classes into pseudo-labels; how many stay unknown."""
        images = len(logits)
        step = max(_BLOCK // max(len(self.quota[classes]), 1), 1)
        parts = [slice(first, first + step) for first in range(0, images, step)]

        def blocks() -> Iterator[tuple[slice, Tensor, Tensor]]:
            """Some images after the others: their logits, and which entries can be taken."""
            for rows in parts:
                values = logits[rows, classes].to(self.rank.device)
                yield rows, values, self._unknown(rows, classes) & ~values.isnan()

        def keys() -> Iterator[tuple[Tensor, Tensor]]:
            return ((_key(values), free) for _, values, free in blocks())

        def ranks() -> Iterator[tuple[Tensor, Tensor]]:
            return ((self.rank[rows, None], free & (_key(values) == cut)) for rows, values, free in blocks())

        cut, wanted, there = _cut_off(keys, self.quota[classes], 32, signed=True)
        last = torch.full_like(cut, images)
        if bool((wanted < there).any()):  # of equal ones the first in the order of names
            last = _cut_off(ranks, wanted, max(images - 1, 1).bit_length())[0]
        cut = cut.where(wanted > 0, torch.iinfo(cut.dtype).min)  # lower than any
        left = 0
        for rows, values, free in blocks():
            key = _key(values)
            chosen = free & ((key < cut) | ((key == cut) & (self.rank[rows, None] <= last)))
            self._put(rows, classes, chosen, values.sigmoid())
            left += int(self._unknown(rows, classes).sum())
        return left

    def _unknown(self, rows: slice, classes: slice) -> Tensor:
        if self.soft is not None:
            return self.soft[rows, classes].isnan()
        assert self.bytes is not None
        return self.bytes.unknown(rows, classes).to(self.rank.device)

    def _put(self, rows: slice, classes: slice, chosen: Tensor, soft: Tensor) -> None:
        if self.soft is not None:
            self.soft[rows, classes] = torch.where(chosen, soft, self.soft[rows, classes])
            return
        assert self.bytes is not None
        self.bytes.put(rows, classes, chosen, soft)


def _key(logits: Tensor) -> Tensor:
    """Whole numbers in the order of the logits, equal where these are: float32 -> int32. Not for NaN.

    By logits rather than scores, which are equal where they underflow.
    """
    bits = (logits.float() + 0.0).view(torch.int32)  # −0 + 0 is 0
    # The size of a negative number grows downwards: all bits but the sign the other way round.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _cut_off(
    blocks: Callable[[], Iterator[tuple[Tensor, Tensor]]], count: Tensor, bits: int, *, signed: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The count-th lowest value of each column of a table that is read block by block, digit by digit from the top.

    A block is (b, C) or (b, 1) int32 of so many bits and a (b, C) mask of the entries that count. Returns (C,) each:
    the value; how many of those equal to it are among the lowest `count`; how many there are. A column of fewer entries
    gives its highest; where there are none, or count is 0, the value means nothing and the second is 0.
    """
    classes = len(count)
    value: Tensor | None = None
    found = count
    while bits:
        width = min(_DIGIT, bits)
        bits -= width
        start = -(1 << width - 1) if signed else 0
        value = torch.full_like(count, start, dtype=torch.int32) if value is None else value << width
        counts = torch.zeros(classes << width, dtype=torch.int32, device=count.device)
        one = counts.new_ones(1)
        for values, among in blocks():
            digit = (values >> bits) - value  # outside 0 … 2^width − 1 where digits above differ
            row, column = (among & (digit >> width == 0)).nonzero(as_tuple=True)
            counts.index_add_(0, (column << width) + digit[row, column], one.expand(len(row)))
        table = counts.view(classes, 1 << width)
        total = table.cumsum(1, dtype=torch.int32)
        count = torch.minimum(count, total[:, -1])
        digit = (total < count[:, None]).sum(1, keepdim=True)
        found = table.gather(1, digit).squeeze(1)
        count = count - (total.gather(1, digit).squeeze(1) - found)
        value = value + digit.squeeze(1).to(torch.int32)
    assert value is not None
    return value, count, found
