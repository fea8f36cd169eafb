"""Assume negative and its relatives against the slow loops and the golden vectors."""

import pytest
import step_checks
import torch
from torch import Tensor, nn

from halflabel.features.heads import Linear, Model
from halflabel.methods.base import Method, recipe
from halflabel.types import Batch

reference = step_checks.reference("an")


@pytest.mark.parametrize(("name", "power"), [("l1r", 1), ("l2r", 2)])
def test_regularised_weights_leave_biases_and_frozen_weights_alone(name, power):
    torch.manual_seed(0)
    model = Model(nn.Linear(3, 3), Linear(3, 4)).double()
    model.backbone.requires_grad_(False)
    model.backbone.pooled = model.backbone.forward
    labels = torch.tensor([[1, 0, -1, 0], [0, 0, 1, 0]], dtype=torch.int8)
    batch = Batch(torch.arange(2), (torch.randn(2, 3, dtype=torch.float64),), labels)
    weight, bias = model.head.linear.weight, model.head.linear.bias

    def measure(method: Method) -> tuple[Tensor, ...]:
        loss = method.step(model, batch, 1)
        return loss.detach(), *torch.autograd.grad(loss, [weight, bias])

    plain, actual = measure(recipe("an").make()), measure(recipe(name).make(strength=0.01))
    penalty = reference.weights(weight.tolist(), power, 0.01)
    slope = 0.01 * (weight.sign() if power == 1 else 2 * weight)
    torch.testing.assert_close(actual[0], plain[0] + penalty, rtol=0, atol=1e-9)
    torch.testing.assert_close(actual[1], plain[1] + slope.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(actual[2], plain[2], rtol=0, atol=0)


def test_small_weights_keep_their_digits_in_half_precision():
    labels = torch.zeros(1, 5001, dtype=torch.int8)
    logits = torch.zeros(1, 5001, dtype=torch.float16)
    targets = recipe("wan").make().relabel(Batch(torch.arange(1), (), labels), logits, 1)
    torch.testing.assert_close(targets.neg, torch.full((1, 5001), 1 / 5000), rtol=1e-6, atol=0)
