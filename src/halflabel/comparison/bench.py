"""Train the tasks of an experiment one after the other, on data that is split once for all."""

from __future__ import annotations

import copy
import dataclasses
import gc
import hashlib
import json
import pickle
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import __version__
from halflabel.comparison.grid import Candidate, Grid, Options, Outcome, Results, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.sources import ExperimentSources, OutOfTime
from halflabel.comparison.store import Store, method_digest
from halflabel.errors import UserError
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import fingerprint
from halflabel.features.heads import Model
from halflabel.features.names import names_identity
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.callbacks import Callback, CallbackList, EpochLog
from halflabel.fitting.device import choose_device
from halflabel.fitting.fit import HELD_OUT, LEFT_OUT, TRAINED, Fit, Inputs, Watch, fit
from halflabel.fitting.loop import Fitted
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Stats, Table
from halflabel.methods.base import Method, recipe
from halflabel.system.files import atomic_write, to_json_value
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter

Select = Literal["known", "hidden"]

# Settings that do not change the weights, or that each task has of its own.
_NOT_SHARED = ("method", "options", "lr", "weight_decay", "seed", "save_every", "workers", "max_bad")


class DataError(UserError):
    """A problem with the images, which concerns all tasks."""


def _report_solve(callback: Callback | None, images: int, done: int, total: int) -> None:
    """Report a solve of L-BFGS as an epoch, for progress and deadline."""
    if callback is not None:
        callback.on_epoch_start(done, total, images)
        callback.on_epoch_end(EpochLog(epoch=done))


@dataclass(frozen=True)
class Start:
    """A method with a linear head that is trained first; a task that differs only in its epochs is the start itself."""

    method: str
    options: Options
    lr: float
    weight_decay: float
    epochs: int
    labelled_only: bool = False

    def task(self, like: Task) -> Task:
        """Return the start for a task, with the same labels and seed."""
        candidate = Candidate(self.method, self.method, self.options, self.lr, self.weight_decay)
        return Task(candidate, like.label_mask, like.seed, self.lr, self.options)

    def is_task(self, task: Task) -> bool:
        return task.key == self.task(task).key


