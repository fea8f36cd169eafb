"""The training loop. The only file that imports the engine (Accelerate).

Order, augmentation and dropout come from (seed, epoch, image or step), never from a stream of random numbers: a run
that is killed and resumed ends bit for bit where the unbroken one does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halflabel import checkpoint as checkpoints
from halflabel.average import Average
from halflabel.checkpoint import Checkpoint
from halflabel.data.sources import Plan, Source, sequential
from halflabel.errors import UserError
from halflabel.heads import Model
from halflabel.labels.table import LabelTable
from halflabel.method import Method
from halflabel.metrics import completion_rates
from halflabel.quick import quicken
from halflabel.rng import bits
from halflabel.types import Batch, Output, Passes, Sweep

__all__ = ["Epoch", "Fitted", "Settings", "Watch", "fit", "score"]

_SMALL = 1 << 26  # entries

_ORDER, _STEP, _PASSES = 1, 2, 3  # tags that keep the random numbers of different purposes apart


@dataclass(frozen=True)
class Settings:
    """How to train; what to train is the method's. Rates are used as given: nothing is scaled in silence."""

    epochs: int = 10
    batch_size: int = 32
    lr: float = 1e-3
    backbone_lr: float = 0.1  # the backbone's rate, as a fraction of lr
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: Literal["cosine", "step", "plateau", "constant"] = "cosine"
    step_epochs: int = 10  # "step": lr · step_factor after every so many epochs
    step_factor: float = 0.1  # also "plateau": lr · step_factor when the validation metric falls
    warmup: float = 0.0  # epochs of linear warm-up
    ema: float = 0.0  # decay of the weight average that is evaluated and kept; 0 = off
    precision: Literal["no", "bf16", "fp16"] = "no"
    clip: float = 0.0  # largest gradient norm; 0 = off
    accumulate: int = 1  # batches per optimizer step
    channels_last: bool = True  # memory layout of convolutions: faster on CPUs and GPUs
    compile: Literal["no", "graph", "inductor", "full"] = "no"  # how launches are saved: see quick.py
    patience: int = 0  # stop after so many epochs without a better validation metric; 0 = never
    save_every: int = 0  # optimizer steps between checkpoints within an epoch; 0 = at the end of epochs only
    seed: int = 0
    device: str = "auto"


class Epoch(dict[str, Any]):
    """One line of the log: epoch, loss, lr, images_per_s, and what validation and relabelling measured."""


class Watch(Protocol):
    """Told how training goes: a progress bar, a log, a test."""

    def epoch_starts(self, epoch: int, images: int) -> None: ...
    def step_done(self, images: int, loss: float | None) -> None: ...
    def epoch_ends(self, line: Epoch) -> None: ...


class Judge(Protocol):
    """Turns validation logits (N, C) into measurements; "select" is the one that larger is better of."""

    def __call__(self, logits: Tensor) -> dict[str, float]: ...


@dataclass
class Fitted:
    """What training leaves behind: the weights to use, and the log."""

    weights: dict[str, Tensor]
    best_epoch: int
    log: list[Epoch]


def fit(
    model: Model,
    method: Method,
    source: Source,
    table: LabelTable,
    settings: Settings,
    *,
    validation: Source | None = None,
    judge: Judge | None = None,
    watch: Watch | None = None,
    truth: LabelTable | None = None,
    folder: Path | None = None,
    resume: bool = False,
) -> Fitted:
    """Train `model` by `method` on the images of `source` and what `table` knows of them (same images, same order).

    With `validation` and `judge`, the weights of the best epoch are returned, else the last ones. With `truth`, what
    the method guesses of the unknown labels is compared with it, for the log alone: the method never sees it. With a
    `folder`, checkpoints go there; `resume` goes on from the newest.
    """
    if len(source) != len(table):
        raise ValueError(f"{len(source)} images but {len(table)} rows of labels")
    return _Training(model, method, source, table, settings, validation, judge, watch, folder, truth).run(resume)


