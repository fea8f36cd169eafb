"""Assume negative and its relatives against the slow loops and the golden vectors."""

import json
from pathlib import Path

import pytest
import step_checks
import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import Linear, Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.types import Batch, Output

TESTS = Path(__file__).parents[1]
reference = step_checks.reference("an")


class Given(nn.Module):
    """A model whose view is its logits."""

    def forward(self, view: Tensor) -> Output:
        return Output(view, view)


def run(method: Method, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one step, with logits for a view."""
    x = logits.detach().clone().requires_grad_()
    method.start(Table.from_dense(labels.numpy()))
    loss = method.step(Given(), Batch(torch.arange(len(x)), (x,), labels), 1)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def slow(loss, logits: Tensor, labels: Tensor, *options) -> tuple[Tensor, Tensor]:
    x = logits.detach().clone().requires_grad_()
    value = loss(x, labels.tolist(), *options)
    return value.detach(), torch.autograd.grad(value, x)[0]


def make_case(images: int, classes: int, *, tied: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(images * 31 + classes)
    labels = torch.randint(-1, 2, (images, classes), generator=generator, dtype=torch.int8)
    labels[images // 2] = 0  # nothing known of one image
    logits = torch.randn(images, classes, generator=generator, dtype=torch.float64) * 3
    return (logits.round() if tied else logits), labels


CASES = [make_case(6, 5), make_case(6, 5, tied=True), make_case(4, 1), make_case(1, 4), make_case(1, 1)]
SLOW = {
    "an": (reference.an, {}),
    "an-ls": (reference.an_ls, {"smoothing": 0.1}),
    "n-ls": (reference.n_ls, {"smoothing": 0.2}),
    "bce": (reference.known_ls, {"smoothing": 0.1}),
    "wan": (reference.wan, {}),
    "entmin": (reference.entmin, {"alpha": 0.3}),
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_slow_loop(name, case):
    loss, options = SLOW[name]
    actual, expected = run(recipe(name).make(**options), *case), slow(loss, *case, *options.values())
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "power"), [("l1r", 1), ("l2r", 2)])
@pytest.mark.parametrize("case", CASES)
def test_regularised_scores_equal_the_slow_loop(name, power, case):
    solution = run(recipe(name).make(strength=0.3, of="scores"), *case)
    torch.testing.assert_close(solution, slow(reference.unknown_scores, *case, power, 0.3), rtol=1e-9, atol=1e-9)


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


def test_regularisation_of_something_else_is_refused():
    with pytest.raises(UserError, match=r"of cannot be 'biases'\. Fix: use one of: weights, scores"):
        recipe("l1r").make(of="biases")


@pytest.mark.parametrize("name", ["an-ls", "n-ls", "bce", "curriculum"])
@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_that_rewards_mistakes_is_refused(name, smoothing):
    with pytest.raises(UserError, match=r"smoothing.* cannot be"):
        recipe(name).make(smoothing=smoothing)


@pytest.mark.parametrize(
    ("file", "name"),
    [("an", "an"), ("an_ls", "an-ls"), ("wan", "wan"), ("bce", "bce"), ("iun", "bce"), ("bce", "logistic")],
)
def test_golden(file, name):
    golden = json.loads((TESTS / "golden" / "losses" / f"{file}.json").read_text())
    for case in golden["cases"]:
        labels = torch.tensor(case["labels"], dtype=torch.int8)
        if name == "wan":  # its source has no known negatives: they are handed over as unknown
            labels = labels.clamp(min=0)
        loss, grad = run(recipe(name).make(), torch.tensor(case["logits"], dtype=torch.float64), labels)
        if name == "logistic":  # the sum over the classes of an image, where bce has the mean
            loss, grad = loss / labels.shape[1], grad / labels.shape[1]
        assert loss.item() == pytest.approx(case["loss"], abs=1e-10), case["name"]
        torch.testing.assert_close(grad, torch.tensor(case["grad"], dtype=torch.float64), rtol=0, atol=1e-10)


def test_wan_charges_known_negatives_in_full():
    labels = torch.tensor([[1, -1, 0, 0]], dtype=torch.int8)
    targets = recipe("wan").make().relabel(Batch(torch.arange(1), (), labels), torch.zeros(1, 4), 1)
    assert targets.pos.tolist() == [[1, 0, 0, 0]]
    torch.testing.assert_close(targets.neg, torch.tensor([[0, 1, 1 / 3, 1 / 3]]))


def test_small_weights_keep_their_digits_in_half_precision():
    labels = torch.zeros(1, 5001, dtype=torch.int8)
    logits = torch.zeros(1, 5001, dtype=torch.float16)
    targets = recipe("wan").make().relabel(Batch(torch.arange(1), (), labels), logits, 1)
    torch.testing.assert_close(targets.neg, torch.full((1, 5001), 1 / 5000), rtol=1e-6, atol=0)
