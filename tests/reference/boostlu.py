"""BoostLU, place by place from the paper (Kim 2023, §4): boost what is positive, then average."""

from __future__ import annotations

import torch


def scores(features, weight, bias, alpha):
    """(B, D, h, w) features, (C, D) weight, (C,) bias -> (B, C) logits."""
    out = torch.zeros(len(features), len(weight), dtype=torch.float64)
    _, channels, high, wide = features.shape
    for i in range(len(features)):
        for c in range(len(weight)):
            total = torch.zeros((), dtype=torch.float64)
            for row in range(high):
                for column in range(wide):
                    a = bias[c]
                    for d in range(channels):
                        a = a + weight[c, d] * features[i, d, row, column]
                    total = total + (alpha * a if a.item() > 0 else a)
            out[i, c] = total / (high * wide)
    return out
