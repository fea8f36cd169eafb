"""Labels as a path through a recurrent network (Wang 2016)."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.features.heads import Head, HeadMaker, Model, find_head, pool
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, BelowOne, Method, Size, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.types import Batch, Output, at_least_float32

_MIN_LOG_PROBABILITY = math.log(1e-6)  # the search of an image stops when its paths are together less likely


@method(
    serves=REGIMES,
    paper="Wang, Yang, Mao, Huang, Huang, Xu 2016: CNN-RNN, a unified framework for multi-label image classification",
    lr=3e-4,
    tune={"order": ("frequent", "rare", "learned")},
)
def cnn_rnn(
    order: Literal["frequent", "rare", "learned"] = "frequent",
    unknown: Unknown = "auto",
    dimensions: Size = 64,
    hidden: Size = 128,
    dropout: BelowOne = 0.0,
    beam: Size = 5,
    length: Size = 10,
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

    order: frequent labels first (as in the paper), rare first, or learned: as the model scores the positives at the
    first step. unknown: as in `warp`. dimensions (of u), hidden (of the LSTM). dropout: of z. beam: paths per image.
    length: the most labels of a path.

    Differs from the paper: there all labels are known, so every label but the next one competes.
    """
    head = partial(RecurrentHead, dimensions=dimensions, hidden=hidden, dropout=dropout, beam=beam, length=length)
    return Paths(Ordered(order, unknown), head)


class Ordered(UnknownAs):
    """`UnknownAs`, and the order of the known positives of an image in its path."""

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


class RecurrentHead(Head):
    """A path of labels: an LSTM reads the labels so far; its state and the image score the next label.

        P(l(t) = c | l(1) … l(t−1)) = exp s_c(t) / (exp s_end(t) + Σ_{c' not yet in the path} exp s_c'(t))

    Each label has one vector u_c, used as input and for scoring. The path ends with `end` and holds no label twice. In
    training the logits are the margins s_c − s_end of the first step, and `unroll` returns those of later steps. In
    evaluation a beam search keeps the `beam` likeliest paths per image for `length` steps, and

        p_c = Σ_t Σ_{paths π of t − 1 labels in the beam} P(π) P(l(t) = c | π);   x_c = log p_c − log(1 − p_c)

    is the probability that the path contains c, without the paths outside the beam. The search of an image stops when
    its paths have together a probability below 1e-6.

    (B, D) or (B, D, h, w) -> logits (B, C). `class_maps` are the first step's margins at every place.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        dimensions: int = 64,
        hidden: int = 128,
        dropout: float = 0.0,
        beam: int = 5,
        length: int = 10,
    ) -> None:
        super().__init__()
        self.classes, self.beam, self.length = classes, beam, min(length, classes)
        self.labels = nn.Parameter(torch.randn(classes + 2, dimensions) / dimensions**0.5)  # then start, end
        self.lstm = nn.LSTM(dimensions, hidden, batch_first=True)
        self.from_state = nn.Linear(hidden, dimensions)
        self.from_image = nn.Linear(channels, dimensions)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        image = self.from_image(pooled)
        return Output(self._first(image) if self.training else self._search(image), pooled)

    def unroll(self, features: Tensor, path: Tensor) -> Tensor:
        """Margins after each label of a path: (R, D) and (R, T) label numbers -> (R, T, C); invalid after its end."""
        state, _ = self.lstm(torch.cat([self._start(len(path)), self.labels[path]], 1))
        return self._margins(self.from_image(features)[:, None], state[:, 1:])

    def class_maps(self, maps: Tensor) -> Tensor:
        image = self.from_image(maps.permute(0, 2, 3, 1))
        return self._first(image).permute(0, 3, 1, 2)

    def _start(self, count: int) -> Tensor:
        return self.labels[self.classes].expand(count, 1, -1)

    def _first(self, image: Tensor) -> Tensor:
        state, _ = self.lstm(self._start(1))
        return self._margins(image, state[0, 0])

    def _margins(self, image: Tensor, state: Tensor) -> Tensor:
        """(…, d) and (…, hidden) -> (…, C)."""
        joined = self.dropout(torch.relu(self.from_state(state) + image))
        margins: Tensor = joined @ (self.labels[: self.classes] - self.labels[self.classes + 1]).T
        return margins

    def _search(self, image: Tensor) -> Tensor:
        """(B, d) -> logits (B, C), float32 or wider."""
        count, device = len(image), image.device
        out, memory = self.lstm(self._start(1))
        out = out.expand(count, 1, -1)  # (B, paths, hidden)
        memory = tuple(part.expand(1, count, -1).contiguous() for part in memory)
        path = at_least_float32(image).new_zeros(count, 1)  # log P of each path
        in_path = torch.zeros(count, 1, self.classes, dtype=torch.bool, device=device)
        log_p = at_least_float32(image).new_full((count, self.classes), -math.inf)
        for step in range(self.length):
            margins = at_least_float32(self._margins(image[:, None], out)).masked_fill(in_path, -math.inf)
            end = margins.new_zeros(*margins.shape[:2], 1)
            joint = path[:, :, None] + margins - torch.cat([margins, end], 2).logsumexp(2, keepdim=True)
            log_p = torch.stack([log_p, joint.logsumexp(1)]).logsumexp(0)
            if step + 1 == self.length:
                break
            path, flat_index = joint.flatten(1).topk(min(self.beam, joint.shape[1] * self.classes))
            # Decided for each image by itself, so that a score does not depend on the rest of the batch.
            path = path.masked_fill(path.logsumexp(1, keepdim=True) < _MIN_LOG_PROBABILITY, -math.inf)
            if not torch.compiler.is_exporting() and not bool(path.isfinite().any()):
                break
            parent, label = flat_index // self.classes, flat_index % self.classes
            in_path = in_path.gather(1, parent[:, :, None].expand(-1, -1, self.classes))
            in_path = in_path.scatter(2, label[:, :, None], True)
            out, memory = self._lstm_step(label, parent, memory)
        return log_p - torch.log(-torch.expm1(log_p.clamp(max=-1e-6)))

    def _lstm_step(
        self, label: Tensor, parent: Tensor, memory: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step of the LSTM from the parents of the paths, (B, paths) each -> (B, paths, hidden) and its memory."""
        count, paths = label.shape
        before = memory[0].shape[1] // count
        rows = (torch.arange(count, device=label.device)[:, None] * before + parent).flatten()
        out, after = self.lstm(self.labels[label.flatten()][:, None], tuple(part[:, rows] for part in memory))
        return out.view(count, paths, -1), after


