"""`train --tune all` fits the head again on the tuned features where that ranks held-out images better."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halflabel.features.heads import Linear, NormalisedLinear
from halflabel.fitting.config import Config, Settings
from halflabel.fitting.refit import Refit, refit_head
from halflabel.images.sources import Arrays
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.runs.train import train

SETTINGS = Settings(epochs=1, batch_size=16, lr=1e-5, device="cpu")  # the tuned head learns next to nothing
CONFIG = Config(method="bn-bce", backbone="tiny", size=32, held_out=0.25, tune="all", fit="auto", settings=SETTINGS)


def paint(count: int = 48) -> tuple[torch.Tensor, Table]:
    generator = np.random.default_rng(0)
    labels = generator.choice([-1, 1], size=(count, 3)).astype(np.int8)
    noise = generator.normal(0, 40, (count, 3, 32, 32))
    pictures = np.clip(60.0 * labels[:, :, None, None] + 128 + noise, 0, 255).astype(np.uint8)
    return torch.from_numpy(pictures), Table.from_dense(labels)


PICTURES, TABLE = paint()


def go(folder: Path, config: Config = CONFIG, **more: Any) -> RunFolder:
    run = RunFolder(folder)
    train(TABLE, PICTURES, config, run, **more)
    return run


@pytest.fixture(scope="module")
def refitted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return go(tmp_path_factory.mktemp("runs") / "run")


def test_the_run_predicts_with_the_head_that_was_fitted_again(refitted: RunFolder, tmp_path: Path) -> None:
    predictor = Predictor.from_run(refitted)
    assert isinstance(predictor.model.head, NormalisedLinear)
    assert refitted.tuned_head.exists()
    held_out = refitted.split_of(TABLE.images) == 1
    stored = refitted.read_scores()
    assert stored is not None
    pictures = PICTURES[torch.from_numpy(held_out)]
    source = Arrays(pictures, TABLE.images.take(np.flatnonzero(held_out)), predictor.views)
    logits = predictor.logits(source)
    np.testing.assert_allclose(logits.numpy(), stored.logits, atol=1e-3)
    assert refitted.read_json("metrics.json")["mAP"] > 0.9
    export_hub(refitted, tmp_path / "hub")
    opened = Predictor.from_hub(tmp_path / "hub")
    torch.testing.assert_close(opened.logits(source), logits)
    export_onnx(predictor, tmp_path / "model.onnx")
    exported = Predictor.from_onnx(tmp_path / "model.onnx").logits(source)
    torch.testing.assert_close(exported, logits, atol=1e-3, rtol=1e-3)


def test_training_continues_from_the_tuned_head(refitted: RunFolder, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lr=0.0)
    continued = go(tmp_path / "again", dataclasses.replace(CONFIG, settings=settings, begin_from=str(refitted.folder)))
    assert continued.tuned_head.read_bytes() == refitted.tuned_head.read_bytes()


def test_a_run_interrupted_in_the_refit_is_resumed(
    refitted: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **options: Any) -> Refit:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halflabel.fitting.fit.refit_head", stop)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "run")
    resumed = go(tmp_path / "run", resume=True)
    assert resumed.weights.read_bytes() == refitted.weights.read_bytes()


def test_the_tuned_head_is_kept_where_it_ranks_held_out_images_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "halflabel.fitting.fit.refit_head",
        lambda *args, **options: dataclasses.replace(refit_head(*args, **options), quality=0.0),
    )
    run = go(tmp_path / "run")
    assert isinstance(Predictor.from_run(run).model.head, Linear)
    assert not run.tuned_head.exists()


def test_batches_alone_keep_the_tuned_head(tmp_path: Path) -> None:
    run = go(tmp_path / "run", dataclasses.replace(CONFIG, fit="batches"))
    assert isinstance(Predictor.from_run(run).model.head, Linear)


def test_labels_of_held_out_images_are_not_fitted() -> None:
    generator = torch.Generator().manual_seed(0)
    held_out = np.arange(0, len(TABLE), 4)
    features = torch.rand(len(TABLE), 8, generator=generator) + torch.from_numpy(TABLE.dense()).repeat(1, 3)[:, :8]
    features = features.float().abs()
    changed = TABLE.dense()
    changed[held_out] *= -1
    first, second = (
        refit_head(features, table, recipe("bce").make, held_out, evaluation=TABLE)
        for table in (TABLE, Table.from_dense(changed))
    )
    assert torch.equal(first.logits, second.logits)
    assert first.strength == second.strength
