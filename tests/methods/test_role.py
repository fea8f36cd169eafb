"""Expected positives and ROLE against the slow loops and the golden vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
import step_checks
import torch
from torch import Tensor, nn

from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.methods.parts.terms import estimate_positives
from halflabel.methods.role import LabelEstimates
from halflabel.types import Batch, Output

TESTS = Path(__file__).parents[1]
reference = step_checks.reference("role")


def make_labels(images: int, classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(images * 31 + classes)
    labels = torch.randint(-1, 2, (images, classes), generator=generator, dtype=torch.int8)
    labels[images // 2] = 0  # nothing known of one image
    return labels


def run(method: Method, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> tuple[Tensor, ...]:
    """Loss, gradient of the logits and, where there are any, of the estimates."""
    x = logits.detach().clone().requires_grad_()
    batch = Batch(torch.arange(len(x)) if index is None else index, (x,), labels)
    loss = method.step(lambda view: Output(view, view), batch, 1)
    return loss.detach(), *torch.autograd.grad(loss, [x, *method.parameters()])


@pytest.mark.parametrize("name", ["role", "role-li"])
@pytest.mark.parametrize("shape", [(6, 5), (4, 1), (1, 4), (1, 1)])
def test_role_equals_the_slow_loop(name, shape):
    labels = make_labels(*shape)
    logits = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    method = recipe(name).make(positives=1.5)
    method.start(Table.from_dense(labels.numpy()))
    method.double()
    x = logits.clone().requires_grad_()
    theta = method.relabel.theta.detach().clone().requires_grad_()
    loss = reference.role(x, theta, labels.tolist(), 1.5)
    expected = loss.detach(), *torch.autograd.grad(loss, [x, theta])
    torch.testing.assert_close(run(method, logits, labels), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("file", ["epr", "role"])
def test_golden(file):
    golden = json.loads((TESTS / "golden" / "losses" / f"{file}.json").read_text())
    method = recipe(file).make(positives=golden["options"]["expected_num_pos"])
    for case in golden["cases"]:
        labels = torch.tensor(case["labels"], dtype=torch.int8)
        method.start(Table.from_dense(labels.numpy()))
        expected = [torch.tensor(case["grad"], dtype=torch.float64)]
        if file == "role":
            method.relabel.theta = nn.Parameter(torch.tensor(case["theta_logits"], dtype=torch.float64))
            expected.append(torch.tensor(case["grad_theta"], dtype=torch.float64))
        loss, *grads = run(method, torch.tensor(case["logits"], dtype=torch.float64), labels)
        assert loss.item() == pytest.approx(case["loss"], abs=1e-10), case["name"]
        torch.testing.assert_close(grads, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "labels",
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 0]],
        [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
        [[1, -1, 0], [-1, 1, 0], [0, -1, 0]],
        [[0, 0, 0]],
    ],
)
def test_positives_per_image_from_the_labels(labels):
    estimate = estimate_positives(Table.from_dense(labels))
    assert estimate == pytest.approx(reference.positives_per_image(labels))


@pytest.mark.parametrize("answers", [0, 5, 300, 3000, 12000])
def test_answers_are_not_taken_as_missing_at_random(answers: int) -> None:
    generator = np.random.default_rng(2)
    truth = np.where(generator.random((4000, 8)) < 0.15, 1, -1)
    truth[np.arange(4000), generator.integers(0, 8, 4000)] = 1
    known = np.zeros_like(truth)
    for row, column in zip(range(4000), (truth > 0).argmax(1), strict=True):
        known[row, column] = 1
    chosen = generator.choice(truth.size, answers, replace=False)
    known.flat[chosen] = truth.flat[chosen]
    table = Table.from_dense(known)
    assert estimate_positives(table) == pytest.approx((known > 0).sum(1).mean())
    assert estimate_positives(table) == pytest.approx(reference.positives_per_image(known.tolist()))


def test_estimates_start_where_the_paper_says_and_by_name():
    labels = make_labels(50, 8).numpy()
    names = [f"photo {i}" for i in range(50)]
    classes = list("abcdefgh")
    theta = _start(Table.from_dense(labels, names, classes))
    assert theta[labels > 0] == pytest.approx(reference.logit(0.995))
    assert theta[labels < 0] == pytest.approx(reference.logit(0.005))
    unknown = theta[labels == 0]
    assert abs(unknown).max() <= reference.logit(0.6)
    assert unknown.std() == pytest.approx(reference.logit(0.6) / 3**0.5, rel=0.15)
    rows, columns = np.random.default_rng(0).permutation(50), np.random.default_rng(1).permutation(8)
    moved = Table.from_dense(labels[rows][:, columns], [names[i] for i in rows], [classes[c] for c in columns])
    np.testing.assert_array_equal(_start(moved), theta[rows][:, columns])
    assert (_start(moved, seed=1) != _start(moved))[labels[rows][:, columns] == 0].mean() > 0.99


def _start(table: Table, seed: int = 0) -> np.ndarray:
    estimates = LabelEstimates(seed)
    before = torch.random.get_rng_state()
    estimates.start(table)
    assert torch.equal(torch.random.get_rng_state(), before)
    return estimates.theta.detach().numpy()


def test_estimates_are_kept_when_training_starts_again_with_the_same_labels():
    table = Table.from_dense([[1, 0], [0, 1]])
    estimates = LabelEstimates()
    estimates.start(table)
    with torch.no_grad():
        estimates.theta += 1
    learned = estimates.theta.detach().clone()
    estimates.start(Table.from_dense([[1, 0], [0, 1]]))
    assert torch.equal(estimates.theta, learned)
    estimates.start(Table.from_dense([[0, 1], [0, 1]]))
    assert not torch.equal(estimates.theta, learned)


def test_estimates_learn_ten_times_as_fast_and_do_not_decay():
    method = recipe("role").make()
    method.start(Table.from_dense([[1, 0], [0, 1]]))
    (group,) = method.parameter_groups(1e-3)
    assert group["base_lr"] == pytest.approx(1e-2)
    assert [p is method.relabel.theta for p in group["params"]] == [True]
    before = method.relabel.theta.detach().clone()
    optimizer = torch.optim.AdamW([{**group, "lr": 1.0}], weight_decay=0.5)
    method.relabel.theta.grad = torch.zeros_like(before)
    optimizer.step()
    assert torch.equal(method.relabel.theta, before)
