"""`halflabel.loss`: the loss of a method on logits, for training loops of other people."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import halflabel
from halflabel.errors import UserError
from halflabel.features.heads import Linear, Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.methods.loss import MethodLoss
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.terms import Term
from halflabel.types import Batch, Output, Targets

IMAGES, CLASSES, EPOCHS = 12, 5, 6
# A head of its own, scores of all training images, the weights of the model, or several views.
IMPOSSIBLE = {
    *("boostlu", "cnn-rnn", "curriculum", "em-apl", "fast0tag", "gcn-ml", "hst", "imcl", "l1r", "l2r", "latent-noise"),
    *(
        "group-consistency",
        "logic-mix",
        "mean-teacher",
        "ml-decoder",
        "plcl",
        "rlsd",
        "sarb",
        "sarb*",
        "srcr",
        "ss-rml",
        "ssgrl",
        "sst",
        "wsabie",
    ),
}
CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in recipes() if name not in IMPOSSIBLE]
CASES += [("l1r", {"of": "scores"}), ("splc", {"released": True}), ("warp", {"rank": "sampled"})]


def make_table(regime: str) -> Table:
    rng = np.random.default_rng(3)
    labels = np.where(rng.random((IMAGES, CLASSES)) < 0.4, 1, -1)
    if regime == "single-positive":
        labels = np.eye(CLASSES, dtype=int)[np.arange(IMAGES) % CLASSES]
    elif regime != "full":
        labels = labels * (rng.random(labels.shape) < 0.6)
        labels = np.maximum(labels, 0) if regime == "positives-only" else labels
    table = Table.from_dense(labels)
    assert table.stats.regime == regime
    return table


def make_loss(name: str, table: Table, **options: Any) -> MethodLoss:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* never starts in ")
        return halflabel.loss(name, table=table, epochs=EPOCHS, **options)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_value_and_gradient_are_those_of_the_step_with_a_linear_head(name: str, options: dict[str, Any]) -> None:
    for regime in recipe(name).serves:
        table = make_table(regime)
        criterion = make_loss(name, table, **options)
        method = seeded(0, lambda: recipe(name).make(**options))
        method.plan(EPOCHS)
        method.start(table)
        head = seeded(1, lambda: Linear(7, CLASSES))
        model, features = Model(None, head), torch.randn(IMAGES, 7, generator=torch.Generator().manual_seed(2))
        for epoch in range(1, EPOCHS + 1):
            index = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(epoch))[:8]
            labels = torch.from_numpy(table.rows(index.numpy()))
            torch.manual_seed(epoch)  # warp draws negatives
            expected = method.step(model, Batch(index, (features[index],), labels), epoch)
            logits = head(features[index]).logits
            torch.manual_seed(epoch)
            value = criterion(logits, labels, index=index, epoch=epoch)
            assert value.shape == ()
            assert torch.equal(value, expected), (regime, epoch)
            weights = list(head.parameters())
            gradients = torch.autograd.grad(expected, [*weights, *method.parameters()], retain_graph=True)
            loss_gradients = torch.autograd.grad(value, [*weights, *criterion.parameters()])
            for gradient, loss_gradient in zip(gradients, loss_gradients, strict=True):
                assert torch.equal(gradient, loss_gradient), (regime, epoch)


@pytest.mark.parametrize("name", sorted(IMPOSSIBLE))
def test_methods_that_need_more_than_logits_are_refused(name: str) -> None:
    table = make_table(recipe(name).serves[0])
    with pytest.raises(UserError, match="has no loss of logits alone") as error:
        make_loss(name, table)(torch.zeros(2, CLASSES), torch.ones(2, CLASSES))
    assert "halflabel.train" in error.value.fix


def test_a_term_that_uses_features_is_refused() -> None:
    class Small(Term):
        def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
            return output.features.square().mean()

    criterion = MethodLoss("mine", Method(BCE(), terms=[Small()]))
    with pytest.raises(UserError, match="uses the features"):
        criterion(torch.zeros(2, 3), torch.ones(2, 3))


def test_labels_may_be_of_any_type_and_nan_is_unknown() -> None:
    criterion = halflabel.loss("em", alpha=0.2)
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    expected = criterion(logits, torch.tensor([[1, 0, -1]]))
    for labels in (torch.tensor([[1.0, math.nan, -1.0]]), torch.tensor([[1, 0, -1]], dtype=torch.int8)):
        assert torch.equal(criterion(logits, labels), expected)
    assert not torch.equal(halflabel.loss("em", alpha=0.5)(logits, torch.tensor([[1, 0, -1]])), expected)


def test_wrong_inputs_are_named() -> None:
    criterion = halflabel.loss("bce")
    with pytest.raises(UserError, match=r"\(2, 3\) and labels of shape \(2,\)"):
        criterion(torch.zeros(2, 3), torch.ones(2))
    with pytest.raises(UserError, match=r"0\.5 is not a label"):
        criterion(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]))
    with pytest.raises(UserError, match="no option 'alpha'"):
        halflabel.loss("bce", alpha=0.2)


def test_methods_that_need_the_training_labels_the_epochs_or_the_index_ask_for_them() -> None:
    labels = np.array([[1, 0], [0, 1]])
    with pytest.raises(UserError, match="role needs the labels"):
        halflabel.loss("role")
    with pytest.raises(UserError, match="gr changes over the epochs"):
        halflabel.loss("gr")
    with pytest.raises(UserError, match="cannot learn from"):
        halflabel.loss("bce", table=labels)
    for name in ("splc", "ll-ct", "csl"):
        with pytest.raises(UserError, match="pass epoch="):
            halflabel.loss(name, table=[[1, 0], [-1, 1]])(torch.zeros(1, 2), torch.tensor([[1, 0]]))
    criterion = halflabel.loss("role", table=labels)
    logits, batch = torch.zeros(1, 2), torch.tensor([[1, 0]])
    with pytest.raises(UserError, match="pass index="):
        criterion(logits, batch)
    with pytest.raises(UserError, match="index must be in 0 … 1"):
        criterion(logits, batch, index=torch.tensor([2]))
    with pytest.raises(UserError, match="for 1 images"):
        criterion(logits, batch, index=torch.tensor([0, 1]))
    assert bool(criterion(logits, batch, index=torch.tensor([1])).isfinite())
    assert [tuple(parameter.shape) for parameter in criterion.parameters()] == [(2, 2)]


def test_the_state_of_a_method_is_saved() -> None:
    table = make_table("single-positive")
    criterion = make_loss("ll-cp", table, delta=20.0)
    index = torch.arange(IMAGES)
    logits = torch.randn(IMAGES, CLASSES, generator=torch.Generator().manual_seed(0))
    labels = torch.from_numpy(table.dense())
    fresh = copy.deepcopy(criterion)
    criterion(logits, labels, index=index, epoch=2)
    after = criterion.eval()(logits, labels, index=index, epoch=2)
    assert not torch.equal(fresh.eval()(logits, labels, index=index, epoch=2), after)
    fresh.load_state_dict(criterion.state_dict())
    assert torch.equal(fresh(logits, labels, index=index, epoch=2), after)
