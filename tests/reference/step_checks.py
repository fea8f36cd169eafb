"""A whole training step on given logits, and the checks every method must pass; used by the tests of methods."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from halflabel.labels.table import Table
from halflabel.types import Batch, Output

HERE = Path(__file__).parent


def reference(name):
    """A slow loop of this folder, as a module."""
    spec = importlib.util.spec_from_file_location(f"reference_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def golden(name):
    """The published cases of a loss, options of the file merged into each."""
    content = json.loads((HERE.parent / "golden" / "losses" / f"{name}.json").read_text(encoding="utf-8"))
    return [{**case, "options": content["options"] | case.get("options", {})} for case in content["cases"]]


class Given(nn.Module):
    """A model whose logits are its view."""

    def forward(self, view):
        return Output(view, view)


def batch(logits, labels, index=None):
    labels = torch.as_tensor(labels, dtype=torch.int8)
    index = torch.arange(len(labels)) if index is None else torch.as_tensor(index)
    return Batch(index, (logits,), labels)


def begin(method, labels):
    """The method as it is before its first step, on a table of these labels."""
    method.start(Table.from_dense(np.asarray(labels)))
    return method


def step(method, logits, labels, epoch, index=None):
    """Value and gradient (by the logits) of one step."""
    logits = torch.as_tensor(logits).detach().clone().requires_grad_()
    loss = method.step(Given(), batch(logits, labels, index), epoch)
    (grad,) = torch.autograd.grad(loss, logits)
    return loss.detach(), grad


def slow(loss, logits):
    """Value and gradient of a reference that takes (B, C) nested lists of float64 scalars."""
    leaf = torch.as_tensor(logits, dtype=torch.float64).clone().requires_grad_()
    value = loss([list(row) for row in leaf])
    value = value + 0 * leaf.sum()  # a loss that charges nothing has a gradient too: zero
    (grad,) = torch.autograd.grad(value, leaf)
    return value.detach(), grad


def inputs(seed, images, classes, *, ties=False, negatives=True):
    """Float64 logits and ternary labels; the first of several rows is wholly unknown."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (images, classes))
    labels = rng.choice([-1, 0, 0, 1] if negatives else [0, 0, 1], (images, classes)).astype(np.int8)
    if images > 1:
        labels[0] = 0
    return torch.from_numpy(np.round(logits) if ties else logits), labels


SHAPES = [(6, 5), (1, 7), (5, 1), (1, 1)]


def same(actual, expected, tolerance=1e-9):
    for value, expected_value in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            value, torch.as_tensor(expected_value, dtype=value.dtype), rtol=tolerance, atol=tolerance
        )
