"""Out-of-range numbers: every option of every method refuses them, or the loss stays finite."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.types import Batch

TABLES = {
    "partial": Table.from_dense([[1, -1, 0, 0], [0, 1, -1, 0], [-1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 0, -1]] * 2),
    "single-positive": Table.from_dense([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]] * 3),
}
ABSURD = (-1, 0, 1e30, -1e30)
NUMBERS = [
    (name, option, type(parameter.default))
    for name, method_recipe in recipes().items()
    for option, parameter in method_recipe.options.items()
    if type(parameter.default) in (int, float)
]
ids = [f"{name}-{option}" for name, option, _ in NUMBERS]


def steps_are_finite(method: Method, table: Table) -> bool:
    """Whether the first step, and one of a later epoch, has a finite loss and gradient."""
    head = seeded(0, lambda: method.head(6, len(table.classes)))
    model = Model(None, head)
    method.start(table, model)
    shape = (len(table), 6, 2, 2) if head.needs_maps else (len(table), 6)
    views = tuple(torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k in range(len(method.views)))
    batch = Batch(torch.arange(len(table)), views, torch.from_numpy(table.dense()))
    learned = [*model.parameters(), *method.parameters()]
    for epoch in (1, 12):
        torch.manual_seed(epoch)
        loss = method.step(model, batch, epoch)
        if loss.requires_grad:  # an option may leave nothing to learn from
            loss.backward()
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        if not all(bool(value.isfinite().all()) for value in [loss, *gradients]):
            return False
    return True


@pytest.mark.parametrize(("name", "option", "kind"), NUMBERS, ids=ids)
def test_absurd_numbers_are_refused_or_harmless(name: str, option: str, kind: type) -> None:
    method_recipe = recipe(name)
    for value in map(kind, ABSURD):
        try:
            method = seeded(0, lambda value=value: method_recipe.make(**{option: value}))  # type: ignore[misc]
        except UserError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it begins too late
            method.plan(12)
        regime = "partial" if "partial" in method_recipe.serves else method_recipe.serves[-1]
        assert steps_are_finite(method, TABLES[regime]), f"{option} {value}"


@pytest.mark.parametrize(("name", "option"), [case[:2] for case in NUMBERS if case[2] is float])
def test_nan_and_infinity_are_refused(name: str, option: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(UserError, match=option) as refused:
            recipe(name).make(**{option: value})
        assert refused.value.fix
