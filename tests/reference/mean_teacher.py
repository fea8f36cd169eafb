"""Mean teacher (Tarvainen & Valpola 2017) with a linear model, entry by entry, in plain Python."""

import math


def score(weights, bias, features):
    """Logits (B, C) of a linear model."""
    return [
        [sum(w * f for w, f in zip(row, image, strict=True)) + b for row, b in zip(weights, bias, strict=True)]
        for image in features
    ]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def weight_in(epoch, epochs, weight, ramp_up):
    progress = min((epoch - 1) / (ramp_up * epochs), 1) if ramp_up else 1
    return weight * math.exp(-5 * (1 - progress) ** 2)


def loss(weak, strong, teacher, labels, weight):
    """Mean cross-entropy of the known labels, and `weight` times the mean squared difference to the teacher."""
    known, count, apart, entries = 0.0, 0, 0.0, 0
    for rows in zip(weak, strong, teacher, labels, strict=True):
        for x, y, t, label in zip(*rows, strict=True):
            if label:
                known, count = known - math.log(sigmoid(label * x)), count + 1
            apart, entries = apart + (sigmoid(t) - sigmoid(y)) ** 2, entries + 1
    return known / max(count, 1) + weight * apart / entries


def average(teacher, model, step, decay):
    """The teacher's numbers after step n (from 0): a copy at first, then the moving average."""
    rate = min(decay, (1 + step) / (10 + step)) if step else 0.0
    return [rate * t + (1 - rate) * m for t, m in zip(teacher, model, strict=True)]
