"""A transformer decoder layer over the places of one image, query by query and class by class."""

import math

import torch


def normalised(values, norm):
    centred = values - values.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def logits(features, head):
    """(D, P) features of one image -> list of C logits."""
    places = [torch.relu(head.embed.weight @ features[:, p] + head.embed.bias) for p in range(features.shape[1])]
    keys, values = ([layer.weight @ place + layer.bias for place in places] for layer in (head.key, head.value))
    states = []
    for query in head.queries:
        projected, parts = head.query.weight @ query + head.query.bias, []
        size = len(query) // head.heads
        for start in range(0, len(query), size):
            part = slice(start, start + size)
            powers = [torch.exp(projected[part] @ key[part] / math.sqrt(size)) for key in keys]
            parts.append(sum(power / sum(powers) * value[part] for power, value in zip(powers, values, strict=True)))
        attended = head.out.weight @ torch.cat(parts) + head.out.bias
        state = normalised(query + attended, head.norms[0])
        hidden = torch.relu(head.expand.weight @ state + head.expand.bias)
        states.append(normalised(state + head.contract.weight @ hidden + head.contract.bias, head.norms[1]))
    shared = head.bias.shape[1]
    return [
        head.weight[c // shared, c % shared] @ states[c // shared] + head.bias[c // shared, c % shared]
        for c in range(head.classes)
    ]
