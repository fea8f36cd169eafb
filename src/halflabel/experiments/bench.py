"""Bench: trains one task of an experiment at a time, on data that is split once for all tasks."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import __version__
from halflabel.data.gpu_views import load_to_device
from halflabel.data.sources import Arrays, Features, Images, Source, Subset, open_images
from halflabel.errors import UserError
from halflabel.experiments.data import ExperimentData, image_identity
from halflabel.experiments.grid import LabelMask, Outcome, Task
from halflabel.experiments.meter import Meter
from halflabel.experiments.shared_start import (
    OutOfTime,
    Start,
    StopAtDeadline,
    copy_start,
    read_start,
    start_path,
    write_start,
)
from halflabel.labels.split import assign_parts
from halflabel.labels.stats import Stats
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.models.backbones import build_backbone, fingerprint
from halflabel.models.feature_cache import cache_features, copies_for
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import ValidationMetric
from halflabel.system.reporter import SILENT, Reporter
from halflabel.training.callbacks import Callback
from halflabel.training.config import STRONG_VIEW_FIELDS, Config, Settings
from halflabel.training.device import choose_device
from halflabel.training.loop import Fitted, fit

__all__ = ["Bench", "DataError", "Division", "OutOfTime", "Select", "Trained"]

Select = Literal["known", "hidden"]
_MAX_BYTES_IN_MEMORY = 1 << 30  # larger features are memory-mapped


class DataError(UserError):
    """A problem with the images, which concerns all tasks."""


class Trained(NamedTuple):
    """An outcome and the logits (N, C) of the test images; NaN for unreadable ones."""

    outcome: Outcome
    logits: NDArray[np.float32]


class Division(NamedTuple):
    """The known labels of the images that are not for the test, and the numbers of training and validation images."""

    known: LabelTable
    inside: NDArray[np.int64]  # training images
    outside: NDArray[np.int64]  # validation images

    def labelled(self) -> Division:
        """Return a copy without the training images that have no known label."""
        return self._replace(inside=self.inside[np.diff(self.known.start)[self.inside] > 0])


class Parts(NamedTuple):
    """Sources of the images to learn from, the test images, and separate validation images if there are any."""

    rest: Subset
    test: Subset
    validation: Source | None


@dataclass(eq=False)
class Bench:
    """The data and settings of an experiment; trains one task at a time.

    The test images are the same for all tasks and keep all their labels. Of the other images a label mask hides some
    labels; a share of the images is then held out for validation, and the rest is trained on. Both depend only on the
    label mask and the seed, so that all candidates learn from the same labels.

    With validation labels in `data`, nothing is held out. Without them and with config.held_out = 0 no epoch is
    selected: the last one is used. `select="hidden"` selects epochs on the hidden labels. `pretrained=False` starts
    from random weights. `truth` compares the guesses of methods with the hidden labels, for the log. `labelled_only`
    leaves out training images without a known label. `start` is trained once per label mask and seed, and all other
    tasks start from its weights, which are stored in `cache`. Methods that begin with epochs of the head alone use
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
    reporter: Reporter = SILENT
    _opened: dict[str, Any] = field(default_factory=dict)
    _divisions: dict[tuple[LabelMask, int], Division] = field(default_factory=dict)

    @property
    def table(self) -> LabelTable:
        return self.data.table

    @property
    def rest(self) -> LabelTable:
        """Labels of the images that are not for the test."""
        return self.data.rest

    @property
    def test(self) -> LabelTable:
        return self.data.test

    @property
    def device(self) -> str:
        return choose_device(self.config.settings.device)

    def divide(self, label_mask: LabelMask, seed: int) -> Division:
        """Return the labels that a label mask leaves known, and which images are for training and validation."""
        if (label_mask, seed) not in self._divisions:
            known = label_mask.apply(self.rest, seed)
            part = np.zeros(len(known), np.int8)
            if self.config.held_out and self.data.validation is None:
                part = assign_parts(known, (1 - self.config.held_out, self.config.held_out), seed=seed)
            division = Division(known, np.flatnonzero(part == 0), np.flatnonzero(part == 1))
            # Only the latest is stored: tasks come in rounds, and tables can be large.
            self._divisions = {(label_mask, seed): division.labelled() if self.labelled_only else division}
        return self._divisions[label_mask, seed]

    def stats(self, label_mask: LabelMask) -> Stats:
        """Return statistics of the labels that a label mask leaves known with the first seed."""
        return label_mask.apply(self.rest, 0).stats()

    def identity(self) -> dict[str, Any]:
        """Return all values, except the task itself, that the results of a task depend on."""
        config = self.config.as_dict()
        for name in ("method", "options", "linear_init", "images", "workers", "max_bad"):
            config.pop(name)
        for name in STRONG_VIEW_FIELDS:  # as the rare ones below
            if config[name] == getattr(Config, name):
                config.pop(name)
        if self.config.weights:  # by content: the file may have been replaced
            config["weights"] = fingerprint(self._backbone())
        settings = config.pop("settings")
        for name in ("lr", "weight_decay", "seed", "save_every", "device"):
            settings.pop(name)
        images = {"images": self.data.images, "test images": self.data.test_images}
        rare: dict[str, Any] = {}  # left out where they have their defaults, so that older folders stay valid
        if self.data.validation is not None:
            rare["validation labels"] = self.data.validation.digest()
            images["validation images"] = self.data.validation_images
        if not self.pretrained:
            rare["pretrained"] = False
        if self.truth:
            rare["truth"] = True
        if self.labelled_only:
            rare["labelled only"] = True
        if self.start is not None:
            rare["start"] = dataclasses.asdict(self.start)
        if self.config.linear_init:
            rare["linear_init"] = self.config.linear_init
        return {
            "labels": self.table.digest(),
            "test labels": self.test.digest(),
            **{name: image_identity(place) for name, place in images.items()},
            "select": self.select,
            "device": self.device,
            **config,
            **settings,
            **rare,
        }

    def train(self, task: Task, *, callback: Callback | None = None, folder: Path | None = None) -> Trained:
        """Train one task and score the test images; with a folder, an interrupted task resumes at its last epoch."""
        # The start is not timed: otherwise the first task that needs it would pay for all.
        return self._train(task, None if self.start is None else self._started(task), callback, folder)[0]

    def _started(self, task: Task) -> Fitted:
        """Return the start for the labels and the seed of a task, from the cache or trained now."""
        assert self.start is not None
        first = self.start.task(task)
        known, inside, _ = self._divided(first)
        about = {**self.identity(), "epochs": self.start.epochs, "task": first.key, "halflabel": __version__}
        for name in (
            "test labels",
            "test images",
            "truth",
            "start",
        ):  # the start does not depend on these
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

    def _train(
        self, task: Task, start: Fitted | None, callback: Callback | None, folder: Path | None
    ) -> tuple[Trained, Fitted]:
        """Train a task from the weights of a start, if there is one; the start itself is only scored."""
        method_recipe = recipe(task.candidate.method)
        known, inside, outside = self._divided(task)
        method_recipe.check_regime(known.stats().regime)
        method = seeded(task.seed, lambda: method_recipe.make(**dict(task.options)))
        validation_metric = self._validation_metric(known, outside)
        settings = replace(self.config.settings, lr=task.lr, weight_decay=task.candidate.weight_decay, seed=task.seed)
        is_start = self._is_start(task)
        if self.start is not None and is_start:
            settings = replace(settings, epochs=self.start.epochs)
        backbone = self._backbone()
        head = seeded(task.seed, lambda: method.head(backbone.channels, len(self.table.classes)))
        copies = copies_for(method.views, self.config.copies)
        cached = self.config.tune == "head"
        training = known.subset(inside)

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
            parts = self._features(head.needs_maps, copies) if cached else self._pictures()
            own_epochs = method_recipe.linear_init
            linear = 0 if cached or not own_epochs else self.config.linear_init or own_epochs
            first = self._features(head.needs_maps, copies) if linear else None
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
            if start is not None and is_start:
                model.load_state_dict(start.weights)
                fitted = start
            else:
                if start is not None:
                    copy_start(start.weights, model, method, training)
                fitted = fit_on(model, parts, settings, folder)
            size = 512 if cached else 64
            logits = score_source(model.to(self.device), parts.test, device=self.device, batch_size=size).logits
        best = fitted.log[fitted.best_epoch - 1]
        outcome = Outcome(
            select=float(best.get("select", math.nan)),
            measure="" if validation_metric is None else "assumed_mAP" if validation_metric.assumes_absent else "mAP",
            best_epoch=fitted.best_epoch,
            known=training.known / max(len(training) * len(training.classes), 1),
            # From the log, which includes the time before an interruption, and excludes importing the engine.
            seconds=float(sum(line["seconds"] for line in [*before, *fitted.log])),
            wall=meter.seconds,
            memory=meter.memory,
            memory_kind=meter.kind,
            log=tuple(dict(line) for line in fitted.log),
        )
        return Trained(outcome, logits.numpy()), fitted

    def _validation_metric(self, known: LabelTable, outside: NDArray[np.int64]) -> ValidationMetric | None:
        """Return the metric that selects the epoch, or None."""
        if self.data.validation is not None:
            return ValidationMetric(torch.from_numpy(self.data.validation.dense()))
        if not len(outside):
            return None
        labels = known if self.select == "known" else self.rest
        return ValidationMetric(torch.from_numpy(labels.subset(outside).dense()))

    def open(self) -> None:
        """Open the backbone and the image files, so that errors are raised before anything is written."""
        self._raw()

    def bad_images(self) -> list[tuple[str, str, str]]:
        """Return (image, path, reason) of the images that could not be read so far."""
        raw = self._opened.get("raw", ())
        return [row for source in raw if isinstance(source, Images) for row in source.quarantine.rows]

    def _backbone(self) -> Any:
        config = self.config
        if "backbone" not in self._opened:
            weights = Path(config.weights) if config.weights else None
            self._opened["backbone"] = build_backbone(
                config.backbone, weights=weights, pretrained=self.pretrained, size=config.size
            )
        return self._opened["backbone"]

    def _raw(self) -> list[Images | Arrays]:
        """Return the source of the images, then that of separate test images and of validation images, if any."""
        if "raw" not in self._opened:
            backbone = self._backbone()
            size = self.config.size or backbone.preprocess.size
            views = self.config.views(size, backbone)

            def open_source(table: LabelTable, images: Path | Tensor) -> Images | Arrays:
                if isinstance(images, Tensor):
                    return Arrays(images, table.images, views)
                return open_images(
                    table.images, images, views, workers=self.config.workers, max_bad=self.config.max_bad
                )

            data = self.data
            sources = [open_source(data.table, data.images)]
            if data.has_own_test:
                sources.append(open_source(data.test, data.images if data.test_images is None else data.test_images))
            if data.validation is not None:
                images = data.images if data.validation_images is None else data.validation_images
                sources.append(open_source(data.validation, images))
            self._opened["raw"] = sources
        raw: list[Images | Arrays] = self._opened["raw"]
        return raw

    def _parts(self, sources: list[Any]) -> Parts:
        test = sources[1] if self.data.has_own_test else sources[0]
        validation = None if self.data.validation is None else sources[-1]
        return Parts(Subset(sources[0], self.data.inside), Subset(test, self.data.outside), validation)

    def _pictures(self) -> Parts:
        if "pictures" not in self._opened:
            raw: list[Any] = self._raw()
            if self.config.hold == "device":
                raw = [
                    load_to_device(s, self.device, self.reporter.progress) if isinstance(s, Images) else s for s in raw
                ]
            self._opened["pictures"] = self._parts(raw)
        pictures: Parts = self._opened["pictures"]
        return pictures

    def _features(self, maps: bool, copies: int) -> Parts:
        """Return cached features, computed when a candidate first needs them and shared from then on."""
        kind = f"features, maps {maps}, copies {copies}"
        if kind not in self._opened:
            cached = [
                cache_features(
                    self._backbone(),
                    raw,
                    self.cache,
                    maps=maps,
                    copies=copies,
                    device=self.device,
                    reporter=replace(self.reporter, progress=self._report_features),
                )
                for raw in self._raw()
            ]
            self._opened[kind] = self._parts([_in_memory(features) for features in cached])
        features: Parts = self._opened[kind]
        return features

    def _report_features(self, done: int, total: int) -> None:
        """Report the progress of features; raise OutOfTime at the deadline, and the next call continues from there."""
        self.reporter.progress(done, total)
        deadline = self.reporter.deadline
        if deadline is not None and time.monotonic() > deadline and done < total:
            raise OutOfTime


def _in_memory(features: Features) -> Features:
    """Read small features into memory: faster, and no task is charged for reading them first."""
    strong = features.strong
    if sum(values.nbytes for values in (features.values, *(strong or ()))) > _MAX_BYTES_IN_MEMORY:
        return features
    tensors = [torch.from_numpy(np.array(values)) for values in (features.values, *(strong or ()))]
    return Features(tensors[0], features.names, features.bad.tolist(), strong=None if strong is None else tensors[1:])
