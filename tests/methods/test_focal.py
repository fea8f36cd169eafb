"""Focal loss against the slow loop and the golden vectors."""

import json
from pathlib import Path

import pytest
import step_checks
import torch

from halflabel.errors import UserError
from halflabel.methods.base import recipe
from halflabel.methods.parts.losses import BCE, Focal, over_entries, total
from halflabel.types import Batch, Output, Targets

TESTS = Path(__file__).parents[1]
reference = step_checks.reference("focal")


@pytest.mark.parametrize("shape", [(5, 6), (4, 1), (1, 5), (1, 1)])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_equals_the_slow_loop(shape, gamma, alpha):
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=torch.float64) * 3).requires_grad_()
    labels = torch.randint(-1, 2, shape, dtype=torch.int8)
    labels[0] = 0
    method = recipe("focal").make(gamma=gamma, alpha=alpha)
    actual = method.step(lambda view: Output(view, view), Batch(torch.arange(len(x)), (x,), labels), 1)
    expected = reference.focal(x, labels.tolist(), gamma, alpha or None)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    slopes = (torch.autograd.grad(loss, x)[0] for loss in (actual, expected))
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-9)


def test_golden():
    golden = json.loads((TESTS / "golden" / "losses" / "focal.json").read_text())
    for case in golden["cases"]:
        x = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
        labels = torch.tensor(case["labels"])
        options = case["options"]
        loss = Focal(options["gamma"], options["alpha"] or 0.0)
        targets = Targets((labels > 0).double(), (labels <= 0).double())
        reduce = {"mean": over_entries, "sum": total}[options["reduction"]]
        actual = reduce(loss(x, targets), targets)
        assert actual.item() == pytest.approx(case["loss"], abs=1e-10), case["name"]
        (grad,) = torch.autograd.grad(actual, x)
        torch.testing.assert_close(grad, torch.tensor(case["grad"], dtype=torch.float64), rtol=0, atol=1e-10)


def test_without_focus_it_is_cross_entropy():
    x = torch.linspace(-50, 50, 101)
    torch.testing.assert_close(Focal(0.0).pair(x), BCE().pair(x))


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_gradient_is_finite_where_scores_underflow(gamma):
    x = torch.tensor([-1e4, -200.0, 200.0, 1e4], requires_grad=True)
    present, absent = Focal(gamma).pair(x)
    (grad,) = torch.autograd.grad((present + absent).sum(), x)
    torch.testing.assert_close(grad, torch.tensor([-1.0, -1.0, 1.0, 1.0]))


@pytest.mark.parametrize("options", [{"gamma": -1.0}, {"alpha": 2.0}, {"alpha": -0.5}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UserError, match=f"{next(iter(options))} cannot be"):
        recipe("focal").make(**options)
