"""Partial-BCE and WELDON pooling (Durand 2019), entry by entry and cell by cell."""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def partial_bce(x: list[list[Tensor]], labels, alpha: float, beta: float, gamma: float) -> Tensor:
    """Eq. 1 and 2, with the minus sign that eq. 1 lacks; the mean over images. Nothing known costs nothing."""
    total = torch.zeros((), dtype=torch.float64)
    for scores, known in zip(x, labels, strict=True):
        classes = len(scores)
        count = sum(1 for label in known if label != 0)
        if count == 0:
            continue
        image = torch.zeros((), dtype=torch.float64)
        for score, label in zip(scores, known, strict=True):
            if label > 0:
                image = image + softplus(-score)
            elif label < 0:
                image = image + softplus(score)
        p = count / classes
        total = total + (alpha * p**gamma + beta) / classes * image
    return total / len(x)


def weldon(features: Tensor, weight: Tensor, bias: Tensor, high: int, low: int) -> Tensor:
    """(B, D, h, w) features -> (B, C) scores, from the `high` highest and the `low` lowest cells of each class map."""
    rows = []
    for image in features:
        row = []
        for w, b in zip(weight, bias, strict=True):
            cells = [(w * image[:, i, j]).sum() + b for i in range(image.shape[1]) for j in range(image.shape[2])]
            cells.sort(key=lambda cell: cell.item())
            top = sum(cells[len(cells) - high :]) / high
            row.append((top + sum(cells[:low]) / low) / 2 if low else top)
        rows.append(torch.stack(row))
    return torch.stack(rows)


CASES = [
    (
        "partial-bce",
        {"alpha": a, "beta": b, "gamma": g},
        lambda x, labels, epoch, w=(a, b, g): partial_bce(x, labels, *w),
    )
    for a, b, g in ((-4.45, 5.45, 1.0), (1.0, 0.0, -1.0), (2.0, 1.0, 2.0))
]
