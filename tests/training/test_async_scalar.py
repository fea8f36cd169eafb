"""AsyncScalar; the copies from the GPU are simulated by ones that arrive when they are waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halflabel.training.async_scalar import AsyncScalar, ScalarReading


def test_a_gpu_returns_the_previous_value_and_none_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
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
    loss_reader, loss = AsyncScalar(torch.device("cuda")), torch.tensor(1.0)
    assert loss_reader(loss, 1) is None
    loss += 1  # what was sent stays what it was
    assert loss_reader(loss, 21) == ScalarReading(1.0, 1)
    assert waited == [1]
    loss_reader.reset()
    assert loss_reader(loss, 1) is None


def test_a_cpu_returns_the_current_value() -> None:
    assert AsyncScalar(torch.device("cpu"))(torch.tensor(3.0), 7) == ScalarReading(3.0, 7)
