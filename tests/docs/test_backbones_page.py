"""The page about backbones states what timm does."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

PAGE = (Path(__file__).parents[2] / "docs/backbones.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\|.*\| `([^` ]+)`[^|]*\| ([\d.]+) \| ([\w.-]+) \|", PAGE, re.MULTILINE)


def test_the_table_was_read() -> None:
    assert len(ROWS) == 7


@pytest.mark.parametrize(("name", "millions", "licence"), ROWS)
def test_timm_has_the_models_with_this_size_and_licence(name: str, millions: str, licence: str) -> None:
    assert timm.is_model_pretrained(name)
    with torch.device("meta"):
        model: Any = timm.create_model(name, num_classes=0)
    assert model.pretrained_cfg["license"] == licence
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(float(millions), abs=0.05)


def test_each_named_model_exists() -> None:
    names = re.findall(r"`((?:vit|convnext|fastvit)_\w+\.\w+)", PAGE) + re.findall(
        r"--backbone (\w+\.(?!onnx)\w+)", PAGE
    )
    assert len(names) > 15
    assert all(timm.is_model_pretrained(name) for name in names)
