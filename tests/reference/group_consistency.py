"""Mean of the labels and scores of the other images of a group, entry by entry."""

import math


def others(logits, labels, groups, image, label):
    """The mean for one entry, or None if the group has no other readable image."""
    values = []
    for other, group in enumerate(groups):
        if other == image or group is None or group != groups[image] or any(math.isnan(x) for x in logits[other]):
            continue
        y, x = labels[other][label], logits[other][label]
        values.append((1.0 if y > 0 else 0.0) if y else 1 / (1 + math.exp(-x)))
    return sum(values) / len(values) if values else None
