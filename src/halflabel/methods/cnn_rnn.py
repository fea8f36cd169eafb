"""Labels as a path through a recurrent network (Wang 2016)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from halflabel.features.heads import HeadMaker, Model, find_head
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.ranking import UnknownAs
from halflabel.methods.parts.recurrent_head import RecurrentHead, path_loss
from halflabel.system.validate import MAX_SIZE, below_one, between, one_of
from halflabel.types import Batch, Output, at_least_float32


@method(
    serves=REGIMES,
    paper="Wang, Yang, Mao, Huang, Huang, Xu 2016: CNN-RNN, a unified framework for multi-label image classification",
    lr=3e-4,
    tune={"order": ("frequent", "rare", "learned")},
    needs={"beam": {"score": ("sum",)}},
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
    """Predicts the labels of an image one after another, each depending on those before it.

    Use it if labels depend strongly on each other and images have several known positives. It also learns from known
    negatives. Prediction is a beam search, several times slower than a linear head; with C = 5,000 it takes half a
    megabyte per image.

        o(t) = LSTM(u_{l(t−1)});   z(t) = ReLU(U_o o(t) + U_I f);   s_c(t) = u_c · z(t)
        L = 1/B Σ_i Σ_t −log [exp s_{l(t)}(t) / (exp s_end(t) + Σ_{c ∈ K(t)} exp s_c(t))]

    l(1) … l(n) are the known positives in order, l(n+1) = end; each step receives the true labels before it, not
    the predicted ones (teacher forcing). K(t): known negatives, and known positives that are not yet in the path.
    Unknown labels do not compete, because they may be present or not. An image with negatives only teaches that its
    path ends before them.

    The score of c is the probability that a path contains it: the sum of P(path to c) over the steps of a beam search.
    The best path only would leave most labels without a score.

    order: frequent labels first (as in the paper), rare first, or learned: as the model scores the positives at the
    first step. unknown: ignore, negative (absent, as in Huynh 2020), or auto: absent if no label at all is known to be
    absent. dimensions (of u), hidden (of the LSTM). dropout: of z. beam: paths per image. length: the most labels of a
    path. score: sum as above, or max, the most likely path.

    Differs from the paper: there all labels are known, so every label but the next one competes.
    """
    between(1, MAX_SIZE, dimensions=dimensions, hidden=hidden, beam=beam, length=length)
    below_one(dropout=dropout)
    one_of(("frequent", "rare", "learned"), order=order)
    one_of(("sum", "max"), score=score)
    head = partial(
        RecurrentHead, dimensions=dimensions, hidden=hidden, dropout=dropout, beam=beam, length=length, score=score
    )
    return Paths(Ordered(order, unknown), head)


class Ordered(UnknownAs):
    """`UnknownAs`, and the order of the known positives of an image in its path.

    "frequent": the label with the most known positives first; "rare": last; "learned": by the scores of the model at
    the first step. Stores 8 bytes per class.
    """

    position: Tensor  # (C,) int64, position of each label in the fixed order

    def __init__(self, order: str, unknown: str) -> None:
        super().__init__(unknown)
        self.order = order

    def start(self, table: Table) -> None:
        super().start(table)
        positives = table.stats.positives
        ranked = np.argsort(positives if self.order == "rare" else -positives, kind="stable")
        self.register_buffer("position", torch.from_numpy(np.argsort(ranked)))

    def path(self, present: Tensor, logits: Tensor) -> Tensor:
        """(B, C) bool, logits of the first step -> (B, T) label numbers, C after the last; T = the longest path."""
        classes = present.shape[1]
        logits = at_least_float32(logits)
        key = -logits if self.order == "learned" else self.position.to(logits.dtype).expand_as(logits)
        count = present.sum(1)
        longest = int(count.max()) if len(count) else 0
        ranked = key.masked_fill(~present, torch.inf).argsort(dim=1, stable=True)[:, :longest]
        after = torch.arange(longest, device=count.device) >= count[:, None]
        return ranked.masked_fill(after, classes)


class Paths(Method):
    """Teacher forcing along the path of the known positives."""

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
