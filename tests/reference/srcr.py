"""SR+CR, cell by cell and entry by entry from the paper (Wang 2023, eq. 1 to 12)."""

from __future__ import annotations

import torch


def class_map(features, weight, bias):
    """(D, h, w) features of one image, (D,) weight of one class -> the cells of A_c, a list of scalars."""
    channels, high, wide = features.shape
    cells = []
    for row in range(high):
        for column in range(wide):
            a = bias
            for d in range(channels):
                a = a + weight[d] * features[d, row, column]
            cells.append(a)
    return cells


def mean(values):
    return sum(values) / len(values)


def logit(cells, k, alpha):
    """a_c + α s_c of one class map (eq. 3 to 5)."""
    largest = sorted(cells, key=lambda cell: -cell.item())[:k]
    return mean(cells) + alpha * mean(largest)


def logits(features, weight, bias, k, alpha):
    """(B, D, h, w) features, (C, D) weight, (C,) bias -> B lists of C scalars."""
    return [[logit(class_map(image, weight[c], bias[c]), k, alpha) for c in range(len(weight))] for image in features]


def pseudo_label(x, tau):
    """Eq. 8: 1[p ≥ τ] − 1[1 − p ≥ τ]."""
    p = torch.sigmoid(x).item()
    return (1 if p >= tau else 0) - (1 if 1 - p >= tau else 0)


def entry(x, y):
    p = torch.sigmoid(x)
    return -torch.log(p) if y == 1 else -torch.log(1 - p)


def charge(rows, labels, normalise):
    """l of eq. 9 for many images, in the three normalisations; rows: lists of scalar logits, labels in {−1, 0, 1}."""
    sums = [
        sum([entry(x, y) for x, y in zip(row, own, strict=True) if y], 0.0)
        for row, own in zip(rows, labels, strict=True)
    ]
    known = [sum(1 for y in own if y) for own in labels]
    if normalise == "image":
        return mean([s / n if n else 0.0 for s, n in zip(sums, known, strict=True)])
    if normalise == "batch":
        return sum(sums) / sum(known) if sum(known) else 0.0
    return sum(sums) / sum(len(own) for own in labels)


def loss(weak, strong, labels, tau, normalise, weight=1.0, supervise="both", guess_from=None, guess_on=None):
    """Eq. 12 from the scalar logits of both views; `guess_from`, `guess_on`: those of L_u, where they differ."""
    labels = [[int(y) for y in row] for row in labels]
    guess_from, guess_on = guess_from or weak, guess_on or strong
    guesses = [
        [0 if y else pseudo_label(x, tau) for x, y in zip(row, own, strict=True)]
        for row, own in zip(guess_from, labels, strict=True)
    ]
    views = {"both": [weak, strong], "weak": [weak], "strong": [strong]}[supervise]
    seen = [row for view in views for row in view]
    return charge(seen, labels * len(views), normalise) + weight * charge(guess_on, guesses, normalise)
