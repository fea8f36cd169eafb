"""WSABIE, number by number."""

import math


def number(value):
    """As a plain number, of a tensor with a gradient too."""
    return value.item() if hasattr(value, "item") else value


def cut(vector, most):
    """The vector, no longer than `most` (0 = as it is)."""
    length = math.sqrt(sum(number(value) ** 2 for value in vector))
    return [value * most / length for value in vector] if most and length > most else list(vector)


def score(feature, images, labels, norm):
    """x_c = Σ_k w_ck Σ_i V_ki f_i, of vectors w_c and V_·i that are cut to the norm."""
    columns = [cut([row[i] for row in images], norm) for i in range(len(feature))]
    place = [sum(columns[i][k] * feature[i] for i in range(len(feature))) for k in range(len(images))]
    return [sum(w * p for w, p in zip(cut(label, norm), place, strict=True)) for label in labels]


def loss(x, labels):
    """One image: Σ over positives of (1 + 1/2 + … + 1/violators) · Σ over negatives of the hinge."""
    total = 0.0
    for j, present in enumerate(labels):
        if present <= 0:
            continue
        costs = [1 - x[j] + x[k] for k, label in enumerate(labels) if label < 0]
        rank = sum(number(cost) >= 0 for cost in costs)
        for cost in costs:
            if number(cost) > 0:
                total = total + sum(1 / i for i in range(1, rank + 1)) * cost
    return total
