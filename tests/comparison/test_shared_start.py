"""The shared start: trained once per seed and label mask, and copied into heads of several kinds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import halflabel.fitting.loop
from halflabel.comparison.bench import Bench, Start, copy_start
from halflabel.comparison.grid import Candidate, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.sources import OutOfTime, split_data
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Head, Linear, Model
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, seeded
from halflabel.system.reporter import Reporter

CHANNELS, CLASSES = 12, 5
START = Start("logistic", (), 1e-3, 0.0, 3)


@pytest.fixture(scope="session")
def config(config: Config) -> Config:
    """As published: heads do not begin with a fit by L-BFGS."""
    return replace(config, linear_start=False)


def labels() -> Table:
    rng = np.random.default_rng(0)
    return Table.from_dense(rng.choice([-1, 1], (40, CLASSES)).astype(np.int8))


def linear() -> tuple[Linear, dict[str, Tensor]]:
    head = seeded(1, lambda: Linear(CHANNELS, CLASSES))
    return head, Model(None, head).state_dict()


def begun(name: str, **options: Any) -> tuple[Method, Head]:
    method = recipe(name).make(**options)
    head = seeded(2, lambda: method.head(CHANNELS, CLASSES))
    copy_start(linear()[1], Model(None, head), method, labels())
    return method, head.eval()


def features() -> Tensor:
    return torch.randn(20, CHANNELS, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lsep", {}),
        ("curriculum", {}),
        ("imcl", {}),
        ("latent-noise", {"score": "visual"}),
        ("fast0tag", {"vector_size": 8}),
    ],
)
def test_scores_are_those_of_the_start(name: str, options: dict[str, Any]) -> None:
    _, head = begun(name, **options)
    expected = linear()[0](features()).logits
    assert torch.allclose(head(features()).logits, expected, atol=1e-4)


def test_fast0tag_keeps_the_vectors_of_the_start() -> None:
    method, head = begun("fast0tag", vector_size=8)
    before = head(features()).logits
    method.start(labels())  # as training does
    assert torch.equal(head(features()).logits, before)


@pytest.mark.parametrize("dimensions", [2, CLASSES, 30])
def test_wsabie_starts_from_the_truncated_svd(dimensions: int) -> None:
    _, head = begun("wsabie", dimensions=dimensions)
    weight = linear()[0].linear.weight.detach()
    actual = head.labels.detach() @ head.images.detach()  # type: ignore[union-attr,operator]
    left, size, right = np.linalg.svd(weight.numpy(), full_matrices=False)
    rank = min(dimensions, CLASSES)
    assert np.allclose(actual.numpy(), (left[:, :rank] * size[:rank]) @ right[:rank], atol=1e-5)
    head.train()
    head(features()).logits.square().sum().backward()
    assert isinstance(head.labels, torch.nn.Parameter)
    assert head.labels.grad is not None
    assert bool((head.labels.grad.abs().sum(0) > 0).all())  # no dimension is dead


def test_a_tuned_backbone_is_copied() -> None:
    first = Model(build_backbone("tiny", pretrained=False, size=32), Linear(CHANNELS, CLASSES))
    with torch.no_grad():
        for value in first.parameters():
            value.add_(1.0)
    method = recipe("lsep").make()
    started = Model(build_backbone("tiny", pretrained=False, size=32), method.head(CHANNELS, CLASSES))
    copy_start(first.state_dict(), started, method, labels())
    for name, value in started.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Epochs, seed and known labels of each training, in order."""
    trainings: list[tuple[int, int, int]] = []
    original = halflabel.fitting.loop.fit

    def fit(model: Any, method: Any, source: Any, table: Any, settings: Any, **more: Any) -> Any:
        trainings.append((settings.epochs, settings.seed, table.known))
        return original(model, method, source, table, settings, **more)

    monkeypatch.setattr("halflabel.fitting.fit.fit_epochs", fit)
    return trainings


