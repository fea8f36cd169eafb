"""The bench: the images divided once into those to learn from and those to judge by, and one task trained on them."""

from __future__ import annotations

import copy
import dataclasses
import gc
import hashlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
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
from halflabel.experiments.grid import LabelMask, Outcome, Task
from halflabel.experiments.meter import Meter
from halflabel.experiments.shared_start import OutOfTime, Start, StopAtDeadline, begin, keep, kept, place_of
from halflabel.labels.split import assign_parts
from halflabel.labels.stats import Stats
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.models.backbones import build_backbone, fingerprint
from halflabel.models.feature_cache import cache_features, copies_for
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import ValidationMetric
from halflabel.system.reporter import Reporter
from halflabel.training.callbacks import Callback
from halflabel.training.config import STRONG_VIEW_FIELDS, Config, Settings
from halflabel.training.device import choose_device
from halflabel.training.loop import Fitted, fit

__all__ = ["Bench", "DataError", "Division", "OutOfTime", "Select", "Trained"]

Select = Literal["known", "hidden"]
_IN_MEMORY = 1 << 30  # bytes of features that are read into memory rather than mapped


class DataError(UserError):
    """Something about the images that concerns all tasks."""


class Trained(NamedTuple):
    """An outcome and the logits (N, C) of the test images; NaN for those that cannot be read."""

    outcome: Outcome
    logits: NDArray[np.float32]


class Division(NamedTuple):
    """What is known of the images that are not for the test, and their numbers: to train on, and to choose by."""

    known: LabelTable
    inside: NDArray[np.int64]
    outside: NDArray[np.int64]

    def labelled(self) -> Division:
        """The same without the images to train on of which nothing is known."""
        return self._replace(inside=self.inside[np.diff(self.known.start)[self.inside] > 0])


class Parts(NamedTuple):
    """The images to learn from, the test images, and those to choose epochs by where they are images of their own."""

    rest: Subset
    test: Subset
    validation: Source | None


