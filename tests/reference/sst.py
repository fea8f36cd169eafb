"""SST and HST, one image, label and pair at a time, in float64."""

from __future__ import annotations

import semantic as shared
import torch


def pair_logits(per_class, part):
    """per_class: C vectors of one image -> {(c, c'): logit} for c < c'."""
    logits, number = {}, 0
    for c in range(len(per_class)):
        for other in range(c + 1, len(per_class)):
            hidden = part.first.weight @ per_class[c] + part.first.bias + part.second.weight @ per_class[other]
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
            is_present = row[c] == row[other] == 1
            total = total - ((1 - p) * torch.log(p) if is_present else q**2 * torch.log(1 - q))
    return total / max(count, 1)


def within(pairs, labels):
    """(score, whether there is one) of each entry."""
    results = []
    for image, row in zip(pairs, labels, strict=True):
        line = []
        for c in range(len(row)):
            probabilities = [
                float(torch.sigmoid(image[min(c, other), max(c, other)].detach()))
                for other in range(len(row))
                if other != c and row[other] == 1
            ]
            line.append((sum(probabilities) / len(probabilities), True) if probabilities else (0.0, False))
        results.append(line)
    return results


def across(per_class, examples):
    """examples: for each label a list of vectors."""
    lines = []
    for image in per_class:
        line = []
        for c, vector in enumerate(image):
            similarities = [float(shared.cosine(vector.detach(), example.detach())) for example in examples[c]]
            line.append((sum(similarities) / len(similarities), True) if similarities else (0.0, False))
        lines.append(line)
    return lines


def guessed(scores, labels, theta):
    """Known labels, and unknown ones whose score reaches θ."""
    targets = shared.known(labels)
    for line, row, target in zip(scores, labels, targets, strict=True):
        for c, (score, has_score) in enumerate(line):
            if row[c] == 0 and has_score and score >= theta:
                target[c] = (1.0, 0.0)
    return targets
