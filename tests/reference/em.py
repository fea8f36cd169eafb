"""Entropy maximisation and asymmetric pseudo-labelling (Zhou 2022), entry by entry."""

from fractions import Fraction

import torch
from torch import Tensor


def em_apl(x: Tensor, labels: list[list[int]], soft: list[list[float | None]], alpha: float, beta: float) -> Tensor:
    """EM+APL: `soft` is the pseudo-label of an entry, None where there is none. With None everywhere it is EM."""
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            p, s = torch.sigmoid(x[i, c]), soft[i][c]
            if labels[i][c] == 1:
                loss = loss - torch.log(p)
            elif labels[i][c] == -1:
                loss = loss - torch.log(1 - p)
            elif s is not None:
                loss = loss + beta * (-s * torch.log(p) - (1 - s) * torch.log(1 - p))
            else:
                loss = loss - alpha * (-p * torch.log(p) - (1 - p) * torch.log(1 - p))
    return loss / (len(labels) * len(labels[0]))


def em(x: Tensor, labels: list[list[int]], alpha: float) -> Tensor:
    return em_apl(x, labels, [[None] * len(row) for row in labels], alpha, 0.0)


def apl_sweep(
    scores: list[list[float | None]],
    labels: list[list[int]],
    soft: list[list[float | None]],
    theta: Fraction,
    sweeps: int,
    rank: list[int],
) -> list[list[float | None]]:
    """One sweep: class by class, freeze the lowest scores of the entries still unknown; ties by `rank` of the image."""
    after = [list(row) for row in soft]
    for c in range(len(labels[0])):
        unknown_at_start = sum(labels[i][c] == 0 for i in range(len(labels)))
        quota = int(theta * unknown_at_start / sweeps)
        still = [i for i in range(len(labels)) if labels[i][c] == 0 and soft[i][c] is None]
        readable = [i for i in still if scores[i][c] is not None]
        for i in sorted(readable, key=lambda i: (scores[i][c], rank[i]))[:quota]:
            after[i][c] = scores[i][c]
    return after


CASES = [("em", {"alpha": 0.3, "few_absent": 1.0}, lambda x, labels, epoch: em(x, labels, 0.3))]
