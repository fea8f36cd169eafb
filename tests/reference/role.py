"""Expected positives and ROLE (Cole 2021), entry by entry."""

import math

import torch
from torch import Tensor


def penalty(x: Tensor, k: float) -> Tensor:
    total = 0 * x.sum()
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            total = total + torch.sigmoid(x[i, c])
    return (total / x.shape[0] - k) ** 2 / x.shape[1] ** 2


def known(x: Tensor, labels: list[list[int]]) -> Tensor:
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            if labels[i][c] == 1:
                loss = loss - torch.log(torch.sigmoid(x[i, c]))
            elif labels[i][c] == -1:
                loss = loss - torch.log(1 - torch.sigmoid(x[i, c]))
    return loss / (len(labels) * len(labels[0]))


def epr(x: Tensor, labels: list[list[int]], k: float) -> Tensor:
    return known(x, labels) + penalty(x, k)


def cross(teacher: Tensor, x: Tensor) -> Tensor:
    """Cross-entropy of σ(x) under the fixed target σ(teacher), a mean over B·C."""
    loss = 0 * x.sum()
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            q, p = torch.sigmoid(teacher[i, c]).item(), torch.sigmoid(x[i, c])
            loss = loss - q * torch.log(p) - (1 - q) * torch.log(1 - p)
    return loss / x.numel()


def role(x: Tensor, theta: Tensor, labels: list[list[int]], k: float) -> Tensor:
    of_f = known(x, labels) + cross(theta, x) + penalty(x, k)
    of_theta = known(theta, labels) + cross(x, theta) + penalty(theta, k)
    return (of_f + of_theta) / 2


def positives_per_image(labels: list[list[int]]) -> float:
    """k from the labels: the sum of the classes' shares where these are missing at random, else positives per image.

    They are not if half as many images know no positive as the shares would make, or fewer.
    """
    values = [value for row in labels for value in row]
    share = []
    for column in zip(*labels, strict=True):
        present, absent = column.count(1), column.count(-1)
        share.append(present / (present + absent) if present + absent else 0.0)
    expected = seen = 0.0
    for row in labels:
        if any(row):
            expected += math.prod(1 - s for s, value in zip(share, row, strict=True) if value != 0)
            seen += 1 not in row
    reported = expected >= 10
    if -1 in values and (seen >= expected / 2 if reported else values.count(-1) >= 0.05 * sum(map(abs, values))):
        return sum(share)
    labelled = [row for row in labels if any(row)]
    return sum(row.count(1) for row in labelled) / len(labelled) if labelled else 0.0


def logit(p: float) -> float:
    return math.log(p / (1 - p))


CASES = [
    ("epr", {"positives": k}, lambda x, labels, epoch, k=k: epr(x, labels, k or positives_per_image(labels)))
    for k in (1.5, 0.0)
]
