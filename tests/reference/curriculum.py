"""Curriculum labelling (Durand 2019, section 3.3), one entry after the other."""

import math
from fractions import Fraction


def add_labels(strategy, theta, scores, doubt, labels, blocks):
    """`labels` with the easy ones of the unknown entries labelled.

    scores: the logit (of [e], the mean over the passes) per image and class, None for images that could not be read;
    doubt: the uncertainty, for [e]; blocks: lists of image numbers, for [b].
    """
    new = [list(row) for row in labels]
    for i, row in enumerate(labels):
        for c, label in enumerate(row):
            if label != 0 or scores[i] is None:
                continue
            x = scores[i][c]
            sign = 1 if x >= 0 else -1
            easy = {
                "a": x >= theta or x < -theta,
                "b": False,
                "c": x >= theta,
                "d": x >= theta or x < -theta,
                "e": doubt is not None and doubt[i][c] <= theta,
                "2steps": True,
            }[strategy]
            if easy:
                new[i][c] = sign
    if strategy == "b":
        for block in blocks:
            results = []
            for i in block:
                if scores[i] is not None:
                    results += [
                        (-abs(scores[i][c]), len(results), i, c) for c, label in enumerate(labels[i]) if label == 0
                    ]
            results.sort(key=lambda entry: entry[0])  # equal scores stay in the order of the block
            for _, _, i, c in results[: math.floor(Fraction(str(theta)) * len(results))]:
                new[i][c] = 1 if scores[i][c] >= 0 else -1
    return new