class Bench:
    """All images and labels of a comparison.

    The test images are the same for all tasks and keep all their labels. Of the others a label mask leaves some labels, a
    share of them is held out for validation by what is then known, and the rest is trained on: both depend on the
    hiding and the seed alone, so that all candidates learn from the same labels.

    `validation` are labels of other images to choose epochs by (in `validation_images`, or with the others); nothing
    is held out then. Without them and with held_out = 0 nothing is chosen: the last epoch counts. `pretrained=False`
    starts from random weights. `truth` compares what methods guess with the labels that were hidden, for the log.
    `labelled_only` trains on no image of which nothing is known. `start` is trained once per label mask and seed, and all
    other tasks begin with its weights; they are kept in `cache`. Methods that begin with epochs of the head alone have
    config.linear_init of them, or with 0 as many as is their own.
    """

    def __init__(
        self,
        table: LabelTable,
        images: Path | Tensor,
        config: Config,
        *,
        test: LabelTable | None = None,
        test_images: Path | Tensor | None = None,
        test_share: float = 0.2,
        validation: LabelTable | None = None,
        validation_images: Path | Tensor | None = None,
        select: Select = "known",
        pretrained: bool = True,
        truth: bool = False,
        labelled_only: bool = False,
        start: Start | None = None,
        cache: Path,
        deadline: float | None = None,
        say: Callable[[str], None] = lambda line: None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config, self.select, self.cache = config, select, cache
        self.deadline, self.say, self.progress = deadline, say, progress
        self.images, self.test_images, self.validation_images = images, test_images, validation_images
        self.pretrained, self.truth = pretrained, truth
        self.labelled_only, self.start = labelled_only, start
        if test is None:
            part = assign_parts(table, (1 - test_share, test_share))
            self.inside, self.outside = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
            self.rest, self.test = table.subset(self.inside), table.subset(self.outside)
        else:
            self.inside, self.outside = np.arange(len(table)), np.arange(len(test))
            self.rest, self.test = table, _matched(test, table)
        self.validation = None if validation is None else _matched(validation, table, "validation")
        for labels, own, what in ((test, test_images, "test"), (validation, validation_images, "validation")):
            if labels is not None and own is None and isinstance(images, Tensor):
                raise UserError(f"the {what} labels come without images", f"give {what}_images too")
        self.table = table
        self.own_test = test is not None
        _check_judgeable(self.test)
        self._opened: dict[str, Any] = {}
        self._divisions: dict[tuple[LabelMask, int], Division] = {}

    @property
    def device(self) -> str:
        return choose_device(self.config.settings.device)

    def divide(self, label_mask: LabelMask, seed: int) -> Division:
        """What a label mask leaves known of the images that are not for the test, and which of them are for validation."""
        if (label_mask, seed) not in self._divisions:
            known = label_mask.apply(self.rest, seed)
            part = np.zeros(len(known), np.int8)
            if self.config.held_out and self.validation is None:
                part = assign_parts(known, (1 - self.config.held_out, self.config.held_out), seed=seed)
            found = Division(known, np.flatnonzero(part == 0), np.flatnonzero(part == 1))
            # Only the latest is kept: tasks come in rounds, and tables can be large.
            self._divisions = {(label_mask, seed): found.labelled() if self.labelled_only else found}
        return self._divisions[label_mask, seed]

    def stats(self, label_mask: LabelMask) -> Stats:
        """Counts of what a label mask leaves known, with the first seed."""
        return label_mask.apply(self.rest, 0).stats()

    def identity(self) -> dict[str, Any]:
        """What the results of a task depend on besides the task itself."""
        made = self.config.as_dict()
        for name in ("method", "options", "linear_init", "images", "workers", "max_bad"):
            made.pop(name)
        for name in STRONG_VIEW_FIELDS:  # as the rare ones below
            if made[name] == getattr(Config, name):
                made.pop(name)
        if self.config.weights:  # what is in the file: another one may have been put in its place
            made["weights"] = fingerprint(self._backbone())
        settings = made.pop("settings")
        for name in ("lr", "weight_decay", "seed", "save_every", "device"):
            settings.pop(name)
        where = {"images": self.images, "test images": self.test_images}
        rare: dict[str, Any] = {}  # left out where they are as usual: folders made before know nothing of them
        if self.validation is not None:
            rare["validation labels"] = self.validation.digest()
            where["validation images"] = self.validation_images
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
            **{name: _place(images) for name, images in where.items()},
            "select": self.select,
            "device": self.device,
            **made,
            **settings,
            **rare,
        }

    def train(self, task: Task, *, callback: Callback | None = None, folder: Path | None = None) -> Trained:
        """Train one task and score the test images. With a folder, an interrupted task goes on from its last epoch."""
        # The start too is outside the clock: the first task that needs it would pay for all.
        return self._train(task, None if self.start is None else self._started(task), callback, folder)[0]

    def _started(self, task: Task) -> Fitted:
        """The start on the labels and with the seed of a task: as it was kept, else trained now."""
        assert self.start is not None
        first = self.start.task(task)
        known, inside, _ = self._divided(first)
        about = {**self.identity(), "epochs": self.start.epochs, "task": first.key, "halflabel": __version__}
        for name in ("test labels", "test images", "truth", "start"):  # other tables start alike
            about.pop(name, None)
        place = place_of(self.cache / "starts", first, {**about, "training labels": known.subset(inside).digest()})
        found = kept(place)
        if found is None:
            epochs = f"{self.start.epochs} epoch{'s' if self.start.epochs > 1 else ''}"
            tuned = "on frozen features" if self.config.tune == "head" else "all tuned"
            tuned += ", labelled images alone" if self.start.labelled_only else ""
            self.say(f"what rows begin with: {epochs} of {self.start.method}, {tuned}, seed {task.seed}")
            folder = place.with_suffix("") if self.config.tune == "all" else None
            _, found = self._train(first, None, StopAtDeadline(self.deadline), folder)
            keep(found, place)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return found

    def _is_start(self, task: Task) -> bool:
        return self.start is not None and self.start.is_task(task)

    def _divided(self, task: Task) -> Division:
        """What a task learns from and is judged by; the start may leave more out than others."""
        found = self.divide(task.label_mask, task.seed)
        return (
            found.labelled() if self.start is not None and self.start.labelled_only and self._is_start(task) else found
        )

    def _train(
        self, task: Task, start: Fitted | None, callback: Callback | None, folder: Path | None
    ) -> tuple[Trained, Fitted]:
        """Train a task from the weights of a start, if there is one; the start itself is only scored then."""
        how = recipe(task.candidate.method)
        known, inside, outside = self._divided(task)
        how.check_regime(known.stats().regime)
        method = seeded(task.seed, lambda: how.make(**dict(task.options)))
        judge = self._judge(known, outside)
        settings = replace(self.config.settings, lr=task.lr, weight_decay=task.candidate.weight_decay, seed=task.seed)
        is_start = self._is_start(task)
        if self.start is not None and is_start:
            settings = replace(settings, epochs=self.start.epochs)
        backbone = self._backbone()
        made = seeded(task.seed, lambda: method.head(backbone.channels, len(self.table.classes)))
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
                judge=judge,
                callback=callback,
                truth=self.rest.subset(inside) if self.truth else None,
                folder=folder,
                resume=folder is not None,
            )

        # Outside the clock: the first task that needs them would pay for all.
        try:
            parts = self._features(made.needs_maps, copies) if cached else self._pictures()
            linear = 0 if cached or not how.linear_init else self.config.linear_init or how.linear_init
            first = self._features(made.needs_maps, copies) if linear else None
        except UserError as error:
            raise DataError(error.message, error.fix) from error
        if not cached:  # what an earlier network left in reference cycles would be counted as this one's
            gc.collect()
        with Meter(self.device) as meter:
            before = []
            if first is not None:
                rate = settings.lr if self.config.linear_lr is None else self.config.linear_lr
                # To stop early is for the training that it prepares: its epochs are a number of their own.
                alone = replace(settings, epochs=linear, lr=rate, compile="no", patience=0)
                before = fit_on(Model(None, made), first, alone, None).log
            model = Model(None if cached else copy.deepcopy(backbone), made)
            if start is not None and is_start:
                model.load_state_dict(start.weights)
                fitted = start
            else:
                if start is not None:
                    begin(start.weights, model, method, training)
                fitted = fit_on(model, parts, settings, folder)
            size = 512 if cached else 64
            logits = score_source(model.to(self.device), parts.test, device=self.device, batch_size=size).logits
        best = fitted.log[fitted.best_epoch - 1]
        outcome = Outcome(
            select=float(best.get("select", math.nan)),
            measure="" if judge is None else "assumed_mAP" if judge.assumes_absent else "mAP",
            best_epoch=fitted.best_epoch,
            known=training.known / max(len(training) * len(training.classes), 1),
            # From the log: it knows what was spent before an interruption, and not what importing the engine took.
            seconds=float(sum(line["seconds"] for line in [*before, *fitted.log])),
            wall=meter.seconds,
            memory=meter.memory,
            memory_kind=meter.kind,
            log=tuple(dict(line) for line in fitted.log),
        )
        return Trained(outcome, logits.numpy()), fitted

    def _judge(self, known: LabelTable, outside: NDArray[np.int64]) -> ValidationMetric | None:
        """What chooses the epoch, if anything does."""
        if self.validation is not None:
            return ValidationMetric(torch.from_numpy(self.validation.dense()))
        if not len(outside):
            return None
        return ValidationMetric(
            torch.from_numpy((known if self.select == "known" else self.rest).subset(outside).dense())
        )

    def open(self) -> None:
        """Find the backbone and the image files; what is wrong with them is said before anything is written."""
        self._raw()

    def bad_images(self) -> list[tuple[str, str, str]]:
        """The images that could not be read so far: image, path, reason."""
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
        """One source of all images, one more where the test has images of its own, one more where validation has."""
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

            found = [open_source(self.table, self.images)]
            if self.own_test:
                found.append(open_source(self.test, self.images if self.test_images is None else self.test_images))
            if self.validation is not None:
                own = self.validation_images
                found.append(open_source(self.validation, self.images if own is None else own))
            self._opened["raw"] = found
        raw: list[Images | Arrays] = self._opened["raw"]
        return raw

    def _parts(self, sources: list[Any]) -> Parts:
        test = sources[1] if self.own_test else sources[0]
        validation = None if self.validation is None else sources[-1]
        return Parts(Subset(sources[0], self.inside), Subset(test, self.outside), validation)

    def _pictures(self) -> Parts:
        if "pictures" not in self._opened:
            raw: list[Any] = self._raw()
            if self.config.hold == "device":
                raw = [load_to_device(s, self.device, self.progress) if isinstance(s, Images) else s for s in raw]
            self._opened["pictures"] = self._parts(raw)
        pictures: Parts = self._opened["pictures"]
        return pictures

    def _features(self, maps: bool, copies: int) -> Parts:
        """Cached features of a kind, computed when a candidate first needs them and shared from then on."""
        kind = f"features, maps {maps}, copies {copies}"
        if kind not in self._opened:
            found = [
                cache_features(
                    self._backbone(),
                    raw,
                    self.cache,
                    maps=maps,
                    copies=copies,
                    device=self.device,
                    reporter=Reporter(self._tell, self.say),
                )
                for raw in self._raw()
            ]
            self._opened[kind] = self._parts([_read_in(features) for features in found])
        features: Parts = self._opened[kind]
        return features

    def _tell(self, done: int, total: int) -> None:
        """Pass on how far the features are; a budget that is spent ends it, and the next call goes on from there."""
        if self.progress is not None:
            self.progress(done, total)
        if self.deadline is not None and time.monotonic() > self.deadline and done < total:
            raise OutOfTime


