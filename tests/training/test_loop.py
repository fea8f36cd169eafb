"""Compare the training loop with plain torch loops, and resumed runs with uninterrupted ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from halflabel.data.sources import Arrays, Features, Subset
from halflabel.data.views import Plain, Strong, Weak
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Ignore, Relabeler
from halflabel.models.backbones import build_backbone
from halflabel.models.heads import Head, Linear, Model
from halflabel.models.scoring import score_source
from halflabel.training import loop as training
from halflabel.training.callbacks import Callback, EpochLog
from halflabel.training.config import Settings
from halflabel.training.loop import fit
from halflabel.training.optimizer import learning_rate_factor
from halflabel.types import Batch, Output, Sweep, Targets

N, D, C = 50, 8, 5


@pytest.fixture(autouse=True)
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: these tests simulate no power cut, and fsync would take most of the time."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


PLAIN = Settings(epochs=3, batch_size=16, lr=0.01, schedule="constant", device="cpu")


def data(n: int = N) -> tuple[Features, LabelTable]:
    rng = np.random.default_rng(0)
    table = LabelTable.from_dense(rng.choice([-1, 0, 1], size=(n, C)))
    return Features(rng.standard_normal((n, D)).astype(np.float32), table.images), table


def linear(dropout: float = 0.0) -> Model:
    head = seeded(3, lambda: Linear(D, C, dropout))
    assert isinstance(head, Head)
    return Model(None, head)


def bce() -> Method:
    return Method(BCE())


def planned(settings: Settings, source: Any, epoch: int) -> list[Any]:
    """The batches of the loop: the only thing that the plain loops here take from it."""
    run = training.make_loop(linear(), bce(), source, data(len(source))[1], settings)
    return list(run._plan(epoch))


def by_hand(
    settings: Settings,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    rate: Callable[[float], float] = lambda progress: 1.0,
    after: Callable[[nn.Module, int], None] = lambda module, step: None,
) -> dict[str, Tensor]:
    """Plain torch: mean over all B·C entries of the cross-entropy of the known ones."""
    source, table = data()
    values, labels = torch.from_numpy(source.values), torch.from_numpy(table.dense()).float()
    model = linear()
    steps = optimizer(list(model.parameters()))
    number = 0
    for epoch in range(1, settings.epochs + 1):
        plan = planned(settings, source, epoch)
        for at, index in enumerate(plan):
            for group in steps.param_groups:
                group["lr"] = settings.lr * rate(epoch - 1 + at / len(plan))
            x, y = model(values[index]).logits, labels[index]
            loss = (binary_cross_entropy_with_logits(x, (y > 0).float(), reduction="none") * (y != 0)).mean()
            steps.zero_grad()
            loss.backward()
            if settings.clip:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            steps.step()
            number += 1
            after(model, number)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=atol, rtol=0)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-4),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=1e-4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loop_is_the_plain_torch_loop(name: str) -> None:
    settings = replace(PLAIN, optimizer=name)
    source, table = data()
    fitted = fit(linear(), bce(), source, table, settings)
    assert_close(fitted.weights, by_hand(settings, OPTIMIZERS[name]))
    assert not torch.equal(fitted.weights["head.linear.weight"], linear().state_dict()["head.linear.weight"])


def test_an_unknown_optimizer_is_the_users_to_fix() -> None:
    source, table = data()
    with pytest.raises(UserError, match="adamw, adam, sgd, rmsprop"):
        fit(linear(), bce(), source, table, replace(PLAIN, optimizer="lion"))  # type: ignore[arg-type]


def test_every_image_once_per_epoch_in_another_order_each_time() -> None:
    source, _ = data()
    orders = [np.concatenate(planned(PLAIN, source, epoch)) for epoch in (1, 2)]
    for order in orders:
        assert sorted(order) == list(range(N))
    assert not np.array_equal(*orders)
    assert np.array_equal(orders[0], np.concatenate(planned(PLAIN, source, 1)))
    other = np.concatenate(planned(replace(PLAIN, seed=1), source, 1))
    assert not np.array_equal(orders[0], other)
    # By name, not by place: a table in another order is visited in the same order of images.
    turned = Subset(source, np.arange(N)[::-1].copy())
    assert [source.names[i] for i in orders[0]] == [turned.names[i] for i in np.concatenate(planned(PLAIN, turned, 1))]


@pytest.mark.parametrize("n", [48, 50], ids=["whole groups", "a rest"])
def test_accumulated_batches_step_like_one_large_batch(n: int) -> None:
    source, table = data(n)
    large = fit(linear(), bce(), source, table, replace(PLAIN, optimizer="sgd"))
    small = fit(linear(), bce(), source, table, replace(PLAIN, optimizer="sgd", batch_size=8, accumulate=2))
    assert_close(small.weights, large.weights)


def test_accumulated_steps_are_as_many_as_those_of_large_batches() -> None:
    source, table = data()
    run = training.make_loop(linear(), bce(), source, table, replace(PLAIN, batch_size=8, accumulate=3))
    run.run(False)
    assert run.state.steps == 3 * math.ceil(math.ceil(N / 8) / 3)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schedule": "constant"}, {0: 1, 5: 1, 9.9: 1}),
        ({"schedule": "cosine"}, {0: 1, 5: 0.5, 2.5: 0.5 + math.sqrt(0.125), 10: 0}),
        ({"schedule": "cosine", "warmup": 2}, {1: 0.5005, 2: 1, 6: 0.5, 10: 0}),
        ({"schedule": "step", "step_epochs": 4, "step_factor": 0.5}, {0: 1, 3.99: 1, 4: 0.5, 8: 0.25}),
        ({"schedule": "constant", "warmup": 4}, {0: 0.00025, 1: 0.25025, 4: 1, 9: 1}),
        ({"schedule": "constant", "warmup": 0.01}, {0: 0.1, 0.0099: 1, 0.01: 1}),
        ({"schedule": "plateau"}, {0: 1, 9: 1}),
    ],
)
def test_rates(change: dict[str, Any], expected: dict[float, float]) -> None:
    settings = replace(PLAIN, epochs=10, **change)
    for progress, rate in expected.items():
        assert learning_rate_factor(progress, settings) == pytest.approx(rate, abs=1e-9)


def test_the_cosine_is_followed_step_by_step_and_logged() -> None:
    settings = replace(PLAIN, schedule="cosine")
    source, table = data()
    fitted = fit(linear(), bce(), source, table, settings)
    expected = by_hand(settings, OPTIMIZERS["adamw"], lambda progress: 0.5 * (1 + math.cos(math.pi * progress / 3)))
    assert_close(fitted.weights, expected)
    batches = math.ceil(N / 16)
    assert [line["lr"] for line in fitted.log] == pytest.approx(
        [0.01 * 0.5 * (1 + math.cos(math.pi * (epoch - 1 / batches) / 3)) for epoch in (1, 2, 3)]
    )


class Scripted:
    """A judge that takes its metrics from a list."""

    def __init__(self, values: list[float]) -> None:
        self.values = list(values)
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, logits: Tensor) -> dict[str, float]:
        self.shapes.append(tuple(logits.shape))
        value = self.values.pop(0)
        return {"mAP": value, "select": value}


def test_plateau_lowers_the_rate_when_validation_falls() -> None:
    source, table = data()
    judge = Scripted([0.5, 0.6, 0.4, 0.4, 0.3])
    settings = replace(PLAIN, epochs=5, schedule="plateau", step_factor=0.1)
    fitted = fit(linear(), bce(), source, table, settings, validation=source, judge=judge)
    assert [line["lr"] for line in fitted.log] == pytest.approx([0.01, 0.01, 0.01, 0.001, 0.001])


def test_the_best_epoch_is_kept_and_training_stops_without_gain() -> None:
    source, table = data()
    judge = Scripted([0.1, 0.5, 0.4, 0.5, 0.9])
    fitted = fit(linear(), bce(), source, table, replace(PLAIN, epochs=5, patience=2), validation=source, judge=judge)
    assert fitted.best_epoch == 2
    assert [line["epoch"] for line in fitted.log] == [1, 2, 3, 4]
    assert [line["mAP"] for line in fitted.log] == [0.1, 0.5, 0.4, 0.5]
    assert judge.shapes == [(N, C)] * 4
    assert_same(fitted.weights, fit(linear(), bce(), source, table, replace(PLAIN, epochs=2)).weights)


def test_without_a_verdict_the_last_weights_are_kept() -> None:
    source, table = data()
    model = linear()
    fitted = fit(model, bce(), source, table, PLAIN, validation=source, judge=Scripted([math.nan] * 3))
    assert fitted.best_epoch == 3
    assert_same(fitted.weights, fit(linear(), bce(), source, table, PLAIN).weights)
    assert_same(dict(model.state_dict()), fitted.weights)


def test_the_weight_average_is_the_one_written_out_here() -> None:
    settings = replace(PLAIN, ema=0.6)
    source, table = data()
    average: dict[str, Tensor] = {}

    def blend(module: nn.Module, step: int) -> None:
        for name, value in module.state_dict().items():
            decay = min(0.6, step / (9 + step))
            first = step == 1
            average[name] = value.clone() if first else decay * average[name] + (1 - decay) * value

    last = by_hand(settings, OPTIMIZERS["adamw"], after=blend)
    fitted = fit(linear(), bce(), source, table, settings)
    assert_close(fitted.weights, average)
    assert float((average["head.linear.weight"] - last["head.linear.weight"]).abs().max()) > 1e-3


def test_the_average_is_what_is_judged() -> None:
    source, table = data()
    seen: list[Tensor] = []

    def judge(logits: Tensor) -> dict[str, float]:
        seen.append(logits)
        return {"select": float(len(seen))}

    model = linear()
    fit(model, bce(), source, table, replace(PLAIN, ema=0.9), validation=source, judge=judge)
    torch.testing.assert_close(score_source(model, source).logits, seen[-1])


def test_clipping_is_torchs() -> None:
    settings = replace(PLAIN, clip=0.05, optimizer="sgd", lr=1.0)
    source, table = data()
    fitted = fit(linear(), bce(), source, table, settings)
    sgd = OPTIMIZERS["sgd"]
    assert_close(fitted.weights, by_hand(settings, sgd))
    unclipped = by_hand(replace(settings, clip=0.0), sgd)
    assert float((fitted.weights["head.linear.bias"] - unclipped["head.linear.bias"]).abs().max()) > 1e-3


class TwoParts(Method):
    """A method with its own parameter."""

    def __init__(self) -> None:
        super().__init__(BCE())
        self.scale = nn.Parameter(torch.ones(()))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.scale], "base_lr": 3 * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        return super().step(model, batch, epoch) * self.scale**2


def small_pictures(n: int = 12) -> tuple[Arrays, LabelTable]:
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (n, 3, 40, 32), dtype=np.uint8))
    table = LabelTable.from_dense(rng.choice([-1, 1], size=(n, 10)))
    return Arrays(images, table.images, {"plain": Plain(32), "weak": Weak(32), "strong": Strong(32)}), table


def test_parameter_groups_have_their_own_rates() -> None:
    source, table = small_pictures()
    backbone = build_backbone("tiny")
    model = Model(backbone, Linear(backbone.channels, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method = TwoParts()
    settings = replace(PLAIN, epochs=1, batch_size=12, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=0.5)
    run = training.make_loop(model, method, source, table, settings)
    rates = [(len(group["params"]), group["lr"]) for group in run.step.optimizer.param_groups]
    assert rates == [(2, 0.5), (len(list(backbone.parameters())), 0.05), (1, 1.5)]

    reference = Model(build_backbone("tiny"), Linear(backbone.channels, 10))
    reference.load_state_dict(before)
    run.run(False)
    index = planned(settings, source, 1)[0]
    torch.manual_seed(0)
    (_, views), *_ = source.fetch([index], ("weak",), seed=0, epoch=1)
    loss = TwoParts().step(reference, Batch(torch.tensor(index), views, torch.from_numpy(table.rows(index))), 1)
    loss.backward()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        rate = 0.5 if name.startswith("head") else 0.05
        expected = before[name] - rate * parameter.grad
        torch.testing.assert_close(
            dict(run.distribution.plain.named_parameters())[name].detach(), expected, atol=1e-6, rtol=1e-5
        )
    assert float(method.scale.detach()) == pytest.approx(1 - 1.5 * 2 * float(loss.detach()), abs=1e-5)


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    class Wrong(BCE):
        def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
            return logits / 0, logits / 0

    source, table = data()
    with pytest.raises(UserError, match=r"not finite \(epoch 1, by batch 1\).*lower lr \(now 0.01\)"):
        fit(linear(), Method(Wrong()), source, table, PLAIN)


def test_mixed_precision_on_the_cpu_trains_in_bfloat16() -> None:
    source, table = data()
    seen: list[torch.dtype] = []

    class Spy(Linear):
        def forward(self, features: Tensor) -> Output:
            output = super().forward(features)
            seen.append(output.logits.dtype)
            return output

    def model() -> Model:
        spy = Spy(D, C)
        spy.load_state_dict(linear().head.state_dict())
        return Model(None, spy)

    fitted = fit(model(), bce(), source, table, replace(PLAIN, precision="bf16"))
    assert set(seen) == {torch.bfloat16}
    full = fit(model(), bce(), source, table, PLAIN)  # and the next run is in full precision again
    assert seen[-1] == torch.float32
    assert_close(fitted.weights, full.weights, atol=0.02)
    assert all(value.dtype == torch.float32 for value in fitted.weights.values())


def test_half_precision_leaves_the_model_as_it_was_and_its_outputs_wide() -> None:
    source, table = data()
    model = linear()
    fit(model, bce(), source, table, replace(PLAIN, precision="bf16", epochs=1))
    assert "forward" not in vars(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.head(torch.ones(2, D)).logits.dtype == torch.bfloat16
        assert model(torch.ones(2, D)).logits.dtype == torch.float32


def test_channels_last_changes_the_layout_not_the_result() -> None:
    source, table = small_pictures()
    seen: list[bool] = []

    class Spy(Linear):
        def forward(self, features: Tensor) -> Output:
            seen.append(features.is_contiguous(memory_format=torch.channels_last))
            return super().forward(features)

    def model() -> Model:
        backbone = build_backbone("tiny")
        head = seeded(0, lambda: Spy(backbone.channels, 10))
        assert isinstance(head, Head)
        return Model(backbone, head)

    settings = replace(PLAIN, epochs=1, batch_size=4, backbone_lr=1.0, channels_last=False)
    plain = fit(model(), bce(), source, table, settings)
    assert not any(seen)
    seen.clear()
    other = fit(model(), bce(), source, table, replace(settings, channels_last=True))
    assert all(seen)
    assert_close(other.weights, plain.weights, atol=1e-3)


class Sweeper(Ignore):
    """Asks for sweeps after epochs 1 and 3, and stores them."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps: list[tuple[int, Sweep]] = []
        self.started: list[LabelTable] = []
        self.register_buffer("kept", torch.zeros(N, C))

    def start(self, table: LabelTable) -> None:
        self.started.append(table)

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        assert not logits.requires_grad
        pos, neg = super().forward(batch, logits, epoch)
        # Kept scores are multiplied with ones that have a gradient: what a sweep gives must stand that.
        return Targets(pos * (1 + self.kept[batch.index].sigmoid()), neg)  # type: ignore[index]

    def wants_sweep(self, epoch: int) -> bool:
        return epoch in (1, 3)

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        self.sweeps.append((epoch, sweep))
        self.kept = torch.nan_to_num(sweep.logits)
        return {"swept": float(len(self.sweeps))}


