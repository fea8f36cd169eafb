"""Bench: trains one task of an experiment at a time, on data that is split once for all tasks."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import __version__
from halflabel.comparison.data import ExperimentData, image_identity
from halflabel.comparison.grid import Candidate, LabelMask, Outcome, Task
from halflabel.comparison.meter import Meter
from halflabel.comparison.shared_start import (
    Start,
    StopAtDeadline,
    copy_start,
    read_start,
    start_path,
    write_start,
)
from halflabel.comparison.sources import ExperimentSources, Parts
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import ValidationMetric, evaluate
from halflabel.evaluation.registry import own_functions
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import fingerprint
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import STRONG_VIEW_FIELDS, Config, Settings
from halflabel.fitting.device import choose_device
from halflabel.fitting.loop import Fitted, fit
from halflabel.fitting.refit import Refit
from halflabel.images.sources import Subset
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Stats, Table
from halflabel.system.reporter import SILENT, Reporter

Select = Literal["known", "hidden"]


class DataError(UserError):
    """A problem with the images, which concerns all tasks."""


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
class Bench:
    """The data and settings of an experiment; trains one task at a time.

    The test images are the same for all tasks and keep all their labels. Of the other images a label mask hides some
    labels. A task of the solver lbfgs is fitted to all of them, as `train` does; for one of sgd a share of the images
    is held out for validation, and the rest is trained on. Both depend only on the label mask and the seed, so that all
    candidates learn from the same labels.

    With validation labels in `data`, nothing is held out. Without them and with config.held_out = 0 no epoch is
    selected: the last one is used. `select="hidden"` selects epochs and strengths on the hidden labels.
    `pretrained=False` starts from random weights. `truth` compares the guesses of methods with the hidden labels, for
    the log. `labelled_only` leaves out training images without a known label. `start` is trained once per label mask
    and seed, and all other tasks start from its weights, which are stored in `cache`. `with_f1` also fits the decisions
    of each run, as `train` does, and measures their F1. Methods that begin with epochs of the head alone use
    config.linear_init of them, or if that is 0 their own number.
    """

    data: ExperimentData
    config: Config
    cache: Path
    select: Select = "known"
    pretrained: bool = True
    truth: bool = False
    labelled_only: bool = False
    start: Start | None = None
    with_f1: bool = False
    reporter: Reporter = SILENT
    _divisions: dict[tuple[LabelMask, int], Division] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources = ExperimentSources(self.data, self.config, self.cache, self.pretrained, self.reporter)

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
        return choose_device(self.config.settings.device)

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
        for name in ("method", "options", "linear_init", "images", "workers", "max_bad"):
            config.pop(name)
        for name in (*STRONG_VIEW_FIELDS, "group", "uncertain", "channels"):  # as the rare ones below
            if config[name] == getattr(Config, name):
                config.pop(name)
        if self.config.weights:  # by content: the file may have been replaced
            config["weights"] = fingerprint(self.sources.backbone)
        settings = config.pop("settings")
        for name in ("lr", "weight_decay", "seed", "save_every", "device"):
            settings.pop(name)
        images = {"images": self.data.images, "test images": self.data.test_images}
        if self.data.validation is not None:
            images["validation images"] = self.data.validation_images
        rare = {  # left out where they have their defaults, so that older folders stay valid
            "validation labels": None if self.data.validation is None else self.data.validation.digest(),
            "pretrained": None if self.pretrained else False,
            "truth": self.truth or None,
            "choosing": None if self.data.choosing is None else self.data.choosing.digest(),
            "labelled only": self.labelled_only or None,
            "start": None if self.start is None else dataclasses.asdict(self.start),
            "linear_init": self.config.linear_init or None,
        }
        return {
            "labels": self.data.table.digest(),
            "test labels": self.test.digest(),
            **{name: image_identity(place) for name, place in images.items()},
            "select": self.select,
            "device": self.device,
            **config,
            **settings,
            **{name: value for name, value in rare.items() if value is not None},
        }

    def train(self, task: Task, *, callback: Callback | None = None, folder: Path | None = None) -> Trained:
        """Train one task and score the test images; with a folder, an interrupted task resumes at its last epoch."""
        if task.candidate.solver == "lbfgs":
            return self._solve(task, callback or Callback())
        # The start is not timed: otherwise the first task that needs it would pay for all.
        return self._train(task, None if self.start is None else self._started(task), callback, folder)[0]

    def _started(self, task: Task) -> Fitted:
        """Return the start for the labels and the seed of a task, from the cache or trained now."""
        assert self.start is not None
        first = self.start.task(task)
        known, inside, _ = self._divided(first)
        about = {**self.identity(), "epochs": self.start.epochs, "task": first.key, "halflabel": __version__}
        for name in ("test labels", "test images", "truth", "start"):  # the start does not depend on these
            about.pop(name, None)
        path = start_path(self.cache / "starts", first, {**about, "training labels": known.subset(inside).digest()})
        fitted = read_start(path)
        if fitted is None:
            epochs = f"{self.start.epochs} epoch{'s' if self.start.epochs > 1 else ''}"
            tuned = "on frozen features" if self.config.tune == "head" else "all tuned"
            tuned += ", labelled images alone" if self.start.labelled_only else ""
            self.reporter.message(f"training the start: {epochs} of {self.start.method}, {tuned}, seed {task.seed}")
            folder = path.with_suffix("") if self.config.tune == "all" else None
            _, fitted = self._train(first, None, StopAtDeadline(self.reporter.deadline), folder)
            write_start(fitted, path)
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
        settings = replace(self.config.settings, lr=task.lr, weight_decay=task.candidate.weight_decay, seed=task.seed)
        if self.start is not None and self._is_start(task):
            settings = replace(settings, epochs=self.start.epochs)
        candidate = task.candidate
        return Assembly(
            replace(
                self.config,
                method=candidate.method,
                options=dict(task.options),
                solver=candidate.solver,
                uncertain=candidate.uncertain or self.config.uncertain,
                settings=settings,
            )
        )

    def choose_solver(self, candidate: Candidate) -> Candidate:
        """Return the candidate with the solver that `train` would use on these images; lbfgs has no learning rate."""
        config = replace(self.config, method=candidate.method, options=dict(candidate.options))
        if not Assembly(config).uses_solver(self.rest):
            return replace(candidate, solver="sgd")
        return replace(candidate, solver="lbfgs", lr=0.0)

    def _solve(self, task: Task, callback: Callback) -> Trained:
        """Fit a task by L-BFGS to all images that are not for the test; out-of-fold scores choose and decide."""
        known = self.divide(task.label_mask, task.seed).known
        assembly = self.assembly(task)
        assembly.recipe.check_regime(assembly.training_table(known).stats.regime)
        try:
            parts = self.sources.features(assembly)
        except UserError as error:
            raise DataError(error.message, error.fix) from error

        def report(done: int, total: int) -> None:  # each solve counts as an epoch, for progress and deadline
            callback.on_epoch_start(done, total, len(known))
            callback.on_epoch_end(EpochLog(epoch=done))

        evaluation = self._choosing(known) if self.select == "known" else self.rest
        with Meter(self.device) as meter:
            fitted = assembly.solve(
                parts.pooled(),
                known,
                self.sources.backbone.classifier,
                evaluation=evaluation,
                groups=self.groups,
                reporter=Reporter(progress=report),
            )
            model = Model(None, fitted.head).to(self.device)
            logits = score_source(model, parts.test, device=self.device, batch_size=512).logits
        outcome = Outcome(
            select=fitted.quality,
            measure="mAP" if bool((evaluation.value < 0).any()) else "assumed_mAP",
            known=known.known / max(len(known) * len(known.classes), 1),
            seconds=meter.seconds,
            log=tuple(dict(line) for line in fitted.log),
            strength=fitted.strength,
            **self._measured(meter, logits, torch.from_numpy(fitted.logits), known),
        )
        return Trained(outcome, logits.numpy())

    def _choosing(self, known: Table) -> Table:
        """Return the labels that choose, as in `train`: without answers to chosen questions."""
        if self.data.choosing is None:
            return known
        image, column, _ = known.entries()
        return known.keep(np.asarray(self.data.choosing.values[image, column]).ravel() != 0)

    def _measured(self, meter: Meter, logits: Tensor, judged: Tensor | None, known: Table) -> dict[str, Any]:
        """Return time, memory, and with `with_f1` CF1, OF1 and the metrics of plugins on the test images.

        The thresholds are fitted to `judged` logits of images with known labels. Without such images the threshold is
        0.5, as in a run of `train` without held-out images.
        """
        measured = {"wall": meter.seconds, "memory": meter.memory, "memory_kind": meter.kind}
        if not self.with_f1:
            return measured
        decisions = Decisions(Calibration(), torch.full((logits.shape[1],), 0.5))
        if judged is not None:
            positives = self.config.positives_per_image
            scores = Scores.held_out(known.images, known.classes, judged.numpy())
            decisions, _ = evaluate(scores, known, positives_per_image=positives, resamples=0)
        scores = Scores.held_out(self.test.images, self.test.classes, logits.numpy())
        value = evaluate(scores, self.test, decisions=decisions, resamples=0)[1].overall
        plugin_metrics = {name: value[name] for name in own_functions()}
        return {**measured, "CF1": value["CF1"], "OF1": value["OF1"], "own_metrics": plugin_metrics}

    def _train(
        self, task: Task, start: Fitted | None, callback: Callback | None, folder: Path | None
    ) -> tuple[Trained, Fitted]:
        """Train a task from the weights of a start, if there is one; the start itself is only scored."""
        assembly = self.assembly(task)
        method_recipe, settings = assembly.recipe, assembly.config.settings
        known, inside, outside = self._divided(task)
        training = assembly.training_table(known).subset(inside)
        method_recipe.check_regime(training.stats.regime)
        method = assembly.make_method()
        validation_metric = self._validation_metric(known, outside)
        backbone = self.sources.backbone
        head = assembly.make_head(method, backbone.channels, len(self.rest.classes))
        cached = self.config.tune == "head"

        def fit_on(model: Model, parts: Parts, settings: Settings, folder: Path | None) -> Fitted:
            return fit(
                model,
                method,
                Subset(parts.rest, inside),
                training,
                settings,
                validation=Subset(parts.rest, outside) if len(outside) else parts.validation,
                judge=validation_metric,
                callback=callback,
                truth=self.rest.subset(inside) if self.truth else None,
                folder=folder,
                resume=folder is not None,
            )

        # Features are not timed: otherwise the first task that needs them would pay for all.
        try:
            parts = self.sources.features(assembly) if cached else self.sources.pictures
            own_epochs = method_recipe.linear_init
            linear = 0 if cached or not own_epochs else self.config.linear_init or own_epochs
            first = self.sources.features(assembly) if linear else None
        except UserError as error:
            raise DataError(error.message, error.fix) from error
        if not cached:  # memory of an earlier network in reference cycles would count for this one
            gc.collect()
        with Meter(self.device) as meter:
            before = []
            if first is not None:
                rate = settings.lr if self.config.linear_lr is None else self.config.linear_lr
                # Early stopping applies to the training afterwards; the head has a fixed number of epochs.
                alone = replace(settings, epochs=linear, lr=rate, compile="no", patience=0)
                before = fit_on(Model(None, head), first, alone, None).log
            model = Model(None if cached else copy.deepcopy(backbone), head)
            if start is not None and self._is_start(task):
                model.load_state_dict(start.weights)
                fitted = start
            else:
                if start is not None:
                    copy_start(start.weights, model, method, training)
                fitted = fit_on(model, parts, settings, folder)
            size = 512 if cached else 64
            model = model.to(self.device)
            refitted = self._refit(assembly, model, parts, known, outside)
            if refitted is not None:
                model = Model(model.backbone, refitted.head.to(self.device))
            logits = score_source(model, parts.test, device=self.device, batch_size=size).logits
        judged = None
        if self.with_f1 and len(outside):
            judged = score_source(model, Subset(parts.rest, outside), device=self.device, batch_size=size).logits
        best = fitted.log[fitted.best_epoch - 1]
        outcome = Outcome(
            select=float(best.get("select", math.nan)),
            measure="" if validation_metric is None else "assumed_mAP" if validation_metric.assumes_absent else "mAP",
            best_epoch=fitted.best_epoch,
            known=training.known / max(len(training) * len(training.classes), 1),
            # From the log, which includes the time before an interruption, and excludes importing the engine.
            seconds=float(sum(line["seconds"] for line in [*before, *fitted.log])),
            log=tuple(dict(line) for line in fitted.log),
            **self._measured(meter, logits, judged, known.subset(outside)),
        )
        return Trained(outcome, logits.numpy()), fitted

    def _refit(
        self, assembly: Assembly, model: Model, parts: Parts, known: Table, outside: NDArray[np.int64]
    ) -> Refit | None:
        """Fit the head of a tuned network again where `train` does."""
        if self.config.tune == "head" or not len(outside):
            return None
        as_trained = Assembly(replace(assembly.config, solver=self.config.solver), assembly.given_recipe)
        evaluation = known if self.select == "known" else self.rest
        return as_trained.refit(model, parts.rest, known, outside, evaluation=evaluation)

    def _validation_metric(self, known: Table, outside: NDArray[np.int64]) -> ValidationMetric | None:
        """Return the metric that selects the epoch, or None."""
        if self.data.validation is not None:
            return ValidationMetric(torch.from_numpy(self.data.validation.dense()))
        if not len(outside):
            return None
        labels = known if self.select == "known" else self.rest
        return ValidationMetric(torch.from_numpy(labels.subset(outside).dense()))

    def open(self) -> None:
        """Open the backbone and the image files, so that errors are raised before anything is written."""
        _ = self.sources.raw

    def bad_images(self) -> list[tuple[str, str, str]]:
        """Return (image, path, reason) of the images that could not be read so far."""
        return self.sources.bad_images()
