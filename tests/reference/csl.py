"""Class-aware selective loss, entry by entry from the paper (Ben-Baruch 2022, eq. 4–9)."""

from __future__ import annotations

import torch


def csl(
    logits,
    labels,
    prior,
    mode="selective",
    topk=5,
    prior_threshold=0.05,
    gamma_pos=0.0,
    gamma_neg=1.0,
    gamma_unknown=4.0,
    margin=0.0,
):
    unknown = [
        x.item() for row, known in zip(logits, labels, strict=True) for x, y in zip(row, known, strict=True) if y == 0
    ]
    likely = sorted(unknown, reverse=True)[: topk * len(logits)]
    total = torch.zeros((), dtype=torch.float64)
    for row, known in zip(logits, labels, strict=True):
        for c, (x, y) in enumerate(zip(row, known, strict=True)):
            p = 1 / (1 + torch.exp(-x))
            if y > 0:
                total = total - (1 - p.item()) ** gamma_pos * torch.log(p)
                continue
            if y == 0 and (mode == "ignore" or x.item() in likely or prior[c] > prior_threshold):
                continue
            if p.item() > margin:  # below, min(1 − p + margin, 1) is 1 and its logarithm 0
                gamma = gamma_neg if y < 0 else gamma_unknown
                total = total - (p.item() - margin) ** gamma * torch.log(1 - p + margin)
    return total / len(logits)
