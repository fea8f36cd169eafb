"""Label propagation, image by image: Cevikalp 2019, eq. 5, and our extension to images with some known labels."""

import math


def propagate(features, labels, t):
    """Per image (neighbour or None, similarity): the nearest other image with a known label, for images that lack one.

    t = 0: mean(d) u / (l + u), u images that receive labels, l others.
    """
    results = {}
    for i, row in enumerate(labels):
        if all(value != 0 for value in row):
            continue
        best = None
        for other, other_row in enumerate(labels):
            if other == i or all(value == 0 for value in other_row):
                continue
            distance = math.dist(features[i], features[other])
            if best is None or distance < best[0]:
                best = (distance, other)
        results[i] = best
    if t == 0:
        mean = sum(distance for distance, _ in results.values()) / len(results)
        t = mean * len(results) / len(labels)
    return {i: (other, math.exp(-distance / t) if t > 0 else 1.0) for i, (distance, other) in results.items()}


def targets(labels, passed, labelled, unknown_absent):
    """(pos, neg) of every entry of every image, after propagation."""
    pos = [[0.0] * len(row) for row in labels]
    neg = [[0.0] * len(row) for row in labels]
    for i, row in enumerate(labels):
        other, similarity = passed.get(i, (None, 0.0))
        has_known = any(value != 0 for value in row)
        for c, value in enumerate(row):
            weight = labelled
            if value == 0 and other is not None:
                value, weight = labels[other][c], similarity
            if value > 0:
                pos[i][c] = weight
            elif value < 0:
                neg[i][c] = weight
            elif unknown_absent and (has_known or other is not None):
                neg[i][c] = labelled if has_known else similarity
    return pos, neg
