"""The nearest neighbour, one distance at a time."""

import math


def nearest(queries, references, skip):
    """Per query the (distance, number) with the smallest distance, equal distances by the lower number."""
    results = []
    for query, skipped in zip(queries, skip, strict=True):
        pairs = []
        for number, reference in enumerate(references):
            if number != skipped:
                pairs.append((math.sqrt(sum((a - b) ** 2 for a, b in zip(query, reference, strict=True))), number))
        results.append(min(pairs))
    return results
