"""Softmax cross-entropy, class by class: the mean over the positives j of an image of −log(exp(x_j) / Σ_k exp(x_k))."""

import torch


def softmax(x, labels):
    total = 0 * x.sum()
    for scores, row in zip(x, labels, strict=True):
        present = [c for c, label in enumerate(row) if label > 0]
        for j in present:
            total = total - torch.log(torch.exp(scores[j]) / sum(torch.exp(score) for score in scores)) / len(present)
    return total / len(x)


CASES = [("softmax", {}, lambda x, labels, epoch: softmax(x, labels))]
