"""A predictor runs a frozen backbone by ONNX Runtime for many images, by torch for few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from halflabel.features import onnx_features
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.runs import model as module
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

CONFIG = Config(method="bn-bce", backbone="tiny", size=32, epochs=1, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (12, 40, 40, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def trained(out: Path, images: Path, config: Config = CONFIG) -> Model:
    labels = np.random.default_rng(1).choice([-1, 1], size=(12, 3))
    train(Table.from_dense(labels, [f"{i:02d}.png" for i in range(12)]), images, config, RunFolder(out))
    return Model.open(RunFolder(out))


def test_onnx_and_torch_give_the_same_predictions(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = trained(tmp_path / "run", folder, CONFIG)
    by_torch = predictor.predict([folder], all_scores=True)
    assert not list(tmp_path.glob("cache/*.onnx"))
    monkeypatch.setattr(onnx_features, "FEWEST_IMAGES", 12)
    by_onnx = predictor.predict([folder], all_scores=True)
    assert len(list(tmp_path.glob("cache/*.onnx"))) == 1
    for first, second in zip(by_torch, by_onnx, strict=True):
        scores = [
            {label["class"]: label["probability"] for label in prediction.labels} for prediction in (first, second)
        ]
        assert scores[0] == pytest.approx(scores[1], rel=1e-3)


def test_a_second_evaluation_computes_no_features(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = trained(tmp_path / "run", folder)
    new_images = tmp_path / "other"
    new_images.mkdir()
    for path in folder.iterdir():
        (new_images / f"new-{path.name}").write_bytes(path.read_bytes())
    labels = np.random.default_rng(2).choice([-1, 1], size=(12, 3))
    table = Table.from_dense(labels, sorted(path.name for path in new_images.iterdir()))
    first = predictor.evaluate(table, new_images)
    direct = predictor.logits(module.open_images(table.images, new_images, predictor.views))
    with monkeypatch.context() as patch:
        patch.setattr(type(predictor.network.backbone), "forward", None)
        second = predictor.evaluate(table, new_images)
    assert second.overall == pytest.approx(first.overall, nan_ok=True)
    cached = predictor.logits(module.open_images(table.images, new_images, predictor.views), cached=True)
    torch.testing.assert_close(cached, direct, rtol=1e-2, atol=1e-2)  # features are cached in half precision
    (new_images / "new-00.png").write_bytes((folder / "05.png").read_bytes())  # another photo of the same name
    changed = predictor.logits(module.open_images(table.images, new_images, predictor.views), cached=True)
    assert not torch.allclose(changed[0], cached[0], atol=1e-2)