def test_a_sweep_sees_every_image_in_the_order_of_the_table() -> None:
    source, table = data()
    relabel = Sweeper()
    bad = Features(source.values, table.images, bad=[7])
    model = linear(dropout=0.5)
    fitted = fit(model, Method(BCE(), relabel), bad, table, replace(PLAIN, epochs=4))
    assert relabel.started == [table]
    assert [epoch for epoch, _ in relabel.sweeps] == [1, 3]
    assert [line.get("swept") for line in fitted.log] == [1.0, None, 2.0, None]
    for _, sweep in relabel.sweeps:
        assert sweep.logits.shape == (N, C)
        assert bool(sweep.logits[7].isnan().all())
        assert not sweep.logits[np.arange(N) != 7].isnan().any()
        values = torch.from_numpy(source.values)
        torch.testing.assert_close(sweep.features[np.arange(N) != 7], values[np.arange(N) != 7])
        assert not sweep.logits.is_inference()
    assert model.training  # as it was, although sweeps are made in evaluation mode


def test_scores_are_those_of_evaluation_mode_and_leave_the_mode_alone() -> None:
    source, _ = data()
    model = linear(dropout=0.5)
    model.train()
    scored = score_source(model, source, batch_size=7)
    assert model.training
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(scored.logits, model(torch.from_numpy(source.values)).logits)
    assert not scored.logits.requires_grad


