"""Ctrl-C and SIGTERM while a model is trained: nothing is lost, nothing is torn."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from halflabel.features import feature_cache as cache
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Linear, Model
from halflabel.fitting import checkpoint
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.fitting.loop import Fitted, fit
from halflabel.fitting.step import OptimizerStep
from halflabel.images.sources import Features, Images
from halflabel.images.views import Plain, Weak
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system import signals
from halflabel.system.signals import Stopped
from halflabel.types import Batch, Sweep, Targets

N, D, C = 24, 5, 3
SETTINGS = Config(epochs=3, batch_size=4, lr=0.01, ema=0.9, device="cpu")
STEPS = 3 * N // 4


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """A shell that runs the tests in the background has them ignore Ctrl-C."""
    before, of_workers = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGCHLD, of_workers)
    assert not signals.are_deferred()


class Sweeping(Relabeler):
    """Adds up what it sees in steps and in sweeps: neither may be missed or done twice."""

    def start(self, table: Table) -> None:
        self.register_buffer("summed", torch.zeros(table.shape))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        self.summed[batch.index] += logits.sigmoid()
        soft = self.summed[batch.index] / (1 + self.summed[batch.index])
        return Targets((batch.labels > 0) + soft, (batch.labels < 0) + 0.5)

    def wants_sweep(self, epoch: int) -> bool:
        return True

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        self.summed += sweep.logits.sigmoid()
        return {"mean": float(self.summed.mean())}


class Counting(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.steps += 1


def go(folder: Path, resume: bool = False) -> tuple[Fitted, dict[str, Tensor], int]:
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice([-1, 0, 1], size=(N, C)))
    source = Features(rng.normal(size=(N, D)).astype(np.float32), table.images)
    method, callback = Method(BCE(), Sweeping()), Counting()

    def judge(logits: Tensor) -> dict[str, float]:
        return {"select": float(logits.mean())}

    with signals.handle_signals():
        fitted = fit(
            Model(None, seeded(1, lambda: Linear(D, C))), method, source, table, SETTINGS,
            validation=source, judge=judge, callback=callback, folder=folder, resume=resume,
        )  # fmt: skip
    return fitted, dict(method.state_dict()), callback.steps


def at_call(patch: pytest.MonkeyPatch, place: Any, name: str, number: int, do: Callable[[], None]) -> list[int]:
    """Let the number-th call do something first; the list has one entry per call."""
    original, calls = getattr(place, name), list[int]()

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) == number:
            do()
        return original(*args, **more)

    patch.setattr(place, name, counted)
    return calls


# Where the signal comes, at which call, and the steps that are in the checkpoint then.
PLACES = {
    "forward pass": (Sweeping, "forward", 9, 9),
    "optimizer": (OptimizerStep, "update", 10, 10),
    "last step of an epoch": (OptimizerStep, "update", 12, 12),
    "sweep": (Model, "features", 15, 12),
    "validation": (Model, "features", 16, 12),
    "absorbing": (Sweeping, "absorb", 2, 12),
    "saving": (checkpoint, "save", 2, 12),
}


def timeless(log: list[EpochLog]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in ("seconds", "images_per_s")} for line in log]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("name", PLACES)
def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: signal.Signals
) -> None:
    expected, state, steps = go(tmp_path / "unbroken")
    assert steps == STEPS
    place, called, number, trained = PLACES[name]
    with monkeypatch.context() as patch:
        calls = at_call(patch, place, called, number, lambda: os.kill(os.getpid(), kind))
        with pytest.raises(Stopped) as caught:
            go(tmp_path / "stopped")
    assert caught.value.number == kind
    assert len(calls) >= number
    actual, resumed, steps_left = go(tmp_path / "stopped", resume=True)
    assert steps_left == STEPS - trained
    assert timeless(actual.log) == timeless(expected.log)
    for one, other in ((actual.weights, expected.weights), (resumed, state)):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, one[key]) for key, value in other.items())


def test_a_second_signal_is_obeyed_at_once_and_what_is_torn_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        updates = at_call(patch, OptimizerStep, "update", 10, twice)
        with pytest.raises(Stopped):
            go(tmp_path / "stopped")
    assert len(updates) == 10
    assert [path.stem for path in (tmp_path / "stopped").glob("*.pt")] == [f"{7:010d}"]  # of the first epoch
    actual, _, steps_left = go(tmp_path / "stopped", resume=True)
    assert steps_left == STEPS - 6
    expected, _, _ = go(tmp_path / "unbroken")
    assert all(torch.equal(value, actual.weights[key]) for key, value in expected.weights.items())


def test_handlers_are_put_back_and_an_ignored_signal_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals.handle_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_workers_that_end_with_it_are_no_error() -> None:
    def complain(*_: Any) -> None:
        raise RuntimeError("a worker is killed by signal: Terminated")

    signal.signal(signal.SIGCHLD, complain)
    with signals.handle_signals():
        signals.defer_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCHLD)
        with pytest.raises(Stopped):
            signals.release_signals()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, values in enumerate(np.random.default_rng(0).integers(0, 256, (12, 40, 40, 3), np.uint8)):
        Image.fromarray(values).save(folder / f"{number:02d}.png")
    return folder


def images(folder: Path, workers: int = 0) -> Images:
    views = {"plain": Plain(32), "weak": Weak(32)}
    return Images(sorted(folder.iterdir()), Names.numbered(12), views, workers=workers)


def test_a_stopped_cache_goes_on_after_the_last_whole_batch(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = cache.cache_features(build_backbone("tiny", size=32), images(pictures), tmp_path / "whole", batch_size=2)
    backbone = build_backbone("tiny", size=32)
    with monkeypatch.context() as patch:
        at_call(patch, backbone, "pooled", 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with signals.handle_signals(), pytest.raises(Stopped):
            cache.cache_features(backbone, images(pictures), tmp_path / "cache", batch_size=2)
    looked = at_call(monkeypatch, backbone, "pooled", 0, lambda: None)
    features = cache.cache_features(backbone, images(pictures), tmp_path / "cache", batch_size=2)
    assert len(looked) == 3
    np.testing.assert_array_equal(np.asarray(features.values), np.asarray(expected.values))


@pytest.mark.parametrize("harm", ["flipped", "short", "no checksum"])
def test_a_half_built_cache_that_is_damaged_is_built_anew(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    expected = cache.cache_features(build_backbone("tiny", size=32), images(pictures), tmp_path / "whole", batch_size=2)
    backbone = build_backbone("tiny", size=32)
    with monkeypatch.context() as patch:
        at_call(patch, backbone, "pooled", 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with signals.handle_signals(), pytest.raises(Stopped):
            cache.cache_features(backbone, images(pictures), tmp_path / "cache", batch_size=2)
    partial = next((tmp_path / "cache").glob("*/values.npy"))
    content = bytearray(partial.read_bytes())
    content[140] ^= 1
    if harm == "no checksum":
        (partial.parent / "blocks.jsonl").write_text('{"first": 0}\n')
    else:
        partial.write_bytes(bytes(content) if harm == "flipped" else bytes(content[: len(content) // 2]))
    features = cache.cache_features(backbone, images(pictures), tmp_path / "cache", batch_size=2)
    np.testing.assert_array_equal(np.asarray(features.values), np.asarray(expected.values))


def test_deterministic_ways_are_taken_while_it_trains_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen: list[tuple[bool, bool]] = []

    class Looking(Sweeping):
        def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
            seen.append((torch.are_deterministic_algorithms_enabled(), "CUBLAS_WORKSPACE_CONFIG" in os.environ))
            return {}

    table = Table.from_dense(np.ones((4, C), np.int8))
    source = Features(np.zeros((4, D), np.float32), table.images)
    for on in (True, False):
        settings = Config(epochs=1, device="cpu", deterministic=on)
        fit(Model(None, Linear(D, C)), Method(BCE(), Looking()), source, table, settings)
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
        assert not torch.are_deterministic_algorithms_enabled()
    assert seen == [(True, True), (False, False)]


def test_weights_do_not_depend_on_the_number_of_workers(pictures: Path) -> None:
    table = Table.from_dense(np.random.default_rng(0).choice([-1, 0, 1], size=(12, C)))
    results = []
    for workers in (0, 2):
        model = Model(build_backbone("tiny", size=32), seeded(1, lambda: Linear(build_backbone("tiny").channels, C)))
        settings = Config(epochs=2, batch_size=4, lr=0.01, device="cpu")
        results.append(fit(model, Method(BCE(), Sweeping()), images(pictures, workers), table, settings).weights)
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())
