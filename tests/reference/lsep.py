"""LSEP, pair by pair."""

import math


def loss(x, labels):
    """One image: log(1 + Σ exp(x_n − x_p)) over known negatives n and positives p, and its gradient."""
    total, gradient = 0.0, [0.0] * len(x)
    for p, present in enumerate(labels):
        for n, absent in enumerate(labels):
            if present > 0 and absent < 0:
                pair = math.exp(x[n] - x[p])
                total += pair
                gradient[n] += pair
                gradient[p] -= pair
    return math.log(1 + total), [value / (1 + total) for value in gradient]
