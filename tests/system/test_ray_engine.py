"""What is refused before Ray is started; tests/features/test_feature_blocks.py runs a cluster."""

from __future__ import annotations

import sys

import pytest

from halflabel.errors import UserError
from halflabel.system import ray_engine


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'halflabel\[ray\]'"), ray_engine.use_engine("ray"):
        pass
    with pytest.raises(UserError, match="local or ray"), ray_engine.use_engine("spark"):
        pass
    with ray_engine.use_engine("local"):
        assert not ray_engine.is_active()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun"), ray_engine.use_engine("ray"):
        pass
