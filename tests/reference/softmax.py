"""Softmax cross-entropy, class by class."""

import math


def loss(x, labels):
    """One image: the mean over its positives j of −log(exp(x_j) / Σ_k exp(x_k)), and the gradient."""
    total = sum(math.exp(value) for value in x)
    positives = [j for j, label in enumerate(labels) if label > 0]
    value, gradient = 0.0, [0.0] * len(x)
    for j in positives:
        value -= math.log(math.exp(x[j]) / total) / len(positives)
        for k in range(len(x)):
            gradient[k] += (math.exp(x[k]) / total - (j == k)) / len(positives)
    return value, gradient
