"""RLSD with fixed windows: one image, one region, one step and one cell at a time. Weights are those of the head."""

import cnn_rnn as _paths
import torch


def regions(levels):
    """(top, left, bottom, right) of every window, as shares of the image."""
    for n in range(1, levels + 1):
        for row in range(n):
            for column in range(n):
                yield row / (n + 1), column / (n + 1), (row + 2) / (n + 1), (column + 2) / (n + 1)


def mean_over(image, box):
    """(D, h, w) -> (D,): every cell by the area of it that lies in the box."""
    _, height, width = image.shape
    top, left, bottom, right = box[0] * height, box[1] * width, box[2] * height, box[3] * width
    total, area = torch.zeros_like(image[:, 0, 0]), 0.0
    for y in range(height):
        for x in range(width):
            share = max(0.0, min(bottom, y + 1) - max(top, y)) * max(0.0, min(right, x + 1) - max(left, x))
            total, area = total + share * image[:, y, x], area + share
    return total / area


def logits(head, image, levels, length):
    """(D, h, w) -> list of C scalars: the best margin of each label over the paths of all regions."""
    best = [[] for _ in range(head.classes)]
    for box in regions(levels):
        feature, path = mean_over(image, box), []
        for _ in range(min(length, head.classes)):
            scores = _paths.scores(head, feature, path)
            open_labels = {c: scores[c] - scores[-1] for c in range(head.classes) if c not in path}
            for c, margin in open_labels.items():
                best[c].append(margin)
            top = max(open_labels, key=lambda c: open_labels[c].item())
            if open_labels[top].item() <= 0:
                break
            path.append(top)
    return [torch.stack(actual).max() for actual in best]
