"""LogicMix (Chong 2024) with a linear model, entry by entry, in plain Python."""

import math


def join(labels):
    """OR of labels that may be unknown (0)."""
    if 1 in labels:
        return 1
    return -1 if all(label == -1 for label in labels) else 0


def mean_loss(score, images, labels, negative):
    """Mean cross-entropy of the labels used; `negative`: unknown labels of images with a known one are absent."""
    total, count = 0.0, 0
    for image, known in zip(images, labels, strict=True):
        for x, label in zip(score(image), known, strict=True):
            label = -1 if label == 0 and negative and any(known) else label
            if label:
                total, count = total + math.log1p(math.exp(-label * x)), count + 1
    return total / max(count, 1)


def loss(score, images, labels, orders, weight, negative):
    """`orders`: for each further image of a mixture, which image of the batch each row is mixed with."""
    mixtures, joined = [], []
    for i, image in enumerate(images):
        members = [i, *(order[i] for order in orders)]
        mixtures.append([sum(images[m][d] for m in members) / len(members) for d in range(len(image))])
        joined.append([join([labels[m][c] for m in members]) for c in range(len(labels[i]))])
    return mean_loss(score, images, labels, negative) + weight * mean_loss(score, mixtures, joined, negative)
