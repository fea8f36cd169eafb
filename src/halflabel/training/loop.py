"""The training loop.

Order, augmentation and dropout come from (seed, epoch, image or step), never from a stream of random numbers: a run
that is killed and resumed ends bit for bit where the unbroken one does. Of several processes (`torchrun`) each trains
on its slice of every batch, and all on what one process would see: see sliced.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.data.sources import Fetched, Plan, Source, agree_on_bad, own_order
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method
from halflabel.methods.checks import absorbed, checked_step
from halflabel.methods.parts.relabel import Relabeler
from halflabel.metrics import completion_rates
from halflabel.models.heads import Model
from halflabel.models.scoring import PASSES, score_source, seed_generators
from halflabel.system import distributed as processes
from halflabel.system import signals as interrupt
from halflabel.system.gpu_memory import Kept, Room, no_room
from halflabel.system.rng import bits
from halflabel.training import checkpoint as checkpoints
from halflabel.training.async_scalar import Glance, Seen
from halflabel.training.callbacks import Callback, EpochLog
from halflabel.training.checkpoint import Checkpoint
from halflabel.training.cuda_graphs import quicken
from halflabel.training.data_parallel import Sliced
from halflabel.training.ema import Average
from halflabel.training.engine import repeatable, start_engine
from halflabel.training.optimizer import make_optimizer, parameter_groups
from halflabel.training.settings import Settings, rate_after
from halflabel.types import Batch, Passes, Sweep

if TYPE_CHECKING:
    from halflabel.training.fsdp import Sharded

__all__ = ["Fitted", "Settings", "fit"]

_SMALL = 1 << 26  # entries
_RUNS_OUT = ("cuda", "xpu")  # devices whose memory may: on a CPU the copies for it would be for nothing

_LOOK = 20  # batches between looks at the loss
_ORDER, _STEP = 1, 2  # tags that keep the random numbers of different purposes apart


class Judge(Protocol):
    """Turns validation logits (N, C) into measurements; "select" is the one that larger is better of."""

    def __call__(self, logits: Tensor) -> dict[str, float]: ...


@dataclass
class Fitted:
    """What training leaves behind: the weights to use, and the log."""

    weights: dict[str, Tensor]
    best_epoch: int
    log: list[EpochLog]


def fit(
    model: Model,
    method: Method,
    source: Source,
    table: LabelTable,
    settings: Settings,
    *,
    validation: Source | None = None,
    judge: Judge | None = None,
    callback: Callback | None = None,
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
    return _Training(model, method, source, table, settings, validation, judge, callback, folder, truth).run(resume)


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
        callback: Callback | None,
        folder: Path | None,
        truth: LabelTable | None = None,
    ) -> None:
        self.source, self.table, self.settings = source, table, settings
        self.validation, self.judge, self.truth, self.folder = validation, judge, truth, folder
        self.callback = callback if callback is not None and processes.is_first() else Callback()
        self.engine = start_engine(settings)
        device = self.engine.device
        in_parts = settings.shard and processes.several()
        if settings.channels_last and not in_parts:  # parts have no such layout
            model = model.to(memory_format=torch.channels_last)
        self.plain = model if in_parts else model.to(device)
        self.method = method
        self.method.plan(settings.epochs)
        self.method.start(table)
        self.method.to(device)
        # Only now: what a method tells its head at the start is to be in the parts too.
        self.sharded = _shard(model, device) if in_parts else None
        trained = self.plain if self.sharded is None else self.sharded.model
        self.groups = parameter_groups(trained, self.method, settings)
        optimizer = make_optimizer(self.groups, settings)
        self.average = Average(self.plain, settings.ema) if settings.ema else None
        self.autocast = nullcontext if settings.precision == "no" else self.engine.autocast
        # The optimizer stays as it is: the engine's wrapper looks for packages on the disk at every step.
        self.optimizer = optimizer
        self.sliced = Sliced(trained) if processes.several() else None
        self.model: Any = self.sliced
        if self.sliced is None:
            self.model = quicken(self.plain, settings.compile, settings.batch_size, device, settings.deterministic)
        # A small table is looked up more quickly spelled out; a large one stays sparse.
        small = len(table) * len(table.classes) <= _SMALL
        self.dense = torch.from_numpy(table.dense()).to(device) if small else None
        self.epoch = 1  # the epoch under way
        self.done = 0  # batches of it that are trained
        self.steps = 0  # optimizer steps so far
        self.running = torch.zeros((), device=device)  # loss summed over the batches of this epoch
        self.glance = Glance(device)
        self.unchecked = True  # whether the next batch is to show that the method's parts give what they must
        self.saved = (1, 0)  # epoch and batches of the newest checkpoint; the beginning needs none
        self.at_once, self.scoring = Room(), Room()  # how many images fit into memory, in training and in scoring
        splits = self.sliced is None and settings.compile == "no"  # else a smaller batch is another model's
        self.kept = Kept(self.plain, self.method) if splits and device.type in _RUNS_OUT else None
        self.factor = 1.0  # what "plateau" has made of the learning rate
        self.best, self.best_epoch, self.stale, self.previous = -math.inf, 0, 0, -math.inf
        self.best_weights: dict[str, Tensor] = {}
        self.log: list[EpochLog] = []

    def run(self, resume: bool) -> Fitted:
        try:
            with repeatable() if self.settings.deterministic else nullcontext():
                return self._run(resume)
        except KeyboardInterrupt:
            # What stands is whole: nothing is lost. Of several processes the others may be gone, with parts of it.
            if not interrupt.is_held() and self.sharded is None and self.saved != (self.epoch, self.done):
                self._save()
            raise
        finally:
            interrupt.forget()

    def _run(self, resume: bool) -> Fitted:
        interrupt.hold()
        if resume and self.folder is not None:
            if (found := checkpoints.newest(self.folder)) is not None:
                self._load(found)
            if len(set(processes.gather((self.epoch, self.done, self.steps)))) > 1:
                raise UserError(
                    f"not every process finds the same checkpoints in {self.folder}",
                    "put the run into a folder that all machines share",
                )
        elif self.folder is not None and processes.is_first():
            checkpoints.clear(self.folder)
        interrupt.release()
        if (self.epoch, self.done) == (1, 0) and self.method.relabel.wants_sweep_first():
            absorbed(self.method.relabel, self._sweep(0), 0)
            processes.agree(self.method.state_dict().values())
        while self.epoch <= self.settings.epochs and not self._stalled():
            self._train_epoch()
            line = self._finish_epoch()
            self.epoch, self.done = self.epoch + 1, 0
            self.running.zero_()
            self._save()
            self.callback.on_epoch_end(line)
            interrupt.release()
        if not self.best_weights:
            self.best_weights, self.best_epoch = self._weights(), self.epoch - 1
        self.plain.load_state_dict(self.best_weights)
        if self.sharded is not None:
            self.plain.to(self.engine.device)
        processes.gather(None)  # who reads the last checkpoint next must find it written
        return Fitted(self.best_weights, self.best_epoch, self.log)

    def _train_epoch(self) -> None:
        plan = self._plan(self.epoch)
        self.callback.on_epoch_start(self.epoch, self.settings.epochs, sum(map(len, plan)))
        self.model.train()
        self.method.train()
        self.started, self.seen = time.perf_counter(), 0
        while self.done < len(plan):
            try:
                self._train_batches(plan)
            except torch.OutOfMemoryError:
                pass  # whoever handles an error still holds what it was about: nothing is freed in here
            else:
                break
            self._make_room()  # then again from the last whole step

    def _train_batches(self, plan: Plan) -> None:
        """Train on what is left of the plan; between optimizer steps, all that a checkpoint holds is whole."""
        settings, epoch = self.settings, self.epoch
        step_seeds = (bits(settings.seed, _STEP, epoch, np.arange(len(plan))) >> np.uint64(1)).tolist()
        self.glance.forget()  # the sum begins anew
        for number, (images, views) in enumerate(self._fetch(plan[self.done :]), self.done):
            if number % settings.accumulate == 0:
                interrupt.hold()
                before = self.running.clone()
                if self.kept is not None:
                    self.kept.take()
            seed_generators(step_seeds[number], self.engine.device)
            last = number + 1 == len(plan)
            self._set_rate((epoch - 1) + number / len(plan))
            if len(images):  # none, when not one file of the batch could be read
                try:
                    self.running += self._backward(images, views, epoch, self._share(plan, number))
                except torch.OutOfMemoryError:
                    self.running = before
                    raise
            updates = (number + 1) % settings.accumulate == 0 or last
            if updates:
                self._update()
                self.done = number + 1
            self.seen += len(images)
            # Within an epoch only where no gradient is pending: a checkpoint holds none.
            saves = updates and not last and settings.save_every > 0 and self.steps % settings.save_every == 0
            seen = self.glance(self.running, number + 1) if number % _LOOK == 0 else None
            if last or saves:
                seen = Seen(float(self.running), number + 1)
            if seen is not None and not math.isfinite(seen.value):
                raise UserError(
                    f"the loss is not finite (epoch {epoch}, by batch {seen.batches})",
                    f"lower --lr (now {settings.lr:g}), or add --clip 1",
                )
            self.callback.on_step_end(len(images), None if seen is None else seen.value / seen.batches)
            if saves:
                self._save()
            if updates:
                interrupt.release()

    def _make_room(self) -> None:
        """Undo what a step without enough memory has changed; give the model half as many images from now on."""
        if self.kept is None:
            size = self.settings.batch_size
            raise no_room(f"for batches of {size}, which several processes and --compile do not split")
        self.optimizer.zero_grad(set_to_none=True)
        self.kept.put_back()
        also = ", added up before each step; batch norm, and a method that ranks or counts in a batch, see the pieces"
        self.at_once.halve(self.settings.batch_size, also)

    def _fetch(self, plan: Plan) -> Iterator[Fetched]:
        """The numbers of all images of each batch, and the views of those that are this process's."""
        take = self.source.fetch if self.sliced is None else partial(self.sliced.fetch, self.source)
        return take(plan, self.method.views, seed=self.settings.seed, epoch=self.epoch)

    def _share(self, plan: Plan, number: int) -> float:
        """The batch's share of the images that one optimizer step sees: the step is then that of one large batch."""
        first = number - number % self.settings.accumulate
        return len(plan[number]) / sum(map(len, plan[first : first + self.settings.accumulate]))

    def _backward(self, images: NDArray[np.int64], views: tuple[Tensor, ...], epoch: int, share: float) -> Tensor:
        """Add the gradient of the batch, in as many pieces as memory asks for; its loss."""
        pieces = self.at_once.pieces(len(images))
        if pieces == 1:
            return self._backward_at_once(images, views, epoch, share)
        loss = torch.zeros((), device=self.engine.device)
        for part in np.array_split(np.arange(len(images)), pieces):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            own = len(part) / len(images)
            loss += own * self._backward_at_once(images[rows], tuple(v[rows] for v in views), epoch, share * own)
        return loss

    def _backward_at_once(
        self, images: NDArray[np.int64], views: tuple[Tensor, ...], epoch: int, share: float
    ) -> Tensor:
        device = self.engine.device
        moved = tuple(self._format(view.to(device, non_blocking=True)) for view in views)
        index = torch.from_numpy(images).to(device, non_blocking=True)
        labels = self.dense[index] if self.dense is not None else torch.from_numpy(self.table.rows(images)).to(device)
        batch = Batch(index, moved, labels)
        try:
            with self.autocast():
                if self.unchecked:
                    loss = checked_step(self.method, self.model, batch, epoch)
                    self.unchecked = False
                else:
                    loss = self.method.step(self.model, batch, epoch)
            self.engine.backward(loss if share == 1 else loss * share)
        except RuntimeError as error:
            if self.sharded is None or "DTensor" not in str(error):
                raise
            raise UserError(
                f"{type(self.method).__name__} computes with the model's weights themselves, of which --shard leaves "
                "only a part in each process",
                "train without --shard; in a method, halflabel.system.distributed.whole makes sums over weights whole",
            ) from error
        return loss.detach()

    def _update(self) -> None:
        if self.sliced is not None and self.sharded is None:  # who splits the weights takes the mean itself
            self.sliced.average_gradients()
        if self.settings.clip:
            parameters = [p for group in self.groups for p in group["params"]]
            if self.engine.scaler is not None:
                self.engine.scaler.unscale_(self.optimizer)
            clip = torch.nn.utils.clip_grad_norm_ if self.sharded is None else self.sharded.clip
            clip(parameters, self.settings.clip)
        try:
            if self.engine.scaler is not None:
                self.engine.scaler.step(self.optimizer)
                self.engine.scaler.update()
            else:
                self.optimizer.step()
        except torch.OutOfMemoryError:  # some weights may have moved, and fewer images would not help
            raise no_room(f"for the state of {self.settings.optimizer}") from None
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.average is not None:
            self.average.update(self.plain)

    def _finish_epoch(self) -> EpochLog:
        """Relabel, validate, remember the best weights, write the line of the log."""
        seconds = max(time.perf_counter() - self.started, 1e-9)
        batches = math.ceil(len(self.source) / self.settings.batch_size)
        line = EpochLog(epoch=self.epoch, loss=float(self.running) / max(batches, 1))
        line["lr"] = self.optimizer.param_groups[0]["lr"]
        line["images_per_s"] = self.seen / seconds
        if self.at_once.most:
            line["images_at_once"] = self.at_once.most
        # First all that takes long and changes nothing, so that a signal in it finds a state to save.
        agree_on_bad(self.source)
        processes.agree(self._state())
        relabel = self.method.relabel
        logits = None
        sweep = self._sweep(self.epoch) if relabel.wants_sweep(self.epoch) else None
        if self.validation is not None and self.judge is not None:
            logits = self._score(self._evaluated(), self.validation).logits
        interrupt.hold()
        if sweep is not None:
            line.update(self._absorb(relabel, sweep))
            processes.agree(self.method.state_dict().values())
        if logits is not None and (judge := self.judge) is not None:
            line.update(processes.on_first(lambda: judge(logits)))
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

    def _sweep(self, epoch: int) -> Sweep:
        """What the model says of all training images after this epoch."""
        relabel = self.method.relabel
        seed = int(bits(self.settings.seed, PASSES, epoch)[0])
        return self._score(self._whole(), self.source, relabel.passes, seed, relabel.wants_features)

    def _plan(self, epoch: int) -> Plan:
        """All images in an order that is a function of seed, epoch and names alone, or of the source's own making."""
        order = own_order(self.source, self.settings.seed, epoch)
        if order is None:
            order = np.argsort(bits(self.settings.seed, _ORDER, epoch, self.source.hashes), kind="stable")
        size = self.settings.batch_size
        return [order[first : first + size] for first in range(0, len(order), size)]

    def _set_rate(self, progress: float) -> None:
        rate = self.factor * rate_after(progress, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * rate

    def _format(self, view: Tensor) -> Tensor:
        if self.settings.channels_last and view.ndim == 4:
            return view.contiguous(memory_format=torch.channels_last)
        return view

    def _score(
        self, model: Model, source: Source, passes: Passes | None = None, seed: int = 0, features: bool = False
    ) -> Sweep:
        size = max(self.settings.batch_size, 64 if model.backbone is not None else 512)
        device, autocast = self.engine.device, self.autocast
        if self.sharded is not None:  # the whole takes room on the device while it scores
            model.to(device)
        found = score_source(
            model,
            source,
            device=device,
            batch_size=size,
            autocast=autocast,
            passes=passes,
            seed=seed,
            room=self.scoring,
            features=features,
        )
        if self.sharded is not None:
            model.cpu()
        return found

    def _absorb(self, relabel: Relabeler, sweep: Sweep) -> dict[str, float]:
        """What the method tells of its labels and, where it has made some now, how much of what it guessed is true."""
        before = self._guessed(relabel)
        told = absorbed(relabel, sweep, self.epoch)
        self.unchecked = True  # from now on it may charge otherwise
        guesses = self._guessed(relabel)
        if self.truth is None or guesses is None:
            return told
        if not told and before is not None and torch.equal(before, guesses):
            return told
        return told | completion_rates(guesses, self.truth.dense(), self.table.dense())._asdict()

    def _guessed(self, relabel: Relabeler) -> Tensor | None:
        """The labels that the method has made up, as they are now; None where nobody knows how true they are."""
        guesses = relabel.guesses() if self.truth is not None else None
        return None if guesses is None else guesses.cpu().clone()

    def _whole(self) -> Model:
        """The model as it stands."""
        return self.plain if self.sharded is None else self.sharded.gather_into(self.plain)

    def _evaluated(self) -> Model:
        return self._whole() if self.average is None else self.average.model

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._evaluated().state_dict().items()}

    def _state(self) -> Iterator[Tensor]:
        """All that training changes: the same in every process."""
        for module in (self._whole(), self.method, self.average):
            yield from module.state_dict().values() if module is not None else ()
        if self.sharded is not None:
            return
        for slots in self.optimizer.state.values():
            yield from (value for value in slots.values() if isinstance(value, Tensor))

    def _stalled(self) -> bool:
        return bool(self.settings.patience) and self.stale >= self.settings.patience

    def _save(self) -> None:
        if self.folder is None or not (processes.is_first() or self.sharded):
            return
        tensors = checkpoints.flatten("model", self._whole().state_dict())
        tensors |= checkpoints.flatten("method", self.method.state_dict())
        tensors |= checkpoints.flatten("best", self.best_weights)
        if self.average is not None:
            tensors |= checkpoints.flatten("average", self.average.state_dict())
        slots, groups = checkpoints.pack_optimizer(self.optimizer)
        if self.sharded is not None:
            slots = self.sharded.whole(slots)
        meta = {
            **{name: getattr(self, name) for name in _COUNTERS},
            "summed": float(self.running),
            "images_at_once": self.at_once.most,
            "groups": groups,
            "log": self.log,
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler is not None else None,
        }
        place = (self.epoch - 1) * (math.ceil(len(self.source) / self.settings.batch_size) + 1) + self.done
        if processes.is_first():
            checkpoints.save(self.folder, place, Checkpoint(tensors | slots, meta))
        self.saved = (self.epoch, self.done)

    def _load(self, found: Checkpoint) -> None:
        tensors, meta = found
        try:
            self.plain.load_state_dict(checkpoints.restore("model", tensors))
            self.method.load_state_dict(checkpoints.restore("method", tensors))
            if self.average is not None:
                self.average.load_state_dict(checkpoints.restore("average", tensors))
            if self.sharded is not None:
                self.sharded.take_from(self.plain)
                tensors = self.sharded.deal_out(tensors, self.optimizer)
            # Whether steps are fused depends on where weights lie now, not on where they lay.
            now = [{name: group[name] for name in ("fused",) if name in group} for group in self.optimizer.param_groups]
            groups = [then | own for then, own in zip(meta["groups"], now, strict=True)]
            checkpoints.unpack_optimizer(self.optimizer, tensors, groups)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the checkpoint is of another model ({reason})", "resume with the same options") from None
        self.best_weights = {
            name: value.to(self.engine.device) for name, value in checkpoints.restore("best", tensors).items()
        }
        for name in _COUNTERS:
            setattr(self, name, meta[name])
        self.running.fill_(meta["summed"])
        self.at_once.most = meta.get("images_at_once", 0)
        self.saved = (self.epoch, self.done)
        self.log = [EpochLog(line) for line in meta["log"]]
        if self.engine.scaler is not None and meta["scaler"] is not None:
            self.engine.scaler.load_state_dict(meta["scaler"])


_COUNTERS = ("epoch", "done", "steps", "factor", "best", "best_epoch", "stale", "previous")


def _shard(model: Model, device: torch.device) -> Sharded:
    from halflabel.training.fsdp import Sharded  # what it needs is slow to import

    return Sharded(model, device)