def _read_in(features: Features) -> Features:
    """Small features in memory: quicker, and no task is charged for the pages it happens to be the first to touch."""
    strong = features.strong
    if sum(values.nbytes for values in (features.values, *(strong or ()))) > _IN_MEMORY:
        return features
    held = [torch.from_numpy(np.array(values)) for values in (features.values, *(strong or ()))]
    return Features(held[0], features.names, features.bad.tolist(), strong=None if strong is None else held[1:])


def _matched(test: LabelTable, table: LabelTable, what: str = "test") -> LabelTable:
    """The test or validation labels with the classes of the others, by name; an image may not be in both."""
    at = test.classes.index(table.classes.array)
    if (at < 0).any():
        missing = table.classes[int(np.flatnonzero(at < 0)[0])]
        raise UserError(f"the {what} labels have no class {missing!r}", "use the same class names in both files")
    shared = np.flatnonzero(table.images.index(test.images.array) >= 0)
    if len(shared):
        raise UserError(
            f"{len(shared)} {what} images are also to be learned from, such as {test.images[int(shared[0])]!r}",
            "leave them out of one of the two files; without --test, halflabel divides the images itself",
        )
    return test.subset(classes=at)


def _check_judgeable(test: LabelTable) -> None:
    """Refuse to compare where no ranking can be told from another."""
    for sign, what in ((1, "present"), (-1, "absent")):
        if not bool((np.sign(test.value) == sign).any()):
            raise UserError(
                f"nothing is known to be {what} among the {len(test)} test images, so methods cannot be told apart",
                "give test labels with both by --test FILE, or say --unlisted absent where that is true",
            )


def _place(images: Path | Tensor | None) -> str:
    """The folder, or a digest of images in memory."""
    if isinstance(images, Tensor):
        return hashlib.sha256(images.contiguous().numpy().data).hexdigest()[:16]
    return "" if images is None else str(images.absolute())
