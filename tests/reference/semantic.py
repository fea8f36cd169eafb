"""Slow loops of the semantic heads and of what they share, one label, place and image at a time, in float64."""

from __future__ import annotations

import math

import torch


def cosine(first, second):
    return (first @ second) / (first.norm() * second.norm())


def attention(places, vectors, of_place, of_label, weight):
    """places (P, W), vectors (C, d) -> C lists of P weights."""
    results = []
    for vector in vectors:
        scores = []
        for place in places:
            place_part, label_part = of_place @ place, of_label @ vector
            scores.append(sum(weight[k] * torch.tanh(place_part[k] * label_part[k]) for k in range(len(place_part))))
        powers = [torch.exp(score) for score in scores]
        results.append([power / sum(powers) for power in powers])
    return results


def gated(states, graph, steps, message_weight, message_bias, state_weight, reset_weight):
    """states: C vectors of W; weights (3W, 2W), (2W, W), (W, W) with rows: renew, keep, fresh."""
    wide, classes = len(states[0]), len(states)
    for _ in range(steps):
        after = []
        for c in range(classes):
            inwards = sum(graph[c, other] * states[other] for other in range(classes))
            outwards = sum(graph[other, c] * states[other] for other in range(classes))
            message = torch.cat([inwards, outwards])
            renew = torch.sigmoid(
                message_weight[:wide] @ message + message_bias[:wide] + state_weight[:wide] @ states[c]
            )
            keep = torch.sigmoid(
                message_weight[wide : 2 * wide] @ message
                + message_bias[wide : 2 * wide]
                + state_weight[wide:] @ states[c]
            )
            fresh = torch.tanh(
                message_weight[2 * wide :] @ message + message_bias[2 * wide :] + reset_weight @ (keep * states[c])
            )
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
        head.attention.place_projection.weight,
        head.attention.label_projection.weight,
        head.attention.weight.weight[0],
    )
    per_class = [sum(share * place for share, place in zip(row, places, strict=True)) for row in attended]
    return classify(per_class, head), per_class


def classify(per_class, head):
    part = head.gated
    propagated = gated(
        per_class,
        head.graph,
        part.steps,
        part.message_gates.weight,
        part.message_gates.bias,
        part.state_gates.weight,
        part.reset_state.weight,
    )
    logits = []
    for c, (after, before) in enumerate(zip(propagated, per_class, strict=True)):
        joined = torch.tanh(head.join.weight @ torch.cat([after, before]) + head.join.bias)
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


def contrast(per_class, labels):
    sums, counts = [0.0, 0.0, 0.0], [0, 0, 0]
    for c in range(len(labels[0])):
        for n in range(len(labels)):
            for m in range(n + 1, len(labels)):
                first, second = labels[n][c], labels[m][c]
                if first == 0 or second == 0:
                    continue
                similarity = cosine(per_class[n][c], per_class[m][c])
                kind = 0 if first == second == 1 else 2 if first == second else 1
                sums[kind] = sums[kind] + (1 - similarity if kind == 0 else 1 + similarity)
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
