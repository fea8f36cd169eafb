"""Slow loops of the semantic heads and of what they share, one label, place and image at a time, in float64."""

from __future__ import annotations

import math

import torch


def cosine(one, other):
    return (one @ other) / (one.norm() * other.norm())


def attention(places, vectors, of_place, of_label, weight):
    """places (P, W), vectors (C, d) -> C lists of P weights."""
    results = []
    for vector in vectors:
        scores = []
        for place in places:
            seen, named = of_place @ place, of_label @ vector
            scores.append(sum(weight[k] * torch.tanh(seen[k] * named[k]) for k in range(len(seen))))
        powers = [torch.exp(score) for score in scores]
        results.append([power / sum(powers) for power in powers])
    return results


def gated(states, graph, steps, told, bias, own, kept):
    """states: C vectors of W; told (3W, 2W), own (2W, W), kept (W, W), rows: renew, keep, fresh."""
    wide, classes = len(states[0]), len(states)
    for _ in range(steps):
        after = []
        for c in range(classes):
            inwards = sum(graph[c, other] * states[other] for other in range(classes))
            outwards = sum(graph[other, c] * states[other] for other in range(classes))
            heard = torch.cat([inwards, outwards])
            renew = torch.sigmoid(told[:wide] @ heard + bias[:wide] + own[:wide] @ states[c])
            keep = torch.sigmoid(told[wide : 2 * wide] @ heard + bias[wide : 2 * wide] + own[wide:] @ states[c])
            fresh = torch.tanh(told[2 * wide :] @ heard + bias[2 * wide :] + kept @ (keep * states[c]))
            after.append((1 - renew) * states[c] + renew * fresh)
        states = after
    return states


def head(features, head):
    """The logits and features of each label of one image, (D, h, w), by a SemanticHead."""
    cells = features.flatten(1).T
    places = [cell if head.project is None else head.project.weight @ cell for cell in cells]
    attended = attention(
        places,
        head.vectors,
        head.attention.of_place.weight,
        head.attention.of_label.weight,
        head.attention.weight.weight[0],
    )
    actual = [sum(share * place for share, place in zip(row, places, strict=True)) for row in attended]
    return classify(actual, head), actual


def classify(found, head):
    part = head.gated
    reported = gated(found, head.graph, part.steps, part.told.weight, part.told.bias, part.own.weight, part.kept.weight)
    logits = []
    for c, (one, own) in enumerate(zip(reported, found, strict=True)):
        joined = torch.tanh(head.join.weight @ torch.cat([one, own]) + head.join.bias)
        logits.append(head.weight[c] @ joined + head.bias[c])
    return logits


def bce(logits, targets):
    """Mean over the entries charged; targets: (pos, neg) per entry."""
    total, count = 0.0, 0
    for row, charges in zip(logits, targets, strict=True):
        for x, (pos, neg) in zip(row, charges, strict=True):
            if pos > 0 or neg > 0:
                total = total + pos * torch.log1p(torch.exp(-x)) + neg * torch.log1p(torch.exp(x))
                count += 1
    return total / max(count, 1)


def known(labels):
    return [[(float(y == 1), float(y == -1)) for y in row] for row in labels]


def contrast(found, labels):
    sums, counts = [0.0, 0.0, 0.0], [0, 0, 0]
    for c in range(len(labels[0])):
        for n in range(len(labels)):
            for m in range(n + 1, len(labels)):
                one, other = labels[n][c], labels[m][c]
                if one == 0 or other == 0:
                    continue
                near = cosine(found[n][c], found[m][c])
                kind = 0 if one == other == 1 else 2 if one == other else 1
                sums[kind] = sums[kind] + (1 - near if kind == 0 else 1 + near)
                counts[kind] += 1
    weights = [weight * (count > 0) for weight, count in zip((1, 3, 3), counts, strict=True)]
    if not sum(weights):
        return torch.zeros((), dtype=torch.float64)
    return sum(w * s / max(n, 1) for w, s, n in zip(weights, sums, counts, strict=True)) / sum(weights)


def pmi(labels, prior):
    """The matrix M, counted image by image."""
    classes = len(labels[0])
    positives_only = not any(y < 0 for row in labels for y in row)

    def share(c):
        shown = sum(row[c] == 1 for row in labels)
        seen = len(labels) if positives_only else sum(row[c] != 0 for row in labels)
        return shown / max(seen, 1)

    actual = [[0.0] * classes for _ in range(classes)]
    for i in range(classes):
        for j in range(classes):
            together = sum(row[i] == row[j] == 1 for row in labels)
            if not together and i != j:
                continue
            seen = len(labels) if positives_only else sum(row[i] != 0 and row[j] != 0 for row in labels)
            expected = seen * share(i) * share(j)
            actual[i][j] = max(math.log((together + prior) / (expected + prior)), 0.0)
    return actual
