"""SST and HST, one image, label and pair at a time, in float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_spec = importlib.util.spec_from_file_location("reference_semantic", Path(__file__).parent / "semantic.py")
shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shared)


def pair_logits(found, part):
    """found: C vectors of one image -> {(c, c'): logit} for c < c'."""
    logits, number = {}, 0
    for c in range(len(found)):
        for other in range(c + 1, len(found)):
            hidden = part.first.weight @ found[c] + part.first.bias + part.second.weight @ found[other]
            logits[c, other] = part.weight[number] @ hidden.clamp(min=0) + part.bias[number]
            number += 1
    return logits


def pair_loss(pairs, labels):
    """ASL with γ⁺ = 1, γ⁻ = 2 and margin 0.05, on pairs that are both known, divided by all pairs."""
    total, count = 0.0, 0
    for image, row in zip(pairs, labels, strict=True):
        for (c, other), logit in image.items():
            count += 1
            if row[c] == 0 or row[other] == 0:
                continue
            p = torch.sigmoid(logit)
            q = (p - 0.05).clamp(min=0)
            both = row[c] == row[other] == 1
            total = total - ((1 - p) * torch.log(p) if both else q**2 * torch.log(1 - q))
    return total / max(count, 1)


def within(pairs, labels):
    """(score, whether there is one) of each entry."""
    results = []
    for image, row in zip(pairs, labels, strict=True):
        line = []
        for c in range(len(row)):
            messages = [
                float(torch.sigmoid(image[min(c, other), max(c, other)].detach()))
                for other in range(len(row))
                if other != c and row[other] == 1
            ]
            line.append((sum(messages) / len(messages), True) if messages else (0.0, False))
        results.append(line)
    return results


def across(found, examples):
    """examples: for each label a list of vectors."""
    lines = []
    for image in found:
        line = []
        for c, vector in enumerate(image):
            near = [float(shared.cosine(vector.detach(), example.detach())) for example in examples[c]]
            line.append((sum(near) / len(near), True) if near else (0.0, False))
        lines.append(line)
    return lines


def guessed(scores, labels, theta):
    """Known labels, and unknown ones whose score reaches θ."""
    targets = shared.known(labels)
    for line, row, target in zip(scores, labels, targets, strict=True):
        for c, (score, there) in enumerate(line):
            if row[c] == 0 and there and score >= theta:
                target[c] = (1.0, 0.0)
    return targets
