"""Inputs and steps for the tests of IMCL."""

from __future__ import annotations

import numpy as np
import step_checks as checks
import torch
from torch import nn

from halflabel.methods.base import recipe
from halflabel.types import Output

slow = checks.reference("imcl")


class Split(nn.Module):
    """A model whose logits and features are what it is given, side by side."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def forward(self, view):
        return Output(view[:, : self.classes], view[:, self.classes :])


def make(**options):
    return recipe("imcl").make(**options)


def begin(labels, **options):
    """In float64, so that it can be compared with the slow loop."""
    return checks.begin(make(**{"rescale": False, **options}), labels).double()


def inputs(seed, images, classes, channels=5, ties=False):
    logits, labels = checks.inputs(seed, images, classes, ties=ties)
    features = np.abs(np.random.default_rng(seed + 100).normal(size=(images, channels)))
    return torch.cat([logits, torch.from_numpy(np.round(features) if ties else features)], 1), labels


def step(method, view, labels, epoch=1, index=None):
    """Loss, its gradient by logits and features, and by the weights of A as a (C, C) matrix."""
    classes = labels.shape[1]
    view = view.detach().clone().requires_grad_()
    method.zero_grad()
    loss = method.step(Split(classes), checks.batch(view, labels, index), epoch)
    loss.backward()
    weights = method.graph.weights
    edges = method.graph.edges()
    by_matrix = torch.zeros(classes, classes, dtype=torch.float64)
    if weights.grad is not None:
        by_matrix[edges.rows, edges.cols] = weights.grad
    return loss.detach(), view.grad, by_matrix


def matrix_of(method, classes):
    edges = method.graph.edges()
    matrix = torch.zeros(classes, classes, dtype=torch.float64)
    matrix[edges.rows, edges.cols] = torch.from_numpy(edges.weights)
    return matrix


def reference_step(method, view, labels, **options):
    classes = labels.shape[1]
    view, matrix = view.detach().clone().requires_grad_(), matrix_of(method, classes).requires_grad_()
    rows = [list(row) for row in view]
    loss = slow.imcl(
        [row[:classes] for row in rows],
        [row[classes:] for row in rows],
        labels,
        [list(row) for row in matrix],
        **options,
    )
    by_view, by_matrix = torch.autograd.grad(loss + 0 * view.sum() + 0 * matrix.sum(), (view, matrix))
    return loss.detach(), by_view, by_matrix * (matrix.detach() != 0)


def bce_loss(view, labels):
    return step_loss(recipe("bce").make(), view, labels)


def step_loss(method, view, labels, epoch=1):
    return float(method.step(Split(labels.shape[1]), checks.batch(view, labels), epoch).detach())
