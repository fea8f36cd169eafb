"""Hill loss and SPLC, entry by entry from the paper (Zhang 2021, eq. 4–9)."""

from __future__ import annotations

import torch


def sigma(x):
    return 1 / (1 + torch.exp(-x))


def hill(logits, labels, margin=1.0, gamma=2.0, lamb=1.5):
    total = torch.zeros((), dtype=torch.float64)
    for row, known in zip(logits, labels, strict=True):
        for x, y in zip(row, known, strict=True):
            p, p_m = sigma(x), sigma(x - margin)
            total = total + (-((1 - p_m) ** gamma) * torch.log(p_m) if y > 0 else (lamb - p) * p**2)
    return total / len(logits)


def splc(logits, labels, epoch, tau=0.6, margin=1.0, gamma=2.0, start_epoch=2, released=False):
    total = torch.zeros((), dtype=torch.float64)
    for row, known in zip(logits, labels, strict=True):
        for x, y in zip(row, known, strict=True):
            may_flip = y <= 0 if released else y == 0
            flipped = bool(may_flip) and epoch >= start_epoch and sigma(x).item() > tau
            if y > 0 or flipped:
                p_m = sigma(x) if flipped and released else sigma(x - margin)
                total = total - (1 - p_m) ** gamma * torch.log(p_m)
            else:
                total = total - sigma(x) ** gamma * torch.log(1 - sigma(x))
    return total / len(logits)


CASES = [
    ("hill", options, lambda x, labels, epoch, options=options: hill(x, labels, **options))
    for options in ({}, {"margin": 0.3, "gamma": 1.0, "lamb": 1.2})
] + [
    ("splc", options, lambda x, labels, epoch, options=options: splc(x, labels, epoch, **options))
    for released in (False, True)
    for options in (
        {"released": released},
        {"released": released, "margin": 0.3, "gamma": 1.0, "tau": 0.3, "start_epoch": 3},
    )
]