def score(
    model: Model,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    passes: Passes | None = None,
    seed: int = 0,
    mirror: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Logits and features of every image in evaluation mode, plain view; NaN where an image cannot be read.

    With `mirror`, logits are the mean over the image and its mirror image (images, not cached features). With `passes`,
    the head goes over the same features so many times more with its dropout on, drawn from `seed`.
    `progress` is told (images done, of how many).
    """
    if mirror and model.backbone is None:
        raise ValueError("cached features have no mirror image")
    was_training = model.training
    model.eval()
    found: dict[str, Tensor] = {}

    def keep(name: str, at: Tensor, values: Tensor) -> None:
        if name not in found:
            found[name] = torch.full((len(source), values.shape[1]), math.nan)
        found[name][at] = values.float().cpu()

    with torch.no_grad():  # not inference mode: a relabeler may keep what comes out, and train against it
        plan = sequential(len(source), batch_size)
        fetched = zip(plan, source.fetch(plan, ("plain",)), strict=True)
        for number, (planned, (images, views)) in enumerate(fetched):
            if progress is not None:
                progress(int(planned[-1]) + 1, len(source))
            if not len(images):
                continue
            at = torch.from_numpy(images)
            view = views[0].to(device, non_blocking=True)
            with autocast():
                body = model.features(view)
                output: Output = model.head(body)
                logits = (output.logits + model(view.flip(-1)).logits) / 2 if mirror else output.logits
            keep("logits", at, logits)
            keep("features", at, output.features)
            if passes is not None:
                _seed_generators(int(bits(seed, _PASSES, number)[0] >> np.uint64(1)), torch.device(device))
                with autocast(), _dropping(model.head):
                    drawn = torch.stack([model.head(body).logits.float() for _ in range(passes.count)])
                drawn = torch.sigmoid(drawn) if passes.of == "score" else drawn
                keep("mean", at, drawn.mean(0))
                keep("spread", at, drawn.std(0, correction=0))
    model.train(was_training)
    if not found:
        raise UserError("not one image could be read", "check the image folder")
    return Sweep(**found)


@contextmanager
def _dropping(head: nn.Module) -> Iterator[None]:
    """Dropout as in training, all else as in evaluation."""
    layers = [layer for layer in head.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.train()
    yield
    for layer in layers:
        layer.eval()


class _Training:
    """One call of `fit`: the state that a checkpoint holds, and the loop over it."""

    def __init__(
        self,
        model: Model,
        method: Method,
        source: Source,
        table: LabelTable,
        settings: Settings,
        validation: Source | None,
        judge: Judge | None,
        watch: Watch | None,
        folder: Path | None,
        truth: LabelTable | None = None,
    ) -> None:
        self.source, self.table, self.settings = source, table, settings
        self.validation, self.judge, self.watch, self.truth, self.folder = validation, judge, watch, truth, folder
        self.engine = _engine(settings)
        device = self.engine.device
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)
        self.plain = model.to(device)
        self.method = method
        self.method.plan(settings.epochs)
        self.method.start(table)
        self.method.to(device)
        self.groups = _parameter_groups(self.plain, self.method, settings)
        optimizer = _optimizer(self.groups, settings)
        self.average = Average(self.plain, settings.ema) if settings.ema else None
        self.autocast = nullcontext if settings.precision == "no" else self.engine.autocast
        # The optimizer stays as it is: the engine's wrapper looks for packages on the disk at every step.
        self.optimizer = optimizer
        self.model: Any = quicken(self.engine.prepare(self.plain), settings.compile, settings.batch_size, device)
        # A small table is looked up more quickly spelled out; a large one stays sparse.
        small = len(table) * len(table.classes) <= _SMALL
        self.dense = torch.from_numpy(table.dense()).to(device) if small else None
        self.epoch = 1  # the epoch under way
        self.done = 0  # batches of it that are trained
        self.steps = 0  # optimizer steps so far
        self.summed = 0.0  # loss summed over the batches of this epoch
        self.factor = 1.0  # what "plateau" has made of the learning rate
        self.best, self.best_epoch, self.stale, self.previous = -math.inf, 0, 0, -math.inf
        self.best_weights: dict[str, Tensor] = {}
        self.log: list[Epoch] = []

    def run(self, resume: bool) -> Fitted:
        if resume and self.folder is not None and (found := checkpoints.newest(self.folder)) is not None:
            self._load(found)
        elif not resume and self.folder is not None and self.engine.is_main_process:
            checkpoints.clear(self.folder)
        while self.epoch <= self.settings.epochs and not self._stalled():
            self._train_epoch()
            line = self._finish_epoch()
            self.epoch, self.done, self.summed = self.epoch + 1, 0, 0.0
            self._save()
            if self.watch is not None:
                self.watch.epoch_ends(line)
        if not self.best_weights:
            self.best_weights, self.best_epoch = self._weights(), self.epoch - 1
        self.plain.load_state_dict(self.best_weights)
        return Fitted(self.best_weights, self.best_epoch, self.log)

    def _train_epoch(self) -> None:
        settings, epoch = self.settings, self.epoch
        plan = self._plan(epoch)
        if self.watch is not None:
            self.watch.epoch_starts(epoch, sum(map(len, plan)))
        self.model.train()
        self.method.train()
        self.started, self.seen = time.perf_counter(), 0
        running = torch.tensor(self.summed, device=self.engine.device)
        step_seeds = (bits(settings.seed, _STEP, epoch, np.arange(len(plan))) >> np.uint64(1)).tolist()
        batches = self.source.fetch(plan[self.done :], self.method.views, seed=settings.seed, epoch=epoch)
        for number, (images, views) in enumerate(batches, self.done):
            _seed_generators(step_seeds[number], self.engine.device)
            last = number + 1 == len(plan)
            self._set_rate((epoch - 1) + number / len(plan))
            if len(images):  # none, when not one file of the batch could be read
                running += self._backward(images, views, epoch, self._share(plan, number)).detach()
            updates = (number + 1) % settings.accumulate == 0 or last
            if updates:
                self._update()
            self.done = number + 1
            self.seen += len(images)
            # Within an epoch only where no gradient is pending: a checkpoint holds none.
            saves = updates and not last and settings.save_every > 0 and self.steps % settings.save_every == 0
            look = number % 20 == 0 or last or saves
            if look and not math.isfinite(float(running)):
                raise UserError(
                    f"the loss is not finite (epoch {epoch}, batch {number + 1})",
                    f"lower --lr (now {settings.lr:g}), or add --clip 1",
                )
            if self.watch is not None:
                self.watch.step_done(len(images), float(running) / (number + 1) if look else None)
            if saves:
                self.summed = float(running)
                self._save()
        self.summed = float(running) / max(len(plan), 1)

    def _share(self, plan: Plan, number: int) -> float:
        """The batch's share of the images that one optimizer step sees: the step is then that of one large batch."""
        first = number - number % self.settings.accumulate
        return len(plan[number]) / sum(map(len, plan[first : first + self.settings.accumulate]))

    def _backward(self, images: NDArray[np.int64], views: tuple[Tensor, ...], epoch: int, share: float) -> Tensor:
        device = self.engine.device
        moved = tuple(self._format(view.to(device, non_blocking=True)) for view in views)
        index = torch.from_numpy(images).to(device, non_blocking=True)
        labels = self.dense[index] if self.dense is not None else torch.from_numpy(self.table.rows(images)).to(device)
        batch = Batch(index, moved, labels)
        with self.autocast():
            loss = self.method.step(self.model, batch, epoch)
        self.engine.backward(loss if share == 1 else loss * share)
        return loss

    def _update(self) -> None:
        if self.settings.clip:
            parameters = [p for group in self.groups for p in group["params"]]
            if self.engine.scaler is not None:
                self.engine.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip)
        if self.engine.scaler is not None:
            self.engine.scaler.step(self.optimizer)
            self.engine.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.average is not None:
            self.average.update(self.plain)

    def _finish_epoch(self) -> Epoch:
        """Relabel, validate, remember the best weights, write the line of the log."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        line = Epoch(epoch=self.epoch, loss=self.summed, lr=self.optimizer.param_groups[0]["lr"])
        line["images_per_s"] = self.seen / seconds
        relabel = self.method.relabel
        if relabel.wants_sweep(self.epoch):
            seed = int(bits(self.settings.seed, _PASSES, self.epoch)[0])
            line.update(relabel.absorb(self._score(self.plain, self.source, relabel.passes, seed), self.epoch))
            line.update(self._guessed(relabel.guesses()))
        if self.validation is not None and self.judge is not None:
            line.update(self.judge(self._score(self._evaluated(), self.validation).logits))
            value = line.get("select", math.nan)
            if value > self.best:
                self.best, self.best_epoch, self.stale = value, self.epoch, 0
                self.best_weights = self._weights()
            else:
                self.stale += 1
            if self.settings.schedule == "plateau" and value < self.previous:
                self.factor *= self.settings.step_factor
            self.previous = value
        line["seconds"] = time.perf_counter() - self.started
        self.log.append(line)
        return line

    def _plan(self, epoch: int) -> Plan:
        """All images in an order that is a function of seed, epoch and names alone."""
        key = bits(self.settings.seed, _ORDER, epoch, self.source.hashes)
        order = np.argsort(key, kind="stable")
        size = self.settings.batch_size
        return [order[first : first + size] for first in range(0, len(order), size)]

    def _set_rate(self, progress: float) -> None:
        rate = self.factor * _rate(progress, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * rate

    def _format(self, view: Tensor) -> Tensor:
        if self.settings.channels_last and view.ndim == 4:
            return view.contiguous(memory_format=torch.channels_last)
        return view

    def _score(self, model: Model, source: Source, passes: Passes | None = None, seed: int = 0) -> Sweep:
        size = max(self.settings.batch_size, 64 if model.backbone is not None else 512)
        device, autocast = self.engine.device, self.autocast
        return score(model, source, device=device, batch_size=size, autocast=autocast, passes=passes, seed=seed)

    def _guessed(self, guesses: Tensor | None) -> dict[str, float]:
        """How much of what the method has guessed is true."""
        if self.truth is None or guesses is None:
            return {}
        return completion_rates(guesses.cpu(), self.truth.dense(), self.table.dense())._asdict()

    def _evaluated(self) -> Model:
        return self.plain if self.average is None else self.average.model

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._evaluated().state_dict().items()}

    def _stalled(self) -> bool:
        return bool(self.settings.patience) and self.stale >= self.settings.patience

    def _save(self) -> None:
        if self.folder is None or not self.engine.is_main_process:
            return
        tensors = checkpoints.flatten("model", self.plain.state_dict())
        tensors |= checkpoints.flatten("method", self.method.state_dict())
        tensors |= checkpoints.flatten("best", self.best_weights)
        if self.average is not None:
            tensors |= checkpoints.flatten("average", self.average.state_dict())
        slots, groups = checkpoints.pack_optimizer(self.optimizer)
        meta = {
            **{name: getattr(self, name) for name in _COUNTERS},
            "groups": groups,
            "log": self.log,
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler is not None else None,
        }
        place = (self.epoch - 1) * (math.ceil(len(self.source) / self.settings.batch_size) + 1) + self.done
        checkpoints.save(self.folder, place, Checkpoint(tensors | slots, meta))

    def _load(self, found: Checkpoint) -> None:
        tensors, meta = found
        try:
            self.plain.load_state_dict(checkpoints.restore("model", tensors))
            self.method.load_state_dict(checkpoints.restore("method", tensors))
            if self.average is not None:
                self.average.load_state_dict(checkpoints.restore("average", tensors))
            checkpoints.unpack_optimizer(self.optimizer, tensors, meta["groups"])
        except (RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the checkpoint is of another model ({reason})", "resume with the same options") from None
        self.best_weights = {
            name: value.to(self.engine.device) for name, value in checkpoints.restore("best", tensors).items()
        }
        for name in _COUNTERS:
            setattr(self, name, meta[name])
        self.log = [Epoch(line) for line in meta["log"]]
        if self.engine.scaler is not None and meta["scaler"] is not None:
            self.engine.scaler.load_state_dict(meta["scaler"])


_COUNTERS = ("epoch", "done", "steps", "summed", "factor", "best", "best_epoch", "stale", "previous")


def _rate(progress: float, settings: Settings) -> float:
    """The learning rate's factor after `progress` epochs (a fraction of one counts)."""
    if progress < settings.warmup:
        return min((progress + 1e-3) / settings.warmup, 1.0)
    if settings.schedule == "cosine":
        span = max(settings.epochs - settings.warmup, 1e-9)
        return 0.5 * (1 + math.cos(math.pi * min((progress - settings.warmup) / span, 1)))
    if settings.schedule == "step":
        return settings.step_factor ** int(progress // settings.step_epochs)
    return 1.0


def _parameter_groups(model: Model, method: Method, settings: Settings) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [{"params": list(model.head.parameters()), "base_lr": settings.lr}]
    if model.backbone is not None:
        backbone = [p for p in model.backbone.parameters() if p.requires_grad]
        groups.append({"params": backbone, "base_lr": settings.lr * settings.backbone_lr})
    groups += method.parameter_groups(settings.lr)
    return [{**group, "lr": group["base_lr"]} for group in groups if group["params"]]


def _optimizer(groups: list[dict[str, Any]], settings: Settings) -> torch.optim.Optimizer:
    decay = settings.weight_decay
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, weight_decay=decay, fused=True)
        case "adam":
            return torch.optim.Adam(groups, weight_decay=decay, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, momentum=settings.momentum, weight_decay=decay, lr=settings.lr, fused=True)
        case "rmsprop":
            return torch.optim.RMSprop(groups, momentum=0.0, weight_decay=decay)
    raise UserError(f"no optimizer is called {settings.optimizer!r}", "use adamw, adam, sgd or rmsprop")


def _seed_generators(seed: int, device: torch.device) -> None:
    """torch.manual_seed of this device alone: the function of that name spends longer on those that are not there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _engine(settings: Settings) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import AutocastKwargs

    # One process may train several times, with another precision or on another device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    try:
        # A recorded graph would go on with the cast weights that autocast kept from its recording: keep none.
        casts = AutocastKwargs(cache_enabled=settings.compile != "graph")
        return Accelerator(mixed_precision=settings.precision, cpu=settings.device == "cpu", kwargs_handlers=[casts])
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"precision {settings.precision} is not to be had here: {error}", "use --precision no"
        ) from None
