"""The training loop.

The order of images, augmentation and dropout are functions of (seed, epoch, image or step), never of a stream of
random numbers: a run that is killed and resumed ends with the same weights, bit for bit, as an uninterrupted one. With
several processes (`torchrun`) each one trains on its slice of every batch, and the result is that of one process: see
data_parallel.py.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError, in_python
from halflabel.evaluation.thresholded import completion_rates
from halflabel.features.heads import Model
from halflabel.features.scoring import PASSES, score_source, seed_generators
from halflabel.fitting import checkpoint
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.checkpoint import TrainingState
from halflabel.fitting.config import Config
from halflabel.fitting.device import deterministic_algorithms, training_device
from halflabel.fitting.optimizer import learning_rate_factor
from halflabel.fitting.step import OptimizerStep
from halflabel.images.sources import Plan, Source, preferred_order, share_what_was_read
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.checks import absorbed
from halflabel.system import distributed, signals
from halflabel.system.gpu_memory import MicroBatcher
from halflabel.system.rng import bits
from halflabel.types import Sweep

_DIVERGED = 1e6  # times the first loss
_LOSS_INTERVAL = 20  # batches between two readings of the loss
_ORDER, _STEP = 1, 2  # tags that keep the random numbers of different purposes apart


# Computes metrics from validation logits (N, C); `select` picks the best epoch, higher is better.
Judge = Callable[[Tensor], dict[str, float]]


@dataclass
class Fitted:
    weights: dict[str, Tensor]
    best_epoch: int
    log: list[EpochLog]

    @property
    def select(self) -> float:
        """The value of the best epoch on the validation images; NaN without any."""
        return float(self.log[self.best_epoch - 1].get("select", math.nan))


def fit(
    model: Model,
    method: Method,
    source: Source,
    table: Table,
    config: Config,
    *,
    validation: Source | None = None,
    judge: Judge | None = None,
    callback: Callback | None = None,
    truth: Table | None = None,
    folder: Path | None = None,
    resume: bool = False,
) -> Fitted:
    """Train `model` by `method` on the images of `source` and the labels of `table` (same images, same order).

    With `validation` and `judge`, the weights of the best epoch are returned, else those of the last. `truth` holds
    labels of the same images that the method never sees: the method's guesses are compared with them in the log.
    Checkpoints are written to `folder`; `resume` continues from the newest one.
    """
    if distributed.is_distributed() and config.compile != "no":
        raise UserError(f"‹compile={config.compile}› works in one process only", "leave ‹compile› out")
    device = training_device(config.device)
    model.to(memory_format=torch.channels_last).to(device)
    method.plan(config.epochs)
    begins = method.begins()
    if begins is not None and distributed.is_main() and (problem := begins.problem(config.epochs)):
        warnings.warn(in_python(f"{problem}; {begins.fix()}"), stacklevel=2)
    method.start(table, model)
    method.to(device)
    step = OptimizerStep(device, method, model, table, config)
    checked = None if validation is None or judge is None else (validation, judge)
    callback = callback if callback is not None and distributed.is_main() else Callback()
    return Loop(step, source, checked, truth, callback, folder).run(resume)


def plan_epoch(source: Source, config: Config, epoch: int) -> Plan:
    """The batches of an epoch; their order depends only on seed, epoch and image names, or is the source's own."""
    order = preferred_order(source, config.seed, epoch)
    if order is None:
        order = np.argsort(bits(config.seed, _ORDER, epoch, source.hashes), kind="stable")
    size = config.batch_size
    return [order[first : first + size] for first in range(0, len(order), size)]


