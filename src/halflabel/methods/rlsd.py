"""A recurrent network predicts the labels of each region of the image (after Zhang 2018)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from halflabel.features.heads import pool
from halflabel.methods.base import REGIMES, BelowOne, Method, Size, method
from halflabel.methods.cnn_rnn import RecurrentHead
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.system.validate import between
from halflabel.types import Output, at_least_float32


@method(
    serves=REGIMES,
    paper="after Zhang, Wu, Shen, Zhang, Lu 2018: Multilabel image classification with regional latent semantic "
    "dependencies",
    lr=3e-4,
    tune={"levels": (1, 2, 3)},
)
def rlsd(
    levels: int = 3,
    length: Size = 4,
    unknown: Unknown = "auto",
    dimensions: Size = 64,
    hidden: Size = 128,
    dropout: BelowOne = 0.0,
) -> Method:
    """Predicts the labels of every region one after another; the image has the labels of all its regions.

    For small objects, and labels that occur together in one place. It needs features with places (maps), which take
    more disk and memory than pooled ones.

        f_r = mean of the map over window r;   l_r(0) = start
        o_r(t) = LSTM(u_{l_r(t−1)});   z_r(t) = ReLU(U_o o_r(t) + U_I f_r);   m_rc(t) = (u_c − u_end) · z_r(t)
        l_r(t) = the c with the largest m_rc(t) not yet in the path of r; the path ends where that is ≤ 0
        x_c = max over r, and over t until the path of r ends or contains c, of m_rc(t)
        L = BCE of x, mean over the known entries of the batch

    Windows: n × n of level n = 1 … levels, each 2/(n + 1) of the image wide and high, so that neighbours overlap by
    half: the whole image, 4 of two thirds, 9 of a half. It is not known which label is in which region: in training
    too a path follows the predictions, and the maximum decides which region learns.

    levels: 1 = the whole image only. length: the most labels of a region; 1 = no path, the maximum over windows.
    unknown: as in `warp`. dimensions (of u), hidden (of the LSTM), dropout (of z): as in `cnn-rnn`.

    Differs from the paper in its regions: there a localisation network trained on boxes proposes them; here they are
    fixed, and no boxes are needed. Paths that follow predictions in training, the loss and all sizes are our choice.
    """
    between(1, 64, levels=levels)  # the last level has 64² windows
    head = partial(Regional, levels=levels, length=length, dimensions=dimensions, hidden=hidden, dropout=dropout)
    return Method(BCE(), UnknownAs(unknown), head=head, reduce=over_known)


class Regional(RecurrentHead):
    """`RecurrentHead` in every window of the map, each path following its own best label; the maximum over windows.

    A region ends where `end` beats all labels that it has not named. The first step always counts. Training and
    evaluation are alike. (B, D, h, w) -> logits (B, C); pooled features (B, D) are maps of one cell, where all windows
    are the same.
    """

    needs_maps = True

    def __init__(self, channels: int, classes: int, *, levels: int = 3, length: int = 4, **recurrent: Any) -> None:
        super().__init__(channels, classes, beam=1, length=length, **recurrent)
        self.levels = levels

    def forward(self, features: Tensor) -> Output:
        places = features if features.ndim == 4 else features[:, :, None, None]
        regions = self.from_image(windows(places, self.levels))
        named = self._follow(regions.flatten(0, 1))
        return Output(named.view(*regions.shape[:2], -1).amax(1), pool(features))

    def _follow(self, region: Tensor) -> Tensor:
        """The best margin of each label along each region's own path: (R, d) -> (R, C)."""
        out, memory = self.lstm(self._start(1))  # of each different path; at first all regions have the empty one
        path = torch.zeros(len(region), dtype=torch.int64, device=region.device)  # the number of each region's path
        best = margins = self._margins(region, out[:, 0][path])
        closed = torch.zeros_like(margins, dtype=torch.bool)  # named, or after the end
        for _ in range(1, self.length):
            top, label = margins.detach().masked_fill(closed, -torch.inf).max(1, keepdim=True)
            closed = closed.scatter(1, label, True) | (top <= 0)
            longer = path * self.classes + label.squeeze(1)
            if torch.compiler.is_exporting():  # the number of different paths would be unknown
                path = torch.arange(len(region), device=region.device)
            else:  # the LSTM reads labels only, so regions with the same labels share its state
                longer, path = longer.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            parent = longer // self.classes
            out, memory = self.lstm(
                self.labels[longer % self.classes][:, None], tuple(part[:, parent] for part in memory)
            )
            margins = self._margins(region, out[:, 0][path])
            best = torch.maximum(best, margins.masked_fill(closed, -torch.inf))
        return best


def windows(maps: Tensor, levels: int) -> Tensor:
    """Means of n × n windows of each level n = 1 … levels: (B, D, h, w) -> (B, Σ n², D).

    A window of level n is 2/(n + 1) of the map wide and high, and the next begins 1/(n + 1) further. Cells at its edge
    are weighted by the part that is inside, without rounding, so small maps have all windows too.
    """
    means = []
    for level in range(1, levels + 1):
        down, across = (_shares(size, level, maps) for size in maps.shape[2:])
        means.append(torch.einsum("bdhw,rh,cw->brcd", maps, down, across).flatten(1, 2))
    return torch.cat(means, 1)


def _shares(size: int, level: int, like: Tensor) -> Tensor:
    """Return the weight of each of `size` cells in each of `level` windows: (level, size), rows sum to 1."""
    exact = at_least_float32(like).dtype
    begin = torch.arange(level, dtype=exact, device=like.device)[:, None] * size / (level + 1)
    end = begin + 2 * size / (level + 1)
    cell = torch.arange(size, dtype=exact, device=like.device)
    inside = (torch.minimum(end, cell + 1) - torch.maximum(begin, cell)).clamp(min=0)
    return (inside * (level + 1) / (2 * size)).to(like.dtype)