def path_loss(first: Tensor, later: Tensor, present: Tensor, absent: Tensor, path: Tensor) -> Tensor:
    """−log P of each image's path up to its `end`, with only known labels in the denominator of each step.

    L_i = Σ_{t = 1 … n_i + 1} log(1 + Σ_{c competes at t} exp m_c(t)) − m_{l(t)}(t),  m_end = 0

    A label competes if it is known and absent, or present and not yet in the path.

    first (B, C) margins of the first step; later (R, T, C) those after each label of the paths, in the order of the R
    images that have one; present, absent (B, C) bool; path (B, T) label numbers, C after the last -> (B,).
    """
    classes = first.shape[1]
    target = torch.cat([path, path.new_full((len(path), 1), classes)], 1)
    loss = _step_loss(at_least_float32(first), present | absent, target[:, 0])
    rows = (target[:, 0] < classes).nonzero().squeeze(1)
    if not len(rows):
        return loss
    paths, steps = path[rows], torch.arange(1, path.shape[1] + 1, device=path.device)
    # The step at which each label comes in the path; labels that are not in it get a step after its end.
    never = path.shape[1] + 1
    label_step = paths.new_full((len(rows), classes + 1), never).scatter(1, paths, steps.expand_as(paths))[:, None, :-1]
    competing = absent[rows, None] | (present[rows, None] & (label_step > steps[:, None]))
    later_loss = _step_loss(at_least_float32(later), competing, target[rows, 1:])
    return loss.index_add(0, rows, (later_loss * (paths < classes)).sum(1))


def _step_loss(margins: Tensor, competing: Tensor, target: Tensor) -> Tensor:
    """(…, C), (…, C) bool, (…) -> (…): the target is the number of a competing label, or C for `end`."""
    scores = torch.cat([margins.masked_fill(~competing, -math.inf), margins.new_zeros(*margins.shape[:-1], 1)], -1)
    return scores.logsumexp(-1) - scores.gather(-1, target[..., None]).squeeze(-1)
