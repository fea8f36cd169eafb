"""Targets from a teacher with a given trust and calibration, entry by entry."""

import math


def targets(label, t, trust, slope, offset, smoothing, ignores):
    """(pos, neg) of one entry; t is the teacher's probability or None."""
    if label:
        return (1.0, 0.0) if label > 0 else (0.0, 1.0)
    w, q = 0.0, 0.0
    if t is not None:
        w, q = trust, 1 / (1 + math.exp(-slope * math.log(t / (1 - t)) - offset))
    rest = 0.0 if ignores else 1 - w
    return w * q + rest * smoothing, w * (1 - q) + rest * (1 - smoothing)


def ranked_above(present, others):
    """The share of pairs in which a present entry has the higher score; ties count half."""
    pairs = [(p > o) + 0.5 * (p == o) for p in present for o in others]
    return sum(pairs) / len(pairs)


def trust(columns, known, against, shrink=10):
    """w of each class from its scores; `against` is the label of the entries to compare with."""
    per_class = []
    for scores, labels in zip(columns, known, strict=True):
        present = [t for t, label in zip(scores, labels, strict=True) if label > 0]
        others = [t for t, label in zip(scores, labels, strict=True) if label == against]
        per_class.append((ranked_above(present, others), len(present)) if present and others else (0.0, 0))
    total = sum(count for _, count in per_class)
    mean = sum(share * count for share, count in per_class) / total
    return [max(2 * (share * count + shrink * mean) / (count + shrink) - 1, 0) for share, count in per_class]
