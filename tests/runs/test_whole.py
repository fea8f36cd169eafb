"""`train --tune all`: the frozen recipe, the tuned network and a refitted head, combined into one model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.evaluation.ranking import ranking_quality
from halflabel.features.backbones import build_backbone
from halflabel.features.class_maps import compute_class_maps
from halflabel.features.combined import BackbonePair, Combined, trained_part
from halflabel.features.heads import Linear, NormalisedLinear
from halflabel.fitting.checkpoint import save_tensors
from halflabel.fitting.config import Config
from halflabel.fitting.whole import Member, Mix, combine, refit_head, regularised_head, soft_targets, sum_of
from halflabel.images.sources import Arrays
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter

CONFIG = Config(
    method="bn-bce",
    backbone="tiny",
    size=32,
    held_out=0.25,
    tune="all",
    fit="auto",
    targets="soft",
    epochs=2,
    batch_size=16,
    lr=1e-3,
    device="cpu",
)
HARMFUL = dataclasses.replace(CONFIG, lr=3.0, clip=1.0)


def paint(count: int = 96) -> tuple[torch.Tensor, Table]:
    generator = np.random.default_rng(0)
    labels = generator.choice([-1, 1], size=(count, 3)).astype(np.int8)
    noise = generator.normal(0, 60, (count, 3, 32, 32))
    faint = generator.uniform(0, 40, (count, 3))
    pictures = np.clip((faint * labels)[:, :, None, None] + 128 + noise, 0, 255).astype(np.uint8)
    return torch.from_numpy(pictures), Table.from_dense(labels)


PICTURES, TABLE = paint()


def go(folder: Path, config: Config = CONFIG, **more: Any) -> RunFolder:
    run = RunFolder(folder)
    train(TABLE, PICTURES, config, run, **more)
    return run


def pictures_of(run: RunFolder, predictor: Model, part: int = 1) -> Arrays:
    rows = np.flatnonzero(run.split_of(TABLE.images) == part)
    return Arrays(PICTURES[torch.from_numpy(rows)], TABLE.images.take(rows), predictor.views)


def mix_all(members: list[Member], labels: torch.Tensor, fold: Any, *, single: bool = False) -> Mix:
    """Give every member the same weight, as if held-out images had chosen it."""
    share = [1 / len(members)] * len(members)
    return Mix(share, share, sum_of(share, [each.logits for each in members]))


def test_a_tuned_run_is_one_model_that_is_saved_exported_and_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halflabel.fitting.fit.combine", mix_all)
    run = go(tmp_path / "run")
    predictor = Model.open(run)
    assert isinstance(predictor.network.backbone, BackbonePair)
    assert isinstance(predictor.network.head, Combined)
    assert [type(head) for head in predictor.network.head.heads] == [Linear, NormalisedLinear, NormalisedLinear]
    assert run.is_calibrated
    source = pictures_of(run, predictor)
    logits, stored = predictor.logits(source), run.read_scores()
    assert stored is not None
    # Only the frozen member differs: the one that is kept has learned from the held-out images too.
    assert np.corrcoef(logits.numpy().ravel(), stored.logits.ravel())[0, 1] > 0.9
    export_hub(run, tmp_path / "hub")
    torch.testing.assert_close(Model.open(tmp_path / "hub").logits(source), logits)
    export_onnx(predictor, tmp_path / "model.onnx")
    exported = Model.open(tmp_path / "model.onnx").logits(source)
    torch.testing.assert_close(exported, logits, atol=1e-3, rtol=1e-3)
    assert compute_class_maps(predictor.network, PICTURES[:2], [0, 2]).shape == (2, 2, 4, 4)
    again = go(tmp_path / "again", dataclasses.replace(CONFIG, lr=0.0, epochs=1, begin_from=str(run.folder)))
    first, second = (trained_part(Model.open(each).network).state_dict() for each in (run, again))
    torch.testing.assert_close(first, second)  # training continues from the tuned network and its own head


def test_where_tuning_harms_the_frozen_recipe_has_all_the_weight(tmp_path: Path) -> None:
    messages: list[str] = []
    run = go(tmp_path / "run", HARMFUL, reporter=Reporter(message=messages.append))
    model = Model.open(run).network
    assert isinstance(model.head, NormalisedLinear)
    frozen, trained = build_backbone("tiny").state_dict(), model.backbone
    assert trained is not None
    torch.testing.assert_close(trained.state_dict(), frozen)
    assert "weights: frozen recipe 1.00; a prediction takes one pass" in messages


@pytest.mark.parametrize("method", ["imcl", "srcr", "an"])
@pytest.mark.filterwarnings("ignore:.* never starts in ")
def test_a_named_method_trains_the_network_by_its_own_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("halflabel.fitting.fit.combine", mix_all)
    run = go(tmp_path / "run", dataclasses.replace(CONFIG, method=method, targets="labels"))
    predictor = Model.open(run)
    head: Any = predictor.network.head
    own = recipe(method).make()
    assert type(head.heads[0]) is type(own.head(8, 2))
    assert len(head.heads) == (3 if own.is_linear_loss else 2)  # only what L-BFGS can fit is fitted again
    assert predictor.logits(pictures_of(run, predictor)).isfinite().all()


def test_a_transformer_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, size = "vit_tiny_patch16_224", 32
    monkeypatch.setattr("halflabel.fitting.fit.combine", mix_all)
    untrained = build_backbone(name, pretrained=False, size=size)
    save_tensors(untrained.model.state_dict(), tmp_path / "vit.safetensors")
    weights = str(tmp_path / "vit.safetensors")
    more: Any = {"backbone": name, "weights": weights, "size": size, "epochs": 1, "lr": 1e-4}
    run = go(tmp_path / "run", dataclasses.replace(CONFIG, **more))
    predictor = Model.open(run)
    assert isinstance(predictor.network.backbone, BackbonePair)
    assert predictor.logits(pictures_of(run, predictor)).isfinite().all()


def test_a_run_interrupted_after_its_epochs_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> Mix:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halflabel.fitting.fit.combine", stop)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "run")
    resumed = go(tmp_path / "run", resume=True)
    assert resumed.weights.read_bytes() == go(tmp_path / "unbroken").weights.read_bytes()


def test_a_machine_without_a_gpu_proposes_the_frozen_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halflabel.fitting.fit._LONGEST_ON_CPU", 0.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = dataclasses.replace(CONFIG, device="auto")
    with pytest.raises(UserError, match="there is no GPU") as stop:
        go(tmp_path / "run", config)
    assert "tune=all" in stop.value.fix
    go(tmp_path / "asked")  # on a CPU that is asked for


def scored(labels: torch.Tensor, noise: float, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * (labels + noise * torch.randn(labels.shape, generator=generator))


def test_weights_are_chosen_by_what_each_head_knows() -> None:
    labels = torch.from_numpy(np.random.default_rng(1).choice([-1, 1], size=(300, 4))).to(torch.int8)
    fold = np.arange(300) % 5
    head = Linear(2, 4)

    def mix(*noises: float, single: bool = False) -> Mix:
        logits = [scored(labels, noise, seed, 10.0 ** (seed - 1)) for seed, noise in enumerate(noises)]
        members = [Member(str(seed), head, each, seed == 2) for seed, each in enumerate(logits)]
        chosen = combine(members, labels, fold.astype(np.int8), single=single)
        assert sum(chosen.share) == pytest.approx(1)
        assert ranking_quality(chosen.logits, labels) >= ranking_quality(logits[-1], labels)
        return chosen

    alike = mix(1.5, 1.5, 1.5)
    assert min(alike.share) > 0.15  # whatever the size of their logits
    assert mix(1.5, 50.0, 1.5).share[1] < 0.1
    assert mix(50.0, 50.0, 0.5).share == [0, 0, 1]
    assert mix(1.5, 1.5, 1.5, single=True).share[2] in (0.0, 1.0)


def test_targets_are_known_labels_beside_what_the_frozen_recipe_knows() -> None:
    generator = np.random.default_rng(0)
    truth = generator.choice([-1, 1], size=(400, 2)).astype(np.int8)
    known = np.where(generator.random((400, 2)) < 0.4, truth, 0).astype(np.int8)
    table, logits = Table.from_dense(known), scored(torch.from_numpy(truth), 0.7, 3)
    target = soft_targets(table, logits, table).numpy()
    assert target[known > 0].min() >= 0.7 > 0.3 >= target[known < 0].max()
    unknown = known == 0
    assert target[unknown & (truth > 0)].mean() > 0.7 > 0.3 > target[unknown & (truth < 0)].mean()
    full = Table.from_dense(truth)
    np.testing.assert_allclose(soft_targets(full, logits, full).numpy(), np.where(truth > 0, 0.95, 0.05))


def test_the_head_that_training_begins_with_has_no_gradient_left() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(80, 6, generator=generator) * 3 + 1
    targets = torch.rand(80, 2, generator=generator)
    unreadable = torch.cat([features, torch.full((3, 6), torch.nan)])
    weight, bias = regularised_head(unreadable, torch.cat([targets, torch.ones(3, 2)]), "cpu")
    error = torch.sigmoid(features @ weight.T + bias) - targets
    scale = features.std(0) + 1e-3
    z = (features - features.mean(0)) / scale
    assert error.mean(0).abs().max() < 1e-3
    assert (error.T @ z / 80 + 0.3 * weight * scale).abs().max() < 1e-3


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
    assert torch.equal(first[1], second[1])