def test_a_batch_without_one_readable_image_is_passed_over() -> None:
    source, table = data()
    order = np.concatenate(planned(PLAIN, source, 1))
    bad = Features(source.values, table.images, bad=order[:16])  # the whole first batch
    fitted = fit(linear(), bce(), bad, table, replace(PLAIN, epochs=1))
    assert fitted.log[0]["loss"] > 0
    logits = score_source(linear(), bad, batch_size=1).logits
    assert logits.isnan().all(1).sum() == 16
    with pytest.raises(UserError, match="not one image could be read"):
        score_source(linear(), Subset(Empty(source), np.arange(3)))


class Empty:
    """A source of unreadable image files: batches without views."""

    def __init__(self, like: Features) -> None:
        self.names, self.hashes = like.names, like.hashes

    def __len__(self) -> int:
        return len(self.names)

    def fetch(self, plan: Any, views: Any, *, seed: int = 0, epoch: int = 0) -> Any:
        for _ in plan:
            yield np.arange(0), ()


def test_images_and_labels_must_be_as_many() -> None:
    source, table = data()
    with pytest.raises(ValueError, match="50 images but 3 rows"):
        fit(linear(), bce(), source, table.subset([0, 1, 2]), PLAIN)


class Counting(Callback):
    """A callback that stops training at a given step, as a crash would."""

    def __init__(self, stop_at: int = -1, stop_after_epoch: int = -1) -> None:
        self.stop_at, self.stop_after_epoch = stop_at, stop_after_epoch
        self.steps = 0
        self.told: list[Any] = []

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self.told.append((epoch, images))

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt

    def on_epoch_end(self, log: EpochLog) -> None:
        self.told.append(log["epoch"])
        if log["epoch"] == self.stop_after_epoch:
            raise KeyboardInterrupt


