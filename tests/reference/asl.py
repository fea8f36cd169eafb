"""Asymmetric loss (Ridnik 2021), entry by entry, summed over the batch."""

import torch
from torch import Tensor


def asl(
    x: Tensor,
    labels: list[list[int]],
    gamma_neg: float,
    gamma_pos: float,
    margin: float,
    *,
    ignore: bool = False,
    detach: bool = False,
) -> Tensor:
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            p = torch.sigmoid(x[i, c])
            if labels[i][c] == 1:
                weight, cost = (1 - p) ** gamma_pos, -torch.log(p)
            elif labels[i][c] == -1 or not ignore:
                if p <= margin:
                    continue
                weight, cost = (p - margin) ** gamma_neg, -torch.log(1 - (p - margin))
            else:
                continue
            loss = loss + (weight.detach() if detach else weight) * cost
    return loss


CASES = [
    (
        "asl",
        {"gamma_neg": neg, "gamma_pos": pos, "margin": margin, "unknown": unknown, "detach": detach},
        lambda x, labels, epoch, neg=neg, pos=pos, margin=margin, unknown=unknown, detach=detach: (
            asl(x, labels, neg, pos, margin, ignore=unknown == "ignore", detach=detach) / len(x)
        ),
    )
    for neg, pos in ((4.0, 0.0), (2.0, 1.0), (0.5, 0.5))
    for margin in (0.0, 0.05, 0.3)
    for unknown in ("negative", "ignore")
    for detach in (False, True)
]