class StopAtDeadline(Callback):
    """Raises `OutOfTime` between two epochs once the deadline has passed; at least one epoch is trained."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.has_trained = False

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        if self.deadline is not None and self.has_trained and time.monotonic() > self.deadline:
            raise OutOfTime

    def on_epoch_end(self, log: EpochLog) -> None:
        self.has_trained = True


def copy_start(weights: Mapping[str, Tensor], model: Model, method: Method, table: Table) -> None:
    """Copy the weights of a linear model, x = W f + b, and of a tuned backbone into another model of the classes."""
    if model.backbone is not None:
        model.backbone.load_state_dict(
            {name.removeprefix("backbone."): value for name, value in weights.items() if name.startswith("backbone.")}
        )
    if "head.linear.weight" not in weights:
        raise UserError("the start has no linear head", "start from a method with a linear head, such as logistic")
    weight, bias = (weights[f"head.linear.{name}"].cpu() for name in ("weight", "bias"))
    method.start(table, model)  # sets label vectors, where the head has them
    model.head.load_linear(weight, bias)


class Trained(NamedTuple):
    """An outcome and the logits (N, C) of the test images; NaN for unreadable ones."""

    outcome: Outcome
    logits: NDArray[np.float32]


class Division(NamedTuple):
    """The known labels of the images that are not for the test, and the numbers of training and validation images."""

    known: Table
    inside: NDArray[np.int64]  # training images
    outside: NDArray[np.int64]  # validation images

    def labelled(self) -> Division:
        """Return a copy without the training images that have no known label."""
        return self._replace(inside=self.inside[np.diff(self.known.start)[self.inside] > 0])


@dataclass(eq=False)
class Bench(ExperimentSources):
    """The data and settings of an experiment; trains one task at a time.

    Test images are the same for all tasks and keep all their labels; of the others a label mask hides some. A linear
    fit uses all of them; in batches a share is held out for validation, unless `data` has validation labels. Both
    depend only on the label mask and the seed, so that all candidates learn from the same labels.
    """

    _: KW_ONLY
    select: Select = "known"  # the labels that select epochs and strengths; "hidden": all, also those the mask hides
    truth: bool = False  # compare the guesses of methods with the hidden labels, for the log
    labelled_only: bool = False  # leave out training images without a known label
    start: Start | None = None  # whose weights all tasks start from, trained once per label mask and seed
    with_f1: bool = False  # also fit the decisions of each run, as `train` does
    _divisions: dict[tuple[LabelMask, int], Division] = field(default_factory=dict)

    @property
    def rest(self) -> Table:
        """Labels of the images that are not for the test."""
        return self.data.rest

    @property
    def test(self) -> Table:
        return self.data.test

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """The groups of the images that are not for the test."""
        return None if self.data.groups is None else self.data.groups[self.data.inside]

    @property
    def device(self) -> str:
        return choose_device(self.config.device)

    def divide(self, label_mask: LabelMask, seed: int) -> Division:
        """Return the labels that a label mask leaves known, and which images are for training and validation."""
        if (label_mask, seed) not in self._divisions:
            known = label_mask.apply(self.rest, seed)
            part = np.zeros(len(known), np.int8)
            if self.config.held_out and self.data.validation is None:
                shares = (1 - self.config.held_out, self.config.held_out)
                part = assign_parts(known, shares, groups=self.groups, seed=seed)
            division = Division(known, np.flatnonzero(part == 0), np.flatnonzero(part == 1))
            # Only the latest is stored: tasks come in rounds, and tables can be large.
            self._divisions = {(label_mask, seed): division.labelled() if self.labelled_only else division}
        return self._divisions[label_mask, seed]

    def stats(self, label_mask: LabelMask) -> Stats:
        """Return statistics of the labels that a label mask leaves known with the first seed."""
        return label_mask.apply(self.rest, 0).stats

    def identity(self) -> dict[str, Any]:
        """Return all values, except the task itself, that the results of a task depend on."""
        config = self.config.as_dict()
        config["weights"] = fingerprint(self.backbone) if self.config.weights else None  # by content
        config["names"] = names_identity(self.config.names, config.pop("descriptions"))
        data = self.data
        return {
            **{name: value for name, value in config.items() if name not in _NOT_SHARED},
            **self.digests,
            "labels": data.table.digest(),
            "test labels": self.test.digest(),
            "validation labels": None if data.validation is None else data.validation.digest(),
            "choosing labels": None if data.choosing is None else data.choosing.digest(),
            "select": self.select,
            "device": self.device,
            "pretrained": self.pretrained,
            "truth": self.truth,
            "labelled only": self.labelled_only,
            "start": None if self.start is None else dataclasses.asdict(self.start),
        }

    def train(self, task: Task, *, callback: Callback | None = None, folder: Path | None = None) -> Trained:
        """Train one task and score the test images; with a folder, an interrupted task resumes at its last epoch."""
        # The start is not timed: otherwise the first task that needs it would pay for all.
        has_start = self.start is not None and task.candidate.fit == "batches" and not self._is_start(task)
        return self._train(task, self._started(task) if has_start else None, callback, folder)[0]

    def _started(self, task: Task) -> Fitted:
        """Return the start for the labels and the seed of a task, from the cache or trained now."""
        assert self.start is not None
        first = self.start.task(task)
        known, inside, _ = self._divided(first)
        about = {**self.identity(), "epochs": self.start.epochs, "task": first.key, "halflabel": __version__}
        about["training labels"] = known.subset(inside).digest()
        for name in ("test labels", "test images", "truth", "start"):  # the start does not depend on these
            about.pop(name, None)
        digest = hashlib.sha256(json.dumps(to_json_value(about), sort_keys=True).encode()).hexdigest()[:16]
        path = self.cache / "starts" / f"{self.start.method}-seed{task.seed}-{digest}.pt"
        try:
            weights, best_epoch, log = torch.load(path, map_location="cpu", weights_only=True)
            return Fitted(weights, int(best_epoch), [EpochLog(line) for line in log])
        except (OSError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError):
            pass  # not there, or damaged
        tuned = "on frozen features" if self.config.tune == "head" else "all tuned"
        tuned += ", labelled images alone" if self.start.labelled_only else ""
        epochs = counted(self.start.epochs, "epoch")
        self.reporter.message(f"training the start: {epochs} of {self.start.method}, {tuned}, seed {task.seed}")
        folder = path.with_suffix("") if self.config.tune == "all" else None
        fitted = self._train(first, None, StopAtDeadline(self.reporter.deadline), folder)[1]
        assert fitted is not None  # trained in batches
        with atomic_write(path) as temporary:
            torch.save((fitted.weights, fitted.best_epoch, [dict(line) for line in fitted.log]), temporary)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return fitted

    def _is_start(self, task: Task) -> bool:
        return self.start is not None and self.start.is_task(task)

    def _divided(self, task: Task) -> Division:
        """Return the division of a task; the start may leave out unlabelled images."""
        division = self.divide(task.label_mask, task.seed)
        if self.start is not None and self.start.labelled_only and self._is_start(task):
            return division.labelled()
        return division

    def assembly(self, task: Task) -> Assembly:
        """Return what makes the parts of a task: its configuration is that of a `train` with these settings."""
        candidate, config = task.candidate, self.config
        if self.start is not None and self._is_start(task):
            config = replace(config, epochs=self.start.epochs)
        own_epochs = 0 if self.config.tune == "head" else recipe(candidate.method).linear_init
        return Assembly(
            replace(
                config,
                lr=task.lr,
                weight_decay=candidate.weight_decay,
                seed=task.seed,
                linear_init=own_epochs and (self.config.linear_init or own_epochs),
                method=candidate.method,
                options=dict(task.options),
                fit=self.config.fit if self.config.tune == "all" else candidate.fit,
                uncertain=candidate.uncertain or self.config.uncertain,
            )
        )

    def describe(self, candidate: Candidate) -> str:
        """Return in one line what is trained for a candidate."""
        task = Task(candidate, LabelMask(), 0, candidate.lr, candidate.options)
        return self.assembly(task).describe(self.rest)

    def choose_fit(self, candidate: Candidate) -> Candidate:
        """Return the candidate as `train` would fit it to these images; a linear fit has no learning rate."""
        config = replace(self.config, method=candidate.method, options=dict(candidate.options))
        if not Assembly(config).uses_solver(self.rest):
            return replace(candidate, fit="batches")
        return replace(candidate, fit="linear", lr=0.0)

    def _train(
        self, task: Task, start: Fitted | None, callback: Callback | None, folder: Path | None
    ) -> tuple[Trained, Fitted | None]:
        """Train a task from the weights of a start, if there is one."""
        assembly = self.assembly(task)
        known, inside, outside = self._divided(task)
        part = np.full(len(known), LEFT_OUT, np.int8)
        part[inside], part[outside] = TRAINED, HELD_OUT
        cached = self.config.tune == "head"
        backbone = self.backbone if cached else copy.deepcopy(self.backbone)
        # Features are not timed: otherwise the first task that needs them would pay for all.
        try:
            parts = self.features(assembly) if cached else self.pictures
            inputs = Inputs(
                lambda: self.features(assembly).rest,
                backbone,
                lambda: parts.rest,
                self.groups,
                likeness=self.likeness,
            )
            if assembly.config.linear_init:
                _ = inputs.features
        except UserError as error:
            raise DataError(error.message, error.fix) from error
        if not cached:  # frees an earlier network in reference cycles
            gc.collect()
        validation, choosing = self.data.validation, known if self.select == "known" else self.rest
        if self.select == "known" and self.data.choosing is not None:  # as in `train`, no answers to chosen questions
            image, column, _ = known.entries()
            choosing = known.keep(np.asarray(self.data.choosing.values[image, column]).ravel() != 0)
        watch = Watch(Reporter(fits=partial(_report_solve, callback, len(known))), callback, folder=folder)
        started = time.perf_counter()
        fitted = fit(
            Labels.of(known),
            inputs,
            assembly.config,
            choosing=choosing,
            part=part,
            validation=None if validation is None or parts.validation is None else (parts.validation, validation),
            begin=None if start is None else partial(copy_start, start.weights),
            watch=replace(watch, resume=folder is not None, truth=self.rest if self.truth else None),
        )
        model, size = fitted.model.to(self.device), 512 if cached else 64
        logits = score_source(model, parts.test, device=self.device, batch_size=size).logits
        outcome = self._outcome(fitted, time.perf_counter() - started, known, part)
        return Trained(outcome, logits.numpy()), fitted.epochs

    def _outcome(self, fitted: Fit, seconds: float, known: Table, part: NDArray[np.int8]) -> Outcome:
        """Return what is stored of a task beside its logits."""
        measure = "" if fitted.assumes_absent is None else "assumed_mAP" if fitted.assumes_absent else "mAP"
        measured: dict[str, Any] = {
            "measure": measure,
            "wall": seconds,
            "log": tuple(dict(line) for line in fitted.log),
            "decisions": self._decisions(fitted.scores, known) if self.with_f1 else {},
        }
        if (solved := fitted.crossfit) is not None:
            return Outcome(
                select=solved.quality,
                known=_known_share(known),
                seconds=seconds,
                strength=solved.strength,
                **measured,
            )
        assert fitted.epochs is not None
        return Outcome(
            select=fitted.epochs.select,
            best_epoch=fitted.epochs.best_epoch,
            known=_known_share(known.subset(np.flatnonzero(part == TRAINED))),
            # From the log, which includes the time before an interruption, and excludes importing the engine.
            seconds=float(sum(line["seconds"] for line in [*fitted.head_log, *fitted.log])),
            **measured,
        )

    def _decisions(self, scores: Scores | None, known: Table) -> dict[str, Any]:
        """Return calibration and thresholds, fitted to scores of known labels; without such, thresholds of 0.5."""
        if scores is None:
            return {"calibration": {}, "thresholds": [0.5] * len(known.classes)}
        positives = self.config.positives_per_image
        calibration, thresholds = evaluate(scores, known, positives_per_image=positives, resamples=0)[0]
        return {"calibration": calibration.as_json(), "thresholds": thresholds.tolist()}


def _known_share(table: Table) -> float:
    """Return the share of the entries that are known."""
    return table.known / max(len(table) * len(table.classes), 1)


def _expected_seconds(task: Task, outcomes: Results) -> float | None:
    """Return the mean seconds of finished tasks of the same pair, else of the same candidate, else of all; or None."""
    finished = [(other, outcome.wall) for other, outcome in outcomes.items() if not outcome.error]
    of_pair = [wall for other, wall in finished if other.pair == task.pair]
    of_candidate = [wall for other, wall in finished if other.candidate == task.candidate]
    seconds = of_pair or of_candidate or [wall for _, wall in finished]
    return sum(seconds) / len(seconds) if seconds else None


def _remaining_seconds(grid: Grid, outcomes: Results) -> float | None:
    """Return the expected seconds of the tasks that are not finished, by the mean of those that are."""
    walls = [outcome.wall for outcome in outcomes.values()]
    return float(np.mean(walls)) * max(grid.total - len(walls), 0) if walls else None


def run_grid(grid: Grid, bench: Any, store: Store, reporter: Reporter) -> tuple[dict[Task, Outcome], list[Task]]:
    """Run the tasks in order; return the outcomes, and the tasks that were not run because of the deadline.

    A running task stops at the end of the epoch in which the deadline passes; the next call resumes or restarts it.
    """
    for candidate, _ in grid.pairs:  # before a method can be edited while another one is trained
        method_digest(candidate.method)
    callback: Callback = reporter.callback or Callback()
    deadline = reporter.deadline
    outcomes: dict[Task, Outcome] = {}
    not_run: list[Task] = []
    shape = bench.test.shape
    stopped = False
    not_reused: Counter[str] = Counter()
    reused = 0
    for number, task in enumerate(grid.tasks(outcomes), 1):
        stored, reason = store.read(task, shape)
        if stored is not None:
            outcomes[task] = stored
            reused += 1
            continue
        # After the first task that does not fit, no other is started, so that methods stay comparable.
        if deadline is not None and time.monotonic() + (_expected_seconds(task, outcomes) or 0.0) > deadline:
            stopped = True
        if stopped:
            not_run.append(task)
            continue
        if reason:
            not_reused[reason] += 1
            if not_reused[reason] == 1:
                reporter.message(f"{task.describe()}: trained again, because {reason}")
        callback.on_task_start(task, number, max(number, grid.total), _remaining_seconds(grid, outcomes))
        try:
            outcome, logits = _attempt(task, bench, store, callback, deadline)
        except OutOfTime:
            stopped = True
            not_run.append(task)
            continue
        store.write(task, outcome, logits)
        outcomes[task] = outcome
        callback.on_task_end(task, outcome, number, max(number, grid.total))
    if reused or not_reused:
        reasons = "; ".join(f"{number} because {reason}" for reason, number in not_reused.items())
        reporter.message(
            f"{counted(reused, 'finished run')} reused" + (f"; trained again: {reasons}" if reasons else "")
        )
    return outcomes, not_run


def _attempt(task: Task, bench: Any, store: Store, callback: Callback, deadline: float | None) -> tuple[Outcome, Any]:
    """Run a task; an error of this task becomes its outcome, so that the other tasks are run."""
    # A head on cached features is retrained in seconds; training of a whole network is resumed.
    folder = store.unfinished(task) if bench.config.tune == "all" else None
    started = time.perf_counter()
    try:
        trained: Trained = bench.train(task, callback=CallbackList(callback, StopAtDeadline(deadline)), folder=folder)
    except (OutOfTime, DataError):
        raise
    except UserError as error:
        reason = str(error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = f"out of memory ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    except OSError:
        raise  # a full disk or a missing folder concerns all tasks
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
    else:
        return trained
    return Outcome(error=reason, wall=time.perf_counter() - started), None