@dataclass(eq=False)
class Loop:
    """The epochs of one call of `fit`; `step` holds model, method, labels and configuration."""

    step: OptimizerStep
    source: Source
    validation: tuple[Source, Judge] | None
    truth: Table | None
    callback: Callback
    folder: Path | None

    def __post_init__(self) -> None:
        step = self.step
        self.method, self.config, self.model = step.method, step.config, step.model
        self.state = TrainingState(torch.zeros((), device=step.device))
        self.batches_per_epoch = math.ceil(len(self.source) / step.config.batch_size)
        self.saved = (1, 0)  # position of the newest checkpoint; the beginning needs none
        self.scoring_batches = MicroBatcher()
        self.started, self.images_seen = 0.0, 0  # of the current epoch, in this process
        self.first_loss: float | None = None

    def run(self, resume: bool) -> Fitted:
        try:
            with deterministic_algorithms() if self.config.deterministic else nullcontext():
                return self._run(resume)
        except KeyboardInterrupt:
            # The state is consistent, so save it.
            if not (signals.are_deferred() or self.saved == self.state.position):
                self._save()
            raise
        finally:
            signals.cancel_deferral()

    def _run(self, resume: bool) -> Fitted:
        state = self.state
        signals.defer_signals()
        self._load_or_clear(resume)
        signals.release_signals()
        if state.position == (1, 0) and self.method.relabel.wants_sweep_first():
            absorbed(self.method.relabel, self._sweep(0), 0)
            distributed.synchronize(self.method.state_dict().values())
        patience = self.config.patience or math.inf
        while state.epoch <= self.config.epochs and state.epochs_since_best < patience:
            self._train_epoch()
            log = self._finish_epoch()
            state.epoch, state.batches_done = state.epoch + 1, 0
            state.loss_sum.zero_()
            self._save()
            self.callback.on_epoch_end(log)
            signals.release_signals()
        if not state.best_weights or self.config.keep == "last":
            state.best_weights, state.best_epoch = self._evaluated_weights(), state.epoch - 1
        self.model.load_state_dict(state.best_weights)
        distributed.all_gather(None)  # wait until the last checkpoint is written
        return Fitted(state.best_weights, state.best_epoch, state.log)

    def _load_or_clear(self, resume: bool) -> None:
        """Load the newest checkpoint, or remove the checkpoints of an earlier training."""
        folder, state = self.folder, self.state
        if folder is None or not resume:
            if folder is not None and distributed.is_main():
                checkpoint.clear(folder)
            return
        if (content := checkpoint.load_newest(folder)) is not None:
            checkpoint.restore(content, state, self.step)
            self.saved = state.position
        if len(set(distributed.all_gather((*state.position, state.steps)))) > 1:
            raise UserError(
                f"the processes find different checkpoints in {folder}",
                "put the run into a folder that all machines share",
            )

    def _save(self) -> None:
        if self.folder is not None and distributed.is_main():
            number = (self.state.epoch - 1) * (self.batches_per_epoch + 1) + self.state.batches_done
            checkpoint.save(self.folder, number, checkpoint.capture(self.state, self.step))
            self.saved = self.state.position

    def _train_epoch(self) -> None:
        plan = plan_epoch(self.source, self.config, self.state.epoch)
        self.callback.on_epoch_start(self.state.epoch, self.config.epochs, sum(map(len, plan)))
        self.step.called.train()
        self.method.train()
        self.started, self.images_seen = time.perf_counter(), 0
        while self.state.batches_done < len(plan):
            try:
                self._train_batches(plan)
            except torch.OutOfMemoryError:
                pass  # the exception keeps its tensors alive until here, so recover after the handler
            else:
                break
            self.step.undo()  # then continue from the last complete step

    def _train_batches(self, plan: Plan) -> None:
        """Train on the rest of the plan. Between optimizer steps, everything a checkpoint holds is consistent."""
        config, state, step = self.config, self.state, self.step
        step_seeds = (bits(config.seed, _STEP, state.epoch, np.arange(len(plan))) >> np.uint64(1)).tolist()
        fetch = self.source.fetch if step.parallel is None else partial(step.parallel.fetch, self.source)
        batches = fetch(plan[state.batches_done :], self.method.views, seed=config.seed, epoch=state.epoch)
        for number, (images, views) in enumerate(batches, state.batches_done):
            signals.defer_signals()
            loss_before = state.loss_sum.clone()
            step.begin()
            seed_generators(step_seeds[number], step.device)
            factor = state.lr_factor * learning_rate_factor((state.epoch - 1) + number / len(plan), config)
            for group in step.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            if len(images):  # 0 if no file of the batch could be read
                try:
                    state.loss_sum += step.backward(images, views, state.epoch)
                except torch.OutOfMemoryError:
                    state.loss_sum = loss_before
                    raise
            step.update()
            state.steps += 1
            state.batches_done = number + 1
            self.images_seen += len(images)
            is_last = state.batches_done == len(plan)
            saves = not is_last and config.save_every > 0 and state.steps % config.save_every == 0
            self._report_step(number, len(images), read_now=is_last or saves)
            if saves:
                self._save()
            signals.release_signals()

    def _report_step(self, number: int, images: int, read_now: bool) -> None:
        """Call the callback with the mean loss, where it is read; stop if the loss diverges."""
        if not read_now and number % _LOSS_INTERVAL:  # reading the loss waits for the device
            self.callback.on_step_end(images, None)
            return
        loss = float(self.state.loss_sum) / (number + 1)
        self.first_loss = loss if self.first_loss is None else self.first_loss
        if not math.isfinite(loss) or loss > _DIVERGED * max(1.0, self.first_loss):
            problem = f"has grown to {loss:.3g}" if math.isfinite(loss) else "is not finite"
            raise UserError(
                f"the loss {problem} (epoch {self.state.epoch}, by batch {number + 1}): the training diverges",
                f"lower ‹lr› (now {self.config.lr:g}), or add ‹clip=1›",
            )
        self.callback.on_step_end(images, loss)

    def _finish_epoch(self) -> EpochLog:
        """Relabel, validate, remember the best weights, and add a line to the log."""
        state = self.state
        seconds = max(time.perf_counter() - self.started, 1e-9)
        log = EpochLog(epoch=state.epoch, loss=float(state.loss_sum) / max(self.batches_per_epoch, 1))
        log["lr"], log["images_per_s"] = self.step.optimizer.param_groups[0]["lr"], self.images_seen / seconds
        if self.step.micro_batches.limit:
            log["images_at_once"] = self.step.micro_batches.limit
        # First everything that takes long and changes nothing: a signal during it finds a consistent state to save.
        share_what_was_read(self.source)
        distributed.synchronize(self._shared_tensors())
        relabel = self.method.relabel
        sweep = self._sweep(state.epoch) if relabel.wants_sweep(state.epoch) else None
        logits = None if self.validation is None else self._score(self._evaluated_model(), self.validation[0]).logits
        signals.defer_signals()
        if sweep is not None:
            log.update(self._relabel(sweep))
            distributed.synchronize(self.method.state_dict().values())
        if self.validation is not None and logits is not None:
            judge = self.validation[1]
            log.update(distributed.run_on_main(lambda: judge(logits)))
            value = float(log.get("select", math.nan))
            if self.config.schedule == "plateau" and value < state.previous:
                state.lr_factor *= self.config.step_factor
            state.epochs_since_best += 1
            if value > state.best:
                state.best, state.best_epoch, state.epochs_since_best = value, state.epoch, 0
                state.best_weights = self._evaluated_weights()
            state.previous = value
        log["seconds"] = time.perf_counter() - self.started
        state.log.append(log)
        return log

    def _relabel(self, sweep: Sweep) -> dict[str, float]:
        """Let the method relabel; returns its numbers and, if its guesses changed, how many of them are true."""
        relabel = self.method.relabel
        before = self._guesses()
        numbers = absorbed(relabel, sweep, self.state.epoch)
        guesses = self._guesses()
        if self.truth is None or guesses is None:
            return numbers
        if not numbers and before is not None and torch.equal(before, guesses):
            return numbers
        return numbers | completion_rates(guesses, self.truth.dense(), self.step.table.dense())._asdict()

    def _guesses(self) -> Tensor | None:
        """A copy of the method's guessed labels; None without `truth` to compare them with."""
        guesses = self.method.relabel.guesses() if self.truth is not None else None
        return None if guesses is None else guesses.cpu().clone()

    def _sweep(self, epoch: int) -> Sweep:
        """Score all training images after this epoch, for the method."""
        relabel = self.method.relabel
        seed = int(bits(self.config.seed, PASSES, epoch)[0])
        return self._score(self.model, self.source, relabel.passes, seed, relabel.wants_features)

    def _score(self, model: Model, source: Source, passes: int = 0, seed: int = 0, features: bool = False) -> Sweep:
        size = max(self.config.batch_size, 64 if model.backbone is not None else 512)
        return score_source(
            model,
            source,
            device=self.step.device,
            batch_size=size,
            autocast=self.step.autocast,
            passes=passes,
            seed=seed,
            batcher=self.scoring_batches,
            features=features,
        )

    def _evaluated_model(self) -> Model:
        """The model that is validated and kept: the weight average if there is one, else the method's choice."""
        if self.step.ema is not None:
            return self.step.ema.model
        return self.method.evaluated(self.model)

    def _evaluated_weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._evaluated_model().state_dict().items()}

    def _shared_tensors(self) -> Iterator[Tensor]:
        """All tensors that training changes, which must be equal in all processes."""
        modules: tuple[Any, ...] = (self.model, self.method, self.step.ema)
        for module in modules:
            yield from module.state_dict().values() if module is not None else ()
        for slots in self.step.optimizer.state.values():
            yield from (value for value in slots.values() if isinstance(value, Tensor))
