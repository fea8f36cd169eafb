"""The look that does not wait; a GPU's copies are stood in for by ones that arrive when they are waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halflabel.training.async_scalar import Glance, Seen


def test_a_gpu_says_the_number_before_and_nothing_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Event:
        made = 0

        def __init__(self) -> None:
            Event.made += 1
            self.number = Event.made

        def record(self) -> None: ...

        def synchronize(self) -> None:
            waited.append(self.number)

    empty = torch.empty

    def unpinned(*size: Any, pin_memory: bool, **more: Any) -> torch.Tensor:
        assert pin_memory, "else the copy would wait"
        return empty(*size, **more)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", unpinned)
    glance, loss = Glance(torch.device("cuda")), torch.tensor(1.0)
    assert glance(loss, 1) is None
    loss += 1  # what was sent stays what it was
    assert glance(loss, 21) == Seen(1.0, 1)
    assert waited == [1]
    glance.forget()
    assert glance(loss, 1) is None


def test_a_cpu_says_it_at_once() -> None:
    assert Glance(torch.device("cpu"))(torch.tensor(3.0), 7) == Seen(3.0, 7)