def task(method: str, seed: int = 0, share: float = 0.5) -> Task:
    candidate = Candidate(method, method, (), START.lr, START.weight_decay)
    return Task(candidate, LabelMask.share(share), seed, START.lr, ())


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["head", "all"])
def test_trained_once_per_seed_and_label_mask(
    tune: Any, digits: Any, config: Config, tmp_path: Path, fits: list[tuple[int, int, int]]
) -> None:
    messages: list[str] = []
    config = replace(config, tune=tune)

    def bench() -> Bench:
        return Bench(
            split_data(digits.table, digits.images),
            config,
            cache=tmp_path,
            start=START,
            reporter=Reporter(message=messages.append),
        )

    first = bench()
    for each_task in (task("lsep"), task("logistic"), task("wsabie"), task("lsep", seed=1), task("lsep", share=0.8)):
        first.train(each_task)
    epochs = [(epochs, seed) for epochs, seed, _ in fits]
    # The start before what needs it; the task that is the start is trained as any other.
    assert epochs == [(3, 0), (2, 0), (3, 0), (2, 0), (3, 1), (2, 1), (3, 0), (2, 0)]
    assert fits[6][2] > fits[0][2]
    assert len(messages) == 3
    assert "3 epochs of logistic" in messages[0]
    files = sorted((tmp_path / "starts").iterdir())
    assert [file.suffix for file in files] == [".pt"] * 3  # nothing half-done is left
    fits.clear()
    bench().train(task("lsep"))
    assert [epochs for epochs, *_ in fits] == [2]  # another bench finds it
    files[0].write_bytes(b"damaged")
    for each_task in (task("lsep"), task("lsep", seed=1), task("lsep", share=0.8)):
        bench().train(each_task)
    assert [epochs for epochs, *_ in fits].count(3) == 1  # a damaged one is trained again


def test_the_start_equals_its_method_trained_alone(digits: Any, config: Config, tmp_path: Path) -> None:
    alone = replace(config, epochs=START.epochs)
    plain = Bench(split_data(digits.table, digits.images), alone, cache=tmp_path).train(task("logistic"))
    started = Bench(split_data(digits.table, digits.images), config, cache=tmp_path, start=START)
    assert np.array_equal(started.train(task("logistic")).logits, plain.logits)
    assert started.identity()["start"]["epochs"] == 3
    assert Bench(split_data(digits.table, digits.images), config, cache=tmp_path).identity()["start"] is None
    # With a learning rate of 0 a method with the same head stays where it started.
    still = replace(config, schedule="constant")
    bench = Bench(split_data(digits.table, digits.images), still, cache=tmp_path, start=START)
    same = bench.train(replace(task("lsep"), lr=0.0, candidate=replace(task("lsep").candidate, weight_decay=0.0)))
    first = bench.train(task("logistic"))
    assert np.allclose(same.logits, first.logits, atol=1e-6)


def test_the_budget_also_limits_the_start(digits: Any, config: Config, tmp_path: Path) -> None:
    bench = Bench(split_data(digits.table, digits.images), config, cache=tmp_path, start=START)
    bench.train(task("lsep", seed=1))  # features are there
    bench.reporter = Reporter(deadline=time.monotonic() - 1)
    with pytest.raises(OutOfTime):
        bench.train(task("lsep"))
    assert len(list((tmp_path / "starts").iterdir())) == 1


def test_a_start_on_labelled_images_only(
    digits: Any, config: Config, tmp_path: Path, fits: list[tuple[int, int, int]]
) -> None:
    dense = replace(task("lsep"), label_mask=LabelMask("dense", (("share", 0.2),)))
    sizes: list[int] = []
    for only in (False, True):
        bench = Bench(
            split_data(digits.table, digits.images), config, cache=tmp_path, start=replace(START, labelled_only=only)
        )
        bench.train(dense)
        inside = bench.divide(dense.label_mask, 0).inside
        sizes.append(len(inside))
        labelled = bench.divide(dense.label_mask, 0).labelled()
        assert 0 < len(labelled.inside) < len(inside)
        assert labelled.outside.tolist() == bench.divide(dense.label_mask, 0).outside.tolist()
    assert sizes[0] == sizes[1]
    assert len(list((tmp_path / "starts").iterdir())) == 2  # of other images, another start
    assert [epochs for epochs, *_ in fits] == [3, 2, 3, 2]


def test_images_without_labels_can_be_left_out(
    digits: Any, config: Config, tmp_path: Path, fits: list[tuple[int, int, int]]
) -> None:
    dense = replace(task("bce"), label_mask=LabelMask("dense", (("share", 0.2),)))
    all_images, labelled_images = (
        Bench(split_data(digits.table, digits.images), config, cache=tmp_path, labelled_only=only)
        for only in (False, True)
    )
    outside = [bench.divide(dense.label_mask, 0).outside.tolist() for bench in (all_images, labelled_images)]
    assert outside[0] == outside[1]
    inside = labelled_images.divide(dense.label_mask, 0).inside
    assert 0 < len(inside) < len(all_images.divide(dense.label_mask, 0).inside) / 2
    known = labelled_images.divide(dense.label_mask, 0).known.subset(inside)
    assert (np.diff(known.start) > 0).all()
    labelled_images.train(dense)
    assert fits[0][2] == known.known
    assert labelled_images.identity()["labelled only"] is True
