"""Generalised robust loss, entry by entry from the paper (Chen 2024, eq. 9–14)."""

from __future__ import annotations

import math

import torch


def gr(logits, labels, epoch, w=(0.0, 2.0), b=(-2.0, -2.0), mu=(0.5, 0.8), sigma=(2.0, 0.5), q2=0.01, q3=1.0, epochs=8):
    def between(ends, done):
        return ends[0] + (ends[1] - ends[0]) * min(done / epochs, 1)

    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, known in zip(logits, labels, strict=True):
        for x, y in zip(row, known, strict=True):
            p = 1 / (1 + torch.exp(-x))
            count += 1
            if y > 0:
                total = total - torch.log(p)
            elif y < 0:
                total = total - torch.log(1 - p)
            else:
                seen = p.item()
                k = 1 / (1 + math.exp(-(between(w, epoch - 1) * seen + between(b, epoch - 1))))
                v = math.exp(-((seen - between(mu, epoch)) ** 2) / (2 * between(sigma, epoch) ** 2))
                total = total + v * (k * (1 - p**q2) / q2 + (1 - k) * (1 - (1 - p) ** q3) / q3)
    return total / count


_ENDS = {"w_first": 1.0, "w_last": 3.0, "b_first": -1.0, "b_last": 0.5, "mu_last": 0.6, "sigma_first": 1.0}
CASES = [
    ("gr", {}, lambda x, labels, epoch: gr(x, labels, epoch)),
    (
        "gr",
        {**_ENDS, "q_pos": 0.3, "q_neg": 0.7, "span": 2},
        lambda x, labels, epoch: gr(x, labels, epoch, (1.0, 3.0), (-1.0, 0.5), (0.5, 0.6), (1.0, 0.5), 0.3, 0.7, 2),
    ),
]
