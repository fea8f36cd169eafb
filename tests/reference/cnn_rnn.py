"""CNN-RNN, one image, one path and one step at a time. Weights are those of the head, in float64."""

import math

import torch


def read(head, label, state):
    """One step of the LSTM, gates written out: input, forget, cell, output."""
    before, cell = state
    x = head.labels[label]
    rows = head.lstm.weight_ih_l0 @ x + head.lstm.bias_ih_l0 + head.lstm.weight_hh_l0 @ before + head.lstm.bias_hh_l0
    gate_in, forget, new, out = rows.chunk(4)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(gate_in) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def scores(head, feature, prefix):
    """s_c for every label and, last, for the end, after the labels of the prefix."""
    hidden = head.lstm.hidden_size
    state = (torch.zeros(hidden, dtype=torch.float64), torch.zeros(hidden, dtype=torch.float64))
    for label in [head.classes, *prefix]:
        state = read(head, label, state)
    joined = head.from_state.weight @ state[0] + head.from_state.bias
    joined = torch.relu(joined + head.from_image.weight @ feature + head.from_image.bias)
    actual = [head.labels[c] @ joined for c in range(head.classes)]
    return [*actual, head.labels[head.classes + 1] @ joined]


def loss(head, feature, labels, order):
    """One image: the known positives in order, then the end; at each step against what is known and not yet named."""
    classes = len(labels)
    path = [c for c in order if labels[c] > 0]
    total = 0.0
    for step in range(len(path) + 1):
        s = scores(head, feature, path[:step])
        target = path[step] if step < len(path) else classes
        open_labels = [c for c in range(classes) if labels[c] < 0 or (labels[c] > 0 and c not in path[:step])]
        total = total - torch.log(torch.exp(s[target]) / sum(torch.exp(s[c]) for c in [*open_labels, classes]))
    return total


def next_probabilities(head, feature, prefix):
    """P of each label that is not named yet, and of the end."""
    s = scores(head, feature, prefix)
    free = [c for c in range(head.classes + 1) if c not in prefix]
    total = sum(math.exp(s[c].item()) for c in free)
    return {c: math.exp(s[c].item()) / total for c in free}


def beam_search(head, feature, beam, length):
    """For each label, the sum of P(path to it) over the steps of a beam search, paths as lists."""
    paths = [((), 1.0)]
    actual = [0.0] * head.classes
    for _ in range(length):
        longer = []
        for path, probability in paths:
            for label, chance in next_probabilities(head, feature, path).items():
                if label == head.classes:
                    continue
                here = probability * chance
                actual[label] += here
                longer.append(((*path, label), here))
        paths = sorted(longer, key=lambda item: -item[1])[:beam]
    return actual


def named(head, feature, prefix=()):
    """For each label, the probability that a path names it before its end: all paths, nothing dropped."""
    actual = [0.0] * head.classes
    for label, chance in next_probabilities(head, feature, prefix).items():
        if label < head.classes:
            actual[label] += chance
            for other, later in enumerate(named(head, feature, (*prefix, label))):
                actual[other] += chance * later
    return actual
