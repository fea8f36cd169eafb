"""LL-R, LL-Ct and LL-Cp, entry by entry from the paper (Kim 2022, §4)."""

from __future__ import annotations

import math
from fractions import Fraction

import torch


def large_loss(logits, labels, epoch, scheme, delta, flipped=frozenset()):
    """The loss, and the entries (image, class) now flipped for good. `delta` in percent, as text or a fraction."""
    entries = [(i, c) for i in range(len(logits)) for c in range(len(logits[0]))]
    times = (epoch > 1) if scheme == "keep" else epoch - 1
    k = math.ceil(len(entries) * Fraction(str(delta)) / 100 * times)
    losses = {}
    for i, c in entries:
        p = 1 / (1 + torch.exp(-logits[i][c]))
        present = labels[i][c] > 0 or (i, c) in flipped
        losses[i, c] = -torch.log(p) if present else -torch.log(1 - p)
    candidates = [at for at in entries if labels[at[0]][at[1]] == 0 and at not in flipped]
    ranked = sorted((losses[at].item() for at in candidates), reverse=True)[:k]
    large = {at for at in candidates if ranked and losses[at].item() >= ranked[-1]}
    total = torch.zeros((), dtype=torch.float64)
    for i, c in entries:
        if (i, c) not in large:
            total = total + losses[i, c]
        elif scheme != "reject":
            total = total - torch.log(1 / (1 + torch.exp(-logits[i][c])))
    return total / len(entries), (flipped | large if scheme == "keep" else flipped)


CASES = [
    (name, {"delta": 4.0}, lambda x, labels, epoch, scheme=scheme: large_loss(x, labels, epoch, scheme, 4)[0])
    for name, scheme in (("ll-r", "reject"), ("ll-ct", "correct"))
]
