"""The choice of a device, on machines with and without a GPU."""

from __future__ import annotations

import pytest
import torch

from halflabel.errors import UserError
from halflabel.fitting.device import choose_device


@pytest.mark.parametrize(
    ("has_gpu", "name", "device"),
    [
        (True, "auto", "cuda"),
        (True, "cuda", "cuda"),
        (True, "cpu", "cpu"),
        (False, "auto", "cpu"),
        (False, "mps", "mps"),
    ],
)
def test_the_device_follows_the_name(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, name: str, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert choose_device(name) == device


def test_a_missing_gpu_is_an_error_unless_the_cpu_may_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device here"):
        choose_device("cuda")
    assert choose_device("cuda", fall_back=True) == "cpu"
    with pytest.raises(UserError, match="'gpu' is not a device"):
        choose_device("gpu")
