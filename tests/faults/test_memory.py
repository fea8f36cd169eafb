"""Memory that runs out: fewer images at once, and the same result as with so few from the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import score_source
from halflabel.fitting.callbacks import Callback
from halflabel.fitting.config import Config
from halflabel.fitting.loop import Fitted, fit
from halflabel.fitting.step import OptimizerStep
from halflabel.images.sources import Arrays, Features, Images
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system.gpu_memory import MicroBatcher
from halflabel.types import Batch, Targets

N, C = 24, 3
SETTINGS = Config(epochs=2, batch_size=8, lr=0.01, schedule="constant", device="cpu")


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halflabel.fitting.step._LIMITED_MEMORY", ("cpu",))


class Small(nn.Module):
    """A backbone on a device where so many images fit; memory runs out after its first layer, or in its gradient.

    Until it has been called `after` times, there is room for all.
    """

    channels = 6

    def __init__(self, most: int, where: str = "forward", after: int = 0) -> None:
        super().__init__()
        self.after = after
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3)
        self.most, self.where, self.given = most, where, list[int]()

    def forward(self, view: Tensor) -> Tensor:
        self.given.append(len(view))
        actual = self.norm(self.first(view / 255))
        if len(view) > self.most and len(self.given) > self.after:
            actual.register_hook(run_out) if self.training and self.where == "backward" else run_out()
        return self.second(actual)

    pooled = forward


def run_out(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")


class Remembering(Relabeler):
    """Counts how often it saw each image, and replaces its buffer as it does: a step taken twice would show."""

    def start(self, table: Table) -> None:
        self.register_buffer("seen", torch.zeros(len(table)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        seen = self.seen.clone()
        seen[batch.index] += 1
        self.seen = seen
        weight = self.seen[batch.index][:, None]
        return Targets((batch.labels > 0) * weight, (batch.labels < 0) * weight)


def data() -> tuple[Arrays, Table]:
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice([-1, 1], size=(N, C)))
    pictures = torch.from_numpy(rng.integers(0, 256, (N, 3, 12, 12), np.uint8))
    plain = Plain(12)
    return Arrays(pictures, table.images, {"plain": plain, "weak": plain}), table


def model(most: int, where: str = "forward", after: int = 0) -> Model:
    backbone = seeded(5, lambda: Small(most, where, after))
    head = seeded(6, lambda: Linear(6, C))
    return Model(backbone, head)  # type: ignore[arg-type]


def train(tuned: Model, settings: Config, **more: Any) -> tuple[Fitted, Method]:
    source, table = data()
    method = Method(BCE(), Remembering())
    return fit(tuned, method, source, table, settings, **more), method


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert not [name for name, value in expected.items() if not torch.equal(value, found[name])]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_does_not_fit_is_that_of_parts_from_the_start_on(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MicroBatcher, "__init__", lambda batcher: setattr(batcher, "limit", 2))
        expected, of_few = train(model(2, where), SETTINGS)
    with pytest.warns(UserWarning, match="out of GPU memory at batch"):
        actual, method = train(model(2, where), SETTINGS)
    assert_same(actual.weights, expected.weights)
    assert_same(dict(method.state_dict()), dict(of_few.state_dict()))
    assert [line["images_at_once"] for line in actual.log] == [2, 2]


def labels_of(regime: str) -> Table:
    rng = np.random.default_rng(3)
    truth = np.where(rng.random((N, C)) < 0.4, 1, -1)
    truth[np.arange(N), np.arange(N) % C] = 1  # each image and each class has one
    known = {
        "full": np.ones((N, C), bool),
        "partial": rng.random((N, C)) < 0.7,
        "positives-only": truth > 0,
        "single-positive": np.arange(C) == np.arange(N)[:, None] % C,
    }[regime]
    return Table.from_dense(np.where(known, truth, 0))


@pytest.mark.filterwarnings("ignore:.* never starts in ")
@pytest.mark.parametrize("name", list(recipes()))
def test_every_method_forgets_a_step_that_failed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    table = labels_of(recipe(name).serves[-1])

    backward = torch.autograd.backward

    def go(most: int, fails: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        method = recipe(name).make()
        head = seeded(0, lambda: method.head(6, C))
        shape = (N, 6, 4, 4) if head.needs_maps else (N, 6)  # type: ignore[attr-defined]
        values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        source = Features(values, table.images, strong=[values])
        tuned = Model(None, head)  # type: ignore[arg-type]

        def failing_step(*parts: Any) -> OptimizerStep:
            step = OptimizerStep(*parts)
            calls = list[int]()

            def run_out_once(loss: Tensor) -> None:
                calls.append(1)
                backward(loss)
                if fails and len(calls) == 1:
                    run_out()

            step.micro_batches.limit = most
            monkeypatch.setattr(torch.autograd, "backward", run_out_once)
            return step

        monkeypatch.setattr("halflabel.fitting.loop.OptimizerStep", failing_step)
        fit(tuned, method, source, table, SETTINGS)
        return {**tuned.state_dict(), **method.state_dict()}

    expected = go(4, fails=False)
    with pytest.warns(UserWarning, match="2 × 4"):
        fitted = go(0, fails=True)
    assert_same({k: v.nan_to_num(-1) for k, v in fitted.items()}, {k: v.nan_to_num(-1) for k, v in expected.items()})


def test_workers_start_over_with_the_step(tmp_path: Path) -> None:
    source, table = data()
    for number, picture in enumerate(source.images):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / f"{number:02d}.png")
    results = []
    for workers in (0, 2):
        files = Images(sorted(tmp_path.iterdir()), table.images, source.views, workers=workers)
        with pytest.warns(UserWarning, match="out of GPU memory"):
            results.append(fit(model(2, after=1), Method(BCE(), Remembering()), files, table, SETTINGS).weights)
    assert_same(results[1], results[0])


def test_one_warning_per_halving() -> None:
    with pytest.warns(UserWarning, match="out of GPU memory") as caught:
        train(model(2), SETTINGS)
    messages = [str(each.message) for each in caught]
    training = [line for line in messages if "added up" in line]
    assert [line.split(":")[1].split(",")[0] for line in training] == [" going on with 2 × 4", " going on with 4 × 2"]
    assert training[0].startswith("out of GPU memory at batch 8")
    assert "batch norm" in training[0]


class Breaking(Callback):
    """Stops training at the given step, as a crash would."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_resumed_run_remembers_how_many_fit(tmp_path: Path) -> None:
    settings = replace(SETTINGS, save_every=1)
    with pytest.warns(UserWarning, match="out of GPU memory"):
        expected, _ = train(model(4), settings)
    with pytest.warns(UserWarning, match="out of GPU memory"), pytest.raises(KeyboardInterrupt):
        train(model(4), settings, folder=tmp_path, callback=Breaking(2))
    resumed = model(4)
    actual, _ = train(resumed, settings, folder=tmp_path, resume=True)  # without a warning, which would be an error
    assert_same(actual.weights, expected.weights)
    assert max(resumed.backbone.given) == 4  # type: ignore[union-attr, operator, arg-type]


