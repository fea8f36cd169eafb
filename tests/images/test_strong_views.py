"""The strong view: its settings, and their limits on CPU and device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from halflabel.features.backbones import build_backbone
from halflabel.fitting.config import Config
from halflabel.images.views import Strong, make_views


def test_settings_are_those_of_the_view() -> None:
    backbone = build_backbone("tiny", size=32)
    preprocess = backbone.preprocess
    assert Config(size=32).views(backbone) == make_views(32, "keep", preprocess.interpolation, preprocess.crop_pct)
    views = Config(crop=0.9, size=32).views(backbone)
    assert isinstance(views["strong"], Strong)
    assert views["strong"].least == 0.9


@pytest.mark.parametrize(
    "more", [{"num_ops": 0}, {"num_ops": 10}, {"magnitude": 0}, {"magnitude": 30}, {"cutout": 1.0}]
)
def test_the_limits_of_the_options_work_on_cpu_and_device(more: dict[str, Any]) -> None:
    view = Strong(24, **more)
    image = torch.randint(0, 256, (3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys = np.arange(40, dtype=np.uint64)
    for result in (
        torch.stack([view(image, int(key)) for key in keys]),
        view.batch(image.expand(40, -1, -1, -1), keys),
    ):
        assert result.shape == (40, 3, 24, 24)
        assert result.dtype == torch.uint8