def test_the_watch_is_told_of_every_epoch_and_step() -> None:
    source, table = data()
    callback = Counting()
    fit(linear(), bce(), source, table, PLAIN, callback=callback)
    assert callback.told == [(1, N), 1, (2, N), 2, (3, N), 3]
    assert callback.steps == 3 * math.ceil(N / 16)


class Remembering(Relabeler):
    """Averages the scores of each image over the epochs: state that a resumed run must restore."""

    def start(self, table: LabelTable) -> None:
        self.register_buffer("average", torch.zeros(table.shape))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        assert isinstance(self.average, Tensor)
        self.average[batch.index] = 0.5 * self.average[batch.index] + 0.5 * logits.sigmoid()
        soft = self.average[batch.index]
        unknown = batch.labels == 0
        return Targets((batch.labels > 0).float() + unknown * soft, (batch.labels < 0).float() + unknown * (1 - soft))


def saved(stop: Counting, settings: Settings) -> int:
    """Batches of the second epoch in the last checkpoint: the callback stops training before its step is saved."""
    per_epoch = math.ceil(N / settings.batch_size)
    return (stop.stop_at - per_epoch - 1) // settings.accumulate * settings.accumulate


RESUMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "sgd, momentum": {"optimizer": "sgd"},
    "sgd without": {"optimizer": "sgd", "momentum": 0.0},
    "rmsprop": {"optimizer": "rmsprop"},
    "ema": {"ema": 0.8},
    "accumulate": {"accumulate": 2, "batch_size": 8},
    "accumulate 3": {"accumulate": 3, "batch_size": 4, "clip": 0.1},
    "cosine, warm-up": {"schedule": "cosine", "warmup": 1.5},
    "plateau": {"schedule": "plateau"},
    "bf16": {"precision": "bf16"},
    "fp16, with a scaler": {"precision": "fp16"},
}


