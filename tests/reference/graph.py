"""The graph over the classes (Durand 2019, algorithm 2), node by node and number by number."""

import torch
from torch import Tensor


def gru(h: list[Tensor], m: list[Tensor], parameters: dict[str, Tensor]) -> list[Tensor]:
    """One gated recurrent unit (Cho 2014): gates r (reset), z (keep) and the candidate n, each of len(h) numbers."""
    size = len(h)

    def gate(name: str, given: list[Tensor], row: int) -> Tensor:
        value = parameters[f"bias_{name}"][row]
        for column, number in enumerate(given):
            value = value + parameters[f"weight_{name}"][row, column] * number
        return value

    new = []
    for k in range(size):
        r = torch.sigmoid(gate("ih", m, k) + gate("hh", h, k))
        z = torch.sigmoid(gate("ih", m, size + k) + gate("hh", h, size + k))
        n = torch.tanh(gate("ih", m, 2 * size + k) + r * gate("hh", h, 2 * size + k))
        new.append((1 - z) * n + z * h[k])
    return new


def propagate(x: Tensor, weight: Tensor, bias: Tensor, parameters: dict[str, Tensor], steps: int) -> Tensor:
    """(C,) scores of one image -> (C,)."""
    classes = len(x)
    zero = torch.zeros((), dtype=x.dtype)
    first = [[x[v] if c == v else zero for c in range(classes)] for v in range(classes)]
    states = first
    for _ in range(steps):
        messages = []
        for h in states:
            messages.append([])
            for row in range(classes):
                value = bias[row]
                for column in range(classes):
                    value = value + weight[row, column] * h[column]
                messages[-1].append(torch.relu(value))
        heard = []
        for v in range(classes):
            others = [messages[u] for u in range(classes) if u != v]
            heard.append([sum(o[c] for o in others) / len(others) if others else zero for c in range(classes)])
        states = [gru(states[v], heard[v], parameters) for v in range(classes)]
    scores = []
    for v in range(classes):
        summed = [a + b for a, b in zip(first[v], states[v], strict=True)]
        scores.append(summed[v])
    return torch.stack(scores)
