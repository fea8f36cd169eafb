"""The loss of Huynh 2020, one number at a time from eq. 1–7 and algorithm 2."""

from __future__ import annotations

import numpy as np
import torch

import omp


def impute(logits, labels):
    """Eq. 3, then from [−1, 1] to [−0.5, 1]; logits: rows of torch scalars."""
    rows = []
    for row, known in zip(logits, labels, strict=True):
        y = [
            2 / (1 + torch.exp(-x)) - 1 if label == 0 else x * 0 + float(label)
            for x, label in zip(row, known, strict=True)
        ]
        rows.append([0.75 * value + 0.25 for value in y])
    return rows


def plain(rows):
    return np.array([[value.item() for value in row] for row in rows]).reshape(len(rows), -1)


def smoothness(y, f, matrix, lambda_y, lambda_f, k, memory=(), matching=None, sides=None):
    """Σ_i ℓ_y and Σ_i ℓ_f. memory: (y, f) rows of images that have no gradient; matrix: (C, C) rows of scalars.

    matching: (y, f, A) as arrays, where similar images are to be looked for by other values; sides: rows of numbers.
    """
    count = len(y)
    all_y = y + [list(torch.tensor(row, dtype=torch.float64)) for row, _ in memory]
    all_f = f + [list(torch.tensor(row, dtype=torch.float64)) for _, row in memory]
    by_y, by_f, by_matrix = (plain(all_y), plain(all_f), plain(matrix)) if matching is None else matching
    spread = by_y @ by_matrix.T
    if sides is not None:
        by_y, spread = np.concatenate([by_y, sides], 1), np.concatenate([spread, sides], 1)
    allowed = np.arange(count)[:, None] != np.arange(len(all_y))
    index, (c, c_bar) = omp.joint_omp(
        [(by_y[:count], spread, lambda_y, by_y), (by_f[:count], by_f, lambda_f, by_f)], k, allowed
    )
    l_y = l_f = torch.zeros((), dtype=torch.float64)
    for i in range(count):
        chosen = [(s, a, b) for s, a, b in zip(index[i], c[i], c_bar[i], strict=True) if s >= 0]
        if not chosen:
            continue
        for j in range(len(y[i])):
            total = 0.0
            for s, a, _ in chosen:
                total = total + a * sum(matrix[j][other] * all_y[s][other] for other in range(len(y[i])))
            l_y = l_y + (y[i][j] - torch.tanh(torch.as_tensor(total, dtype=torch.float64))) ** 2
        for d in range(len(f[i])):
            l_f = l_f + (f[i][d] - sum(b * all_f[s][d] for s, _, b in chosen)) ** 2
    return l_y, l_f


def imcl(logits, features, labels, matrix, lambda_y=1.0, lambda_f=0.5, k=5, **more):
    cross_entropy = torch.zeros((), dtype=torch.float64)
    for row, known in zip(logits, labels, strict=True):
        for x, label in zip(row, known, strict=True):
            if label:
                cross_entropy = cross_entropy + torch.log1p(torch.exp(-float(label) * x))
    l_y, l_f = smoothness(impute(logits, labels), features, matrix, lambda_y, lambda_f, k, **more)
    size = len(logits) * len(logits[0])
    return cross_entropy / size + (lambda_y * l_y + lambda_f * l_f) / size
