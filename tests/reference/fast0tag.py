"""Fast0Tag's ranking loss, pair by pair."""

import math


def loss(x, labels):
    """One image: the mean over pairs of a positive and a negative of log(1 + exp(x_n − x_p)), and its gradient."""
    positives = [c for c, label in enumerate(labels) if label > 0]
    negatives = [c for c, label in enumerate(labels) if label < 0]
    total, gradient = 0.0, [0.0] * len(x)
    for p in positives:
        for n in negatives:
            share = 1 / (len(positives) * len(negatives))
            total += share * math.log(1 + math.exp(x[n] - x[p]))
            slope = share / (1 + math.exp(x[p] - x[n]))
            gradient[n] += slope
            gradient[p] -= slope
    return total, gradient


def score(feature, layers, vectors):
    """Layers (weight, bias), a ReLU between them; then the inner product with each label vector."""
    values = list(feature)
    for number, (weight, bias) in enumerate(layers):
        values = [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        if number + 1 < len(layers):
            values = [max(value, 0.0) for value in values]
    return [sum(t * v for t, v in zip(vector, values, strict=True)) for vector in vectors]
