"""Asymmetric loss against the slow loop and the golden vectors."""

import pytest
import torch

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.parts.losses import ASL


def test_absent_entries_under_the_margin_cost_nothing():
    x = torch.tensor([-1e4, -20.0, -3.0, -2.95], dtype=torch.float64, requires_grad=True)  # σ(−2.944) = 0.05
    for gamma in (0.0, 0.5, 4.0):
        _, absent = ASL(gamma).pair(x)
        (grad,) = torch.autograd.grad(absent.sum(), x)
        assert absent.tolist() == grad.tolist() == [0, 0, 0, 0]


def test_gradient_is_finite_at_the_margin_itself():
    x = torch.zeros(1, requires_grad=True)
    _, absent = ASL(0.5, margin=0.5).pair(x)
    assert torch.autograd.grad(absent.sum(), x)[0].item() == 0


def test_ignoring_unknown_labels_needs_known_negatives():
    method = recipe("asl").make(unknown="ignore")
    method.start(Table.from_dense([[1, 0], [0, -1]]))
    with pytest.raises(UserError, match="unknown=negative"):
        method.start(Table.from_dense([[1, 0], [0, 1]]))
