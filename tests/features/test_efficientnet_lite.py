"""EfficientNet-Lite against timm's, bit by bit."""

from __future__ import annotations

import sys

import pytest
import timm
import torch
from torch import nn

from halflabel.features.backbones import build_backbone
from halflabel.features.efficientnet_lite import CROP, SIZE, EfficientNetLite


@pytest.mark.parametrize(("variant", "height", "width"), [(0, 97, 64), (1, 64, 64), (2, 65, 33)])
def test_features_and_classes_are_those_of_timm(variant: int, height: int, width: int) -> None:
    torch.manual_seed(variant)
    theirs, ours = timm.create_model(f"tf_efficientnet_lite{variant}").eval(), EfficientNetLite(variant).eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, height, width)
    with torch.inference_mode():
        assert torch.equal(ours.forward_features(x), theirs.forward_features(x))
        assert torch.equal(ours(x), theirs(x))
    config = timm.data.resolve_model_data_config(theirs)
    assert SIZE[variant] >= config["input_size"][-1]
    assert CROP[variant] == config["crop_pct"]


def test_the_bundled_backbones_do_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm", "timm.data", "torchvision"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    assert build_backbone("efficientnet-lite0").classifier is not None
