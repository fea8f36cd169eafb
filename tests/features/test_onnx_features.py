"""Features by ONNX Runtime: equal to torch's, exported once, and torch where that is better or the only way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from halflabel.features import onnx_features
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.onnx_features import FEWEST_IMAGES, TOLERANCE, OnnxBackbone, find_onnx_backbone, parity_images
from halflabel.images.sources import Arrays
from halflabel.images.views import Plain, make_views
from halflabel.labels.names import Names
from halflabel.system.reporter import Reporter


def relative_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().max() / second.abs().max())


def exported(backbone: Backbone, folder: Path | None = None, **options: Any) -> OnnxBackbone | None:
    return find_onnx_backbone(backbone, Plain(options.pop("size", 64)), folder, **{"images": FEWEST_IMAGES, **options})


@pytest.mark.parametrize("name", ["tiny", "efficientnet-lite0", "test_resnet", "test_efficientnet"])
def test_features_equal_those_of_torch(name: str) -> None:
    backbone = build_backbone(name, pretrained=name == "efficientnet-lite0")
    network = exported(backbone, size=96)
    assert network is not None
    for images in parity_images((96, 96), 5).values():
        with torch.inference_mode():
            assert relative_difference(network.pooled(images), backbone.pooled(images)) < TOLERANCE


def test_paddings_are_constants() -> None:
    """Paddings computed in the graph, as the exporter writes them, make Lite0 a quarter slower."""
    onnx = pytest.importorskip("onnx")
    content = onnx_features._export(build_backbone("efficientnet-lite0"), (64, 64), simplified=True)
    operators = {node.op_type for node in onnx.load_model_from_string(content).graph.node}
    assert "Conv" in operators
    assert operators.isdisjoint({"Shape", "Pad", "Slice", "Concat"})


def test_exported_once_and_again_when_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = []
    export = onnx_features._export

    def counting(*arguments: Any, **options: Any) -> bytes:
        exports.append(1)
        return export(*arguments, **options)

    monkeypatch.setattr(onnx_features, "_export", counting)
    backbone = build_backbone("test_resnet", pretrained=False)
    for _ in range(2):
        assert exported(backbone, tmp_path) is not None
    assert len(exports) == 1
    (file,) = tmp_path.glob("*.onnx")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert exported(backbone, tmp_path) is not None
    assert len(exports) == 2
    assert file.read_bytes() == content


def test_a_file_of_other_weights_is_not_used(tmp_path: Path) -> None:
    backbone = build_backbone("tiny")
    assert exported(backbone, tmp_path) is not None
    (file,) = tmp_path.glob("*.onnx")
    content = file.read_bytes()
    with torch.no_grad():
        next(backbone.parameters()).mul_(2)
    assert exported(backbone, tmp_path) is not None
    (new_file,) = set(tmp_path.glob("*.onnx")) - {file}
    new_file.write_bytes(content)  # the right name, the wrong weights
    network = exported(backbone, tmp_path)
    assert network is not None
    images = parity_images((64, 64), 2)["scene"]
    with torch.inference_mode():
        assert relative_difference(network.pooled(images), backbone.pooled(images)) < TOLERANCE


def test_few_images_other_devices_and_tokens_use_torch(tmp_path: Path) -> None:
    backbone, lines = build_backbone("tiny"), []
    reporter = Reporter(message=lines.append)
    assert exported(backbone, tmp_path, images=FEWEST_IMAGES - 1, reporter=reporter) is None
    assert exported(backbone, tmp_path, device="cuda", reporter=reporter) is None
    assert exported(build_backbone("test_vit", pretrained=False), tmp_path, size=160, reporter=reporter) is None
    assert (lines, list(tmp_path.iterdir())) == ([], [])


def test_a_network_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    export = onnx_features._export

    def of_other_weights(backbone: Backbone, size: int, **options: Any) -> bytes:
        changed = build_backbone("tiny")
        with torch.no_grad():
            changed.model.layers[3][1].weight.mul_(1.01)  # type: ignore[index,operator,union-attr]
        return export(changed, size, **options)

    monkeypatch.setattr(onnx_features, "_export", of_other_weights)
    lines: list[str] = []
    assert exported(build_backbone("tiny"), reporter=Reporter(message=lines.append)) is None
    (line,) = lines
    assert "computed by torch" in line
    assert "differ by" in line


def test_a_missing_package_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    lines: list[str] = []
    assert exported(build_backbone("tiny"), reporter=Reporter(message=lines.append)) is None
    assert lines == [
        "features are computed by torch, slower than by ONNX Runtime (the package onnxruntime is not installed)"
    ]


def test_a_network_that_cannot_be_exported_is_run_by_torch() -> None:
    class DependsOnTheBatch(nn.Module):
        num_features = 4

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward_features(self, x: torch.Tensor) -> torch.Tensor:
            maps: torch.Tensor = self.conv(x)
            return maps.reshape(int(x.shape[0]), *maps.shape[1:]) / int(x.shape[0])

    lines: list[str] = []
    backbone = Backbone("odd", DependsOnTheBatch(), 4, build_backbone("tiny").preprocess)
    assert exported(backbone, reporter=Reporter(message=lines.append)) is None
    assert lines
    assert "odd" in lines[0]


def test_cached_features_by_onnx_and_torch_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.cat([parity_images((48, 48), FEWEST_IMAGES // 2)[kind] for kind in ("noise", "scene")])
    source = Arrays(images, Names.numbered(len(images)), make_views(48, "squash", "bilinear", 1.0))
    backbone = build_backbone("efficientnet-lite0", size=48)
    by_onnx = cache_features(backbone, source, tmp_path / "a").values
    assert list((tmp_path / "a").glob("*.onnx"))
    monkeypatch.setattr(onnx_features, "FEWEST_IMAGES", len(images) + 1)
    by_torch = cache_features(backbone, source, tmp_path / "b").values
    assert not list((tmp_path / "b").glob("*.onnx"))
    (name,) = (folder.name for folder in (tmp_path / "b").iterdir())
    assert (tmp_path / "a" / name).is_dir()  # one cache for both ways
    largest = np.abs(by_torch.astype(np.float32)).max()
    difference = np.abs(by_onnx.astype(np.float32) - by_torch.astype(np.float32)).max()
    half_precision = 2.0**-10  # one step of the cached values, relative to them
    assert largest > 0
    assert difference <= (TOLERANCE + half_precision) * largest
