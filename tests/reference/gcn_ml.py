"""ML-GCN, one label at a time, in float64."""

from __future__ import annotations

import math


def graph(labels, tau, p):
    """Â from labels: lists of −1, 0, +1."""
    classes = len(labels[0])
    matrix = [[0.0] * classes for _ in range(classes)]
    for i in range(classes):
        neighbours = []
        for j in range(classes):
            together = sum(row[i] == row[j] == 1 for row in labels)
            seen = sum(row[i] == 1 and row[j] != 0 for row in labels)
            if i != j and together / (seen + 1) >= tau:
                neighbours.append(j)
        for j in neighbours:
            matrix[i][j] = p / len(neighbours)
        matrix[i][i] = 1 - p
    total = [sum(row) for row in matrix]
    return [[matrix[i][j] / math.sqrt(total[i] * total[j]) for j in range(classes)] for i in range(classes)]


def logits(features, head):
    """(D, h, w) -> C scores; the features are the maximum over places."""
    classes = range(len(head.vectors))
    pooled = features.flatten(1).max(1).values
    first = [head.first.weight @ head.vectors[c] for c in classes]
    mixed = [sum(head.graph[c, other] * first[other] for other in classes) for c in classes]
    hidden = [row.clamp(min=0) + 0.2 * row.clamp(max=0) for row in mixed]
    second = [head.second.weight @ row for row in hidden]
    weights = [sum(head.graph[c, other] * second[other] for other in classes) for c in classes]
    return [row @ pooled for row in weights]
