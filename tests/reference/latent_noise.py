"""Latent noise, one entry at a time."""

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def relevance(visual, present, absent):
    """P(reported): it is there and reported, or it is not there and reported all the same."""
    v, r1, r0 = sigmoid(visual), sigmoid(present), sigmoid(absent)
    return r1 * v + r0 * (1 - v)


def loss(visual, present, absent, labels):
    """Mean over the (B, C) entries of the cross-entropy of what is known to be reported or not."""
    total, entries = 0.0, 0
    for rows in zip(visual, present, absent, labels, strict=True):
        for v, r1, r0, label in zip(*rows, strict=True):
            h = relevance(v, r1, r0)
            total += -math.log(h) if label > 0 else -math.log(1 - h) if label < 0 else 0.0
            entries += 1
    return total / entries