@pytest.mark.parametrize("change", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("where", ["between epochs", "within an epoch"])
def test_a_run_that_breaks_off_ends_bit_for_bit_like_an_unbroken_one(
    tmp_path: Path, change: dict[str, Any], where: str
) -> None:
    source, table = data()
    between = where == "between epochs"
    settings = replace(PLAIN, epochs=4, save_every=0 if between else 1, **change)

    def go(folder: Path, callback: Counting, resume: bool = False) -> tuple[training.Fitted, Method]:
        method = Method(BCE(), Remembering())
        verdicts = [0.2, 0.5, 0.3, 0.4]
        # A resumed run is judged from the epoch on in which it broke off.
        judge = Scripted(verdicts[(2 if between else 1) if resume else 0 :])
        fitted = fit(
            linear(dropout=0.5), method, source, table, settings,
            validation=source, judge=judge, callback=callback, folder=folder, resume=resume,
        )  # fmt: skip
        return fitted, method

    callback = Counting()
    unbroken, method = go(tmp_path / "unbroken", callback)
    per_epoch = callback.steps // 4
    # Within an epoch: after the checkpoint of its first step, in the middle of what accumulates.
    stop = Counting(stop_after_epoch=2) if between else Counting(stop_at=per_epoch + settings.accumulate + 2)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", stop)
    after = Counting()
    resumed, resumed_method = go(tmp_path / "broken", after, resume=True)
    # Where the checkpoint was, not where the epoch began; the step that broke off is made again.
    assert after.steps == (2 * per_epoch if between else callback.steps - per_epoch - saved(stop, settings))
    assert_same(resumed.weights, unbroken.weights)
    assert_same(dict(resumed_method.state_dict()), dict(method.state_dict()))
    assert resumed.best_epoch == unbroken.best_epoch == 2

    def timeless(log: list[EpochLog]) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_s")} for line in log]

    assert timeless(resumed.log) == timeless(unbroken.log)


def test_a_finished_run_resumed_gives_its_result_again(tmp_path: Path) -> None:
    source, table = data()
    first = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path)
    callback = Counting()
    again = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path, resume=True, callback=callback)
    assert callback.steps == 0
    assert_same(again.weights, first.weights)