def test_one_image_too_many_is_an_error_with_advice() -> None:
    with pytest.warns(UserWarning, match="2 × 1"), pytest.raises(UserError, match="single image") as caught:
        train(model(0), replace(SETTINGS, batch_size=2))
    assert "‹precision=bf16›" in caught.value.fix


def test_what_cannot_be_split_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halflabel.fitting.step._LIMITED_MEMORY", ())
    with pytest.raises(UserError, match="for batches of 8") as caught:
        train(model(4), SETTINGS)
    assert "‹batch_size" in caught.value.fix


def test_the_optimizers_own_memory_is_not_a_matter_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", run_out)
    with pytest.raises(UserError, match="state of adamw"):
        train(model(N), SETTINGS)


def test_scores_are_the_same_however_many_images_fit() -> None:
    source, _ = data()
    expected = score_source(model(N), source, batch_size=8, passes=3)
    small = model(3)
    with pytest.warns(UserWarning, match="out of GPU memory") as caught:
        scored = score_source(small, source, batch_size=8, passes=3)
    assert len(caught) == 2  # 8 -> 4 -> 2, and no more for the other batches
    for name in ("logits", "features", "mean", "spread"):
        torch.testing.assert_close(getattr(scored, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    assert small.backbone.given[:3] == [8, 4, 2]  # type: ignore[union-attr, index]
    assert set(small.backbone.given[3:]) == {2}  # type: ignore[union-attr, index, arg-type]


def test_a_cache_is_the_same_however_many_images_fit(tmp_path: Path) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), np.uint8))
    source = Arrays(images, Names.numbered(10), {"plain": Plain(32)})
    expected = cache_features(build_backbone("tiny", size=32), source, tmp_path / "a", batch_size=8)
    backbone = build_backbone("tiny", size=32)
    pooled, given = backbone.pooled, list[int]()

    def limited(view: Tensor) -> Tensor:
        given.append(len(view))
        return pooled(view) if len(view) <= 4 else run_out()  # type: ignore[return-value]

    backbone.pooled = limited  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="2 × 4"):
        features = cache_features(backbone, source, tmp_path / "b", batch_size=8)
    assert given == [8, 4, 4, 2]
    np.testing.assert_allclose(np.asarray(features.values), np.asarray(expected.values), rtol=2e-3, atol=1e-3)
