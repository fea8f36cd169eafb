"""Asymmetric loss against the slow loop and the golden vectors."""

import json
from pathlib import Path

import pytest
import step_checks
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.methods.parts.losses import ASL
from halflabel.types import Batch, Output

TESTS = Path(__file__).parents[1]
reference = step_checks.reference("asl")


def run(method: Method, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.detach().clone().requires_grad_()
    loss = method.step(lambda view: Output(view, view), Batch(torch.arange(len(x)), (x,), labels), 1)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("shape", [(5, 6), (4, 1), (1, 5), (1, 1)])
@pytest.mark.parametrize("gammas", [(4.0, 0.0), (2.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("unknown", ["negative", "ignore"])
@pytest.mark.parametrize("detach", [False, True])
def test_equals_the_slow_loop(shape, gammas, margin, unknown, detach):
    torch.manual_seed(0)
    logits = torch.randn(shape, dtype=torch.float64) * 3
    labels = torch.randint(-1, 2, shape, dtype=torch.int8)
    labels[0] = 0
    options = {"gamma_neg": gammas[0], "gamma_pos": gammas[1], "margin": margin, "detach": detach}
    solution = run(recipe("asl").make(unknown=unknown, **options), logits, labels)
    x = logits.clone().requires_grad_()
    loss = reference.asl(x, labels.tolist(), *gammas, margin, ignore=unknown == "ignore", detach=detach) / len(x)
    expected = loss.detach(), torch.autograd.grad(loss, x)[0]
    torch.testing.assert_close(solution, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("file", ["asl", "asl_partial"])
@pytest.mark.parametrize("detach", [False, True])
def test_golden(file, detach):
    golden = json.loads((TESTS / "golden" / "losses" / f"{file}.json").read_text())
    options = golden["options"]
    form = {"reduction": "sum"} if file == "asl" else {"unknown": "ignore"}
    method = recipe("asl").make(
        gamma_neg=options["gamma_neg"], gamma_pos=options["gamma_pos"], margin=options["clip"], detach=detach, **form
    )
    for case in golden["cases"]:
        labels = torch.tensor(case["labels"], dtype=torch.int8)
        loss, grad = run(method, torch.tensor(case["logits"], dtype=torch.float64), labels)
        assert loss.item() == pytest.approx(case["loss"], rel=1e-12), case["name"]
        expected = torch.tensor(case["grad_focus_detached" if detach else "grad"], dtype=torch.float64)
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-10)


def test_absent_entries_under_the_margin_cost_nothing():
    x = torch.tensor([-1e4, -20.0, -3.0, -2.95], dtype=torch.float64, requires_grad=True)  # σ(−2.944) = 0.05
    for gamma in (0.0, 0.5, 4.0):
        _, absent = ASL(gamma).pair(x)
        (grad,) = torch.autograd.grad(absent.sum(), x)
        assert absent.tolist() == grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_gradient_is_finite_where_scores_underflow(margin, detach):
    x = torch.tensor([-1e4, -100.0, 100.0, 1e4], requires_grad=True)
    loss = sum(part.sum() for part in ASL(0.5, 0.5, margin, detach).pair(x))
    assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()


def test_gradient_is_finite_at_the_margin_itself():
    x = torch.zeros(1, requires_grad=True)
    _, absent = ASL(0.5, margin=0.5).pair(x)
    assert torch.autograd.grad(absent.sum(), x)[0].item() == 0


def test_ignoring_unknown_labels_needs_known_negatives():
    method = recipe("asl").make(unknown="ignore")
    method.start(Table.from_dense([[1, 0], [0, -1]]))
    with pytest.raises(UserError, match="unknown=negative"):
        method.start(Table.from_dense([[1, 0], [0, 1]]))


@pytest.mark.parametrize("options", [{"unknown": "maybe"}, {"reduction": "mean"}])
def test_unknown_option_values_are_refused(options):
    with pytest.raises(UserError, match="use one of"):
        recipe("asl").make(**options)


@pytest.mark.parametrize("options", [{"margin": -0.1}, {"margin": 1.0}, {"gamma_neg": -1.0}, {"gamma_pos": -1.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UserError, match=f"{next(iter(options))} cannot be"):
        recipe("asl").make(**options)
