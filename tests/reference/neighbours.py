"""Nearest neighbours, one distance at a time."""

import math


def nearest(queries, references, k, skip=None):
    """Per query the k (distance, number) with the smallest distance, equal distances by the lower number."""
    results = []
    for i, query in enumerate(queries):
        pairs = []
        for number, reference in enumerate(references):
            if skip is not None and skip[i] == number:
                continue
            pairs.append((math.sqrt(sum((a - b) ** 2 for a, b in zip(query, reference, strict=True))), number))
        results.append(sorted(pairs)[:k])
    return results
