"""`--resize keep`: photos of different shapes in one batch, from the view to the exported model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from halflabel.features.backbones import build_backbone
from halflabel.features.onnx_features import find_onnx_backbone
from halflabel.fitting.config import Config
from halflabel.images.sources import open_images
from halflabel.images.views import ImageList, Plain, kept_shape, stack_images
from halflabel.labels.table import Table
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

CONFIG = Config(method="bce", backbone="tiny", size=64, resize="keep", fit="auto", device="cpu")
SHAPES = [(60, 80), (80, 60), (70, 70), (50, 100), (90, 60)]  # height, width


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Table]:
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    labels = generator.choice([-1, 1], size=(40, 3)).astype(np.int8)
    for number, row in enumerate(labels):
        pixels = 128 + 60.0 * row + generator.normal(0, 30, (*SHAPES[number % 5], 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number:02}.png")
    return folder, Table.from_dense(labels, [f"{number:02}.png" for number in range(40)], ["r", "g", "b"])


@pytest.fixture(scope="module")
def run(photos: tuple[Path, Table], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder, table = photos
    run = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    train(table, folder, dataclasses.replace(CONFIG, images=str(folder)), run)
    return run


@pytest.mark.parametrize("size", [64, 224, 304])
def test_shapes_have_as_many_pixels_and_nearly_the_ratio_of_the_image(size: int) -> None:
    for height, width in SHAPES:
        high, wide = kept_shape(height, width, size)
        assert high * wide == pytest.approx(size**2, rel=0.2)
        assert np.log(wide / high) == pytest.approx(np.log(width / height), abs=0.35)


def test_the_whole_photo_is_seen_undistorted() -> None:
    photo = torch.zeros(3, 60, 80, dtype=torch.uint8)
    photo[:, :, 40:] = 200
    view = Plain(64, "keep")(photo)
    assert view.shape == (3, *kept_shape(60, 80, 64))
    assert view[0, 0, 0] == 0
    assert view[0, -1, -1] == 200


def test_a_batch_is_computed_as_its_images_one_by_one() -> None:
    backbone = build_backbone("tiny").eval()
    generator = torch.Generator().manual_seed(0)
    images = [
        torch.randint(0, 256, (3, *kept_shape(*s, 64)), generator=generator, dtype=torch.uint8) for s in SHAPES * 3
    ]
    batch = stack_images(images)
    assert isinstance(batch, ImageList)
    slow = torch.cat([backbone(image[None]).mean((2, 3)) for image in images])
    by_torch = batch.apply(lambda stacked: backbone(stacked).mean((2, 3)))
    torch.testing.assert_close(by_torch, slow)
    network = find_onnx_backbone(backbone, Plain(64, "keep"), images=1000)
    assert network is not None
    torch.testing.assert_close(batch.apply(network.pooled), slow, rtol=1e-3, atol=1e-4)
    parts = batch.tensor_split(4)
    assert [len(part) for part in parts] == [4, 4, 4, 3]
    means = torch.cat([part.apply(lambda stacked: stacked.float().mean((2, 3))) for part in parts])
    torch.testing.assert_close(means, torch.stack([image.float().mean((1, 2)) for image in images]))


def test_exported_models_decide_like_the_run(run: RunFolder, photos: tuple[Path, Table], tmp_path: Path) -> None:
    predictor = Model.open(run)
    assert run.read_object("metrics.json")["mAP"] > 0.9
    folder, table = photos
    expected = predictor.logits(open_images(table.images, folder, predictor.views))
    assert torch.isfinite(expected).all()
    export_hub(run, tmp_path / "hub")
    export_onnx(predictor, tmp_path / "model.onnx")
    for exported in (Model.open(tmp_path / "hub"), Model.open(tmp_path / "model.onnx")):
        actual = exported.logits(open_images(table.images, folder, exported.views))
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("change", [{"tune": "all"}, {"method": "ml-decoder"}])
def test_what_needs_squares_gets_them(photos: tuple[Path, Table], tmp_path: Path, change: dict[str, Any]) -> None:
    run = RunFolder(tmp_path / "run")
    train(photos[1], photos[0], dataclasses.replace(CONFIG, epochs=1, **change), run)
    view = Model.open(run).views["plain"]
    assert isinstance(view, Plain)
    assert view.resize == "squash"
