"""Assume negative and its relatives (Zhou 2022, comparison table), entry by entry. Losses are means over B·C."""

import torch
from torch import Tensor


def an(x: Tensor, labels: list[list[int]]) -> Tensor:
    return _mean(x, labels, lambda p, label: -torch.log(p) if label == 1 else -torch.log(1 - p))


def an_ls(x: Tensor, labels: list[list[int]], smoothing: float) -> Tensor:
    def cost(p: Tensor, label: int) -> Tensor:
        target = 1 - smoothing if label == 1 else smoothing
        return -target * torch.log(p) - (1 - target) * torch.log(1 - p)

    return _mean(x, labels, cost)


def known_ls(x: Tensor, labels: list[list[int]], smoothing: float) -> Tensor:
    def cost(p: Tensor, label: int) -> Tensor:
        target = 1 - smoothing if label == 1 else smoothing
        return -target * torch.log(p) - (1 - target) * torch.log(1 - p) if label else 0 * p

    return _mean(x, labels, cost)


def n_ls(x: Tensor, labels: list[list[int]], smoothing: float) -> Tensor:
    def cost(p: Tensor, label: int) -> Tensor:
        target = {1: 1.0, 0: smoothing, -1: 0.0}[label]
        return -target * torch.log(p) - (1 - target) * torch.log(1 - p)

    return _mean(x, labels, cost)


def wan(x: Tensor, labels: list[list[int]]) -> Tensor:
    def cost(p: Tensor, label: int) -> Tensor:
        if label == 1:
            return -torch.log(p)
        if label == -1:
            return -torch.log(1 - p)
        return -torch.log(1 - p) / (len(labels[0]) - 1 if len(labels[0]) > 1 else 1)

    return _mean(x, labels, cost)


def entmin(x: Tensor, labels: list[list[int]], alpha: float) -> Tensor:
    def cost(p: Tensor, label: int) -> Tensor:
        if label == 1:
            return -torch.log(p)
        if label == -1:
            return -torch.log(1 - p)
        return alpha * (-p * torch.log(p) - (1 - p) * torch.log(1 - p))

    return _mean(x, labels, cost)


def unknown_scores(x: Tensor, labels: list[list[int]], power: int, strength: float) -> Tensor:
    """Assume negative + ℓ1 or ℓ2 of the unknown entries' scores."""
    return an(x, labels) + _mean(x, labels, lambda p, label: strength * p**power if label == 0 else 0 * p)


def weights(parameters: list[list[float]], power: int, strength: float) -> float:
    """The ℓ1 or ℓ2 penalty of a matrix of weights."""
    penalty = 0.0
    for row in parameters:
        for weight in row:
            penalty += abs(weight) if power == 1 else weight * weight
    return strength * penalty


def _mean(x: Tensor, labels: list[list[int]], cost) -> Tensor:
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            loss = loss + cost(torch.sigmoid(x[i, c]), labels[i][c])
    return loss / (len(labels) * len(labels[0]))


# Method, its options, and its loss from logits (B, C), labels and epoch.
CASES = [
    ("an", {}, lambda x, labels, epoch: an(x, labels)),
    ("an-ls", {"smoothing": 0.1}, lambda x, labels, epoch: an_ls(x, labels, 0.1)),
    ("n-ls", {"smoothing": 0.2}, lambda x, labels, epoch: n_ls(x, labels, 0.2)),
    ("bce", {"smoothing": 0.1}, lambda x, labels, epoch: known_ls(x, labels, 0.1)),
    ("wan", {}, lambda x, labels, epoch: wan(x, labels)),
    ("entmin", {"alpha": 0.3}, lambda x, labels, epoch: entmin(x, labels, 0.3)),
    ("l1r", {"strength": 0.3, "of": "scores"}, lambda x, labels, epoch: unknown_scores(x, labels, 1, 0.3)),
    ("l2r", {"strength": 0.3, "of": "scores"}, lambda x, labels, epoch: unknown_scores(x, labels, 2, 0.3)),
]
