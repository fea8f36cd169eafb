"""State that a checkpoint would lose: changes of plain attributes of every type."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.testing.method_contract import StateWatch
from halflabel.types import Batch


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda value: value[1].append(3)),
        ({"a": 1}, lambda value: value.update(a=2)),
        ({1}, lambda value: value.add(2)),
        (deque([1.0]), lambda value: value.append(2.0)),
        (SimpleNamespace(count=0), lambda value: setattr(value, "count", 1)),
        (np.zeros(4), lambda value: value.fill(1)),
        (torch.zeros(4), lambda value: value.fill_(1)),
        ([torch.zeros(4)], lambda value: value[0].fill_(1)),
        (torch.Generator(), lambda value: torch.rand(2, generator=value)),
        (random.Random(0), lambda value: value.random()),
        (np.random.default_rng(0), lambda value: value.random()),
        (Batch(*[torch.zeros(1)] * 3), None),
        (float("nan"), None),
        (lambda: 1, None),
        ((torch.nn.Linear(2, 2),), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_changes_of_every_type_of_attribute_are_detected(value: Any, change: Any) -> None:
    method = Method(BCE())
    method.state = value
    watch = StateWatch(method)
    watch.compare()
    watch.compare()
    assert not watch.changed
    if change is not None:
        change(value)
        watch.compare()
        assert watch.changed == {"Method.state"}