def test_resume_without_a_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    source, table = data()
    fitted = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path / "new", resume=True)
    assert_same(fitted.weights, fit(linear(), bce(), source, table, PLAIN).weights)


def test_a_new_run_in_an_old_folder_is_resumed_from_its_own_checkpoints(tmp_path: Path) -> None:
    source, table = data()
    fit(linear(), bce(), source, table, replace(PLAIN, epochs=6), folder=tmp_path)
    other = replace(PLAIN, seed=9, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        fit(linear(), bce(), source, table, other, folder=tmp_path, callback=Counting(stop_after_epoch=2))
    fitted = fit(linear(), bce(), source, table, other, folder=tmp_path, resume=True)
    assert [line["epoch"] for line in fitted.log] == [1, 2, 3]
    assert_same(fitted.weights, fit(linear(), bce(), source, table, other).weights)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    source, table = data()
    fit(linear(), bce(), source, table, PLAIN, folder=tmp_path)
    with pytest.raises(UserError, match="another model"):
        fit(Model(None, Linear(D, C + 1)), bce(), source, table, PLAIN, folder=tmp_path, resume=True)
    with pytest.raises(UserError, match="another model"):
        fit(linear(), bce(), source, table, replace(PLAIN, ema=0.9), folder=tmp_path, resume=True)


def test_two_views_and_dropout_are_functions_of_the_seed() -> None:
    class Twice(Method):
        def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
            weak, strong = (model(view).logits for view in batch.views)
            assert not torch.equal(*batch.views)
            return super().step(model, batch, epoch) + (weak.detach() - strong).square().mean()

    def go(seed: int) -> dict[str, Tensor]:
        source, table = small_pictures()
        backbone = build_backbone("tiny")
        head = seeded(0, lambda: Linear(backbone.channels, 10, 0.5))
        assert isinstance(head, Head)
        method = Twice(BCE(), views=("weak", "strong"))
        settings = replace(PLAIN, epochs=1, batch_size=4, seed=seed)
        return fit(Model(backbone, head), method, source, table, settings).weights

    torch.manual_seed(123)
    first = go(0)
    torch.manual_seed(456)  # the global generator must not matter
    assert_same(go(0), first)
    assert not torch.equal(go(1)["head.linear.weight"], first["head.linear.weight"])


class Dropping(Linear):
    """A linear head whose dropout matters."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes, dropout=0.5)


def test_passes_are_the_heads_own_with_its_dropout_on():
    torch.manual_seed(0)
    features = torch.randn(7, 6)
    source = Features(features, Names.numbered(7))
    model = Model(None, Dropping(6, 3))
    plain = score_source(model, source)
    assert plain.mean is None
    assert plain.spread is None
    scored = score_source(model, source, batch_size=3, passes=400, seed=1)
    assert scored.mean is not None
    assert scored.spread is not None
    assert torch.equal(scored.logits, plain.logits)
    # Of Σ_d w_d x_d m_d / ½ with m_d = 0 or 1 the mean is the logit and the variance Σ_d (w_d x_d)².
    wanted = ((model.head.linear.weight.detach()[None] * features[:, None]) ** 2).sum(2).sqrt()
    assert torch.allclose(scored.mean, plain.logits, atol=4 * float(wanted.max()) / 20)
    assert torch.allclose(scored.spread, wanted, rtol=0.25)
    again = score_source(model, source, batch_size=3, passes=400, seed=1)
    other = score_source(model, source, batch_size=3, passes=400, seed=2)
    assert torch.equal(again.spread, scored.spread)
    assert not torch.equal(other.spread, scored.spread)
    assert model.training
    assert model.head.dropout.training


class Guessing(Ignore):
    """Asks for a sweep after every epoch; after the second it guesses that all unknown labels are absent."""

    def start(self, table: LabelTable) -> None:
        self.held = torch.from_numpy(table.dense())

    def wants_sweep(self, epoch: int) -> bool:
        return True

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        if epoch == 2:
            self.held[self.held == 0] = -1
        return {}

    def guesses(self) -> torch.Tensor:
        return self.held


def test_the_log_says_how_true_the_guesses_are_and_the_method_never_sees_the_truth():
    known = LabelTable.from_dense(np.array([[1, 0], [0, -1], [0, 0]], np.int8))
    truth = LabelTable.from_dense(np.array([[1, -1], [1, -1], [-1, -1]], np.int8))
    source = Features(torch.randn(3, 4), Names.numbered(3))
    method = Method(BCE(), Guessing())
    logs = [
        fit(Model(None, Linear(4, 2)), method, source, known, Settings(epochs=3, device="cpu"), truth=given).log
        for given in (truth, None)
    ]
    assert logs[0][1]["tn_rate"] == 1
    assert logs[0][1]["tp_rate"] == 0
    assert logs[0][1]["label_proportion"] == 1
    # Of epochs after which nothing new was guessed there is nothing to say.
    assert not any("tn_rate" in line or "label_proportion" in line for line in (logs[0][0], logs[0][2], *logs[1]))


def test_ways_to_compile_are_named():
    table = LabelTable.from_dense(np.array([[1, -1]], np.int8))
    source = Features(torch.randn(1, 4), Names.numbered(1))
    with pytest.raises(UserError, match="compile cannot be"):
        fit(Model(None, Linear(4, 2)), Method(BCE()), source, table, Settings(compile="fast", device="cpu"))


def test_mirror_images_are_scored_too_and_the_mean_taken() -> None:
    model = Model(build_backbone("tiny"), Linear(build_backbone("tiny").channels, 2))
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = {"plain": Plain(32)}
    plain, flipped = (
        score_source(model, Arrays(given, Names.numbered(5), views)).logits for given in (images, images.flip(-1))
    )
    both = score_source(model, Arrays(images, Names.numbered(5), views), mirror=True)
    assert_close({"logits": both.logits}, {"logits": (plain + flipped) / 2})
    assert not torch.allclose(plain, flipped)
    with pytest.raises(ValueError, match="mirror"):
        score_source(Model(None, Linear(4, 2)), Features(torch.randn(3, 4), Names.numbered(3)), mirror=True)
