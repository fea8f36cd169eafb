"""Training one classifier from labels and images, as a run directory on the disk."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import metrics
from halflabel.data.gpu_views import load_to_device
from halflabel.data.pack.source import DeviceViews
from halflabel.data.quarantine import TooManyBadImages
from halflabel.data.sources import Arrays, Images, Source, Subset, open_images
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.provenance import training_and_evaluation_tables
from halflabel.labels.rows import Rows
from halflabel.labels.split import assign_parts
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.metrics.calibration import fit_platt
from halflabel.models.backbones import build_backbone
from halflabel.models.feature_cache import cache_features, copies_for
from halflabel.models.heads import Head, Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import Evaluation, ValidationMetric, evaluate
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.system import distributed
from halflabel.system.reporter import SILENT, Reporter
from halflabel.training.callbacks import Callback, CallbackList, EpochLog
from halflabel.training.checkpoint import load_newest, save_tensors
from halflabel.training.config import Config, Settings
from halflabel.training.device import choose_device
from halflabel.training.loop import fit

__all__ = ["train"]


def train(
    labels: LabelTable | Rows,
    images: Path | Tensor,
    config: Config,
    run: RunFolder,
    *,
    reporter: Reporter = SILENT,
    init_callback: Callback | None = None,
    cache: Path | None = None,
    truth: LabelTable | None = None,
    resume: bool = False,
) -> Evaluation | None:
    """Train one classifier on a folder of images, or on (N, 3, H, W) uint8 ones, and write the run directory.

    Of rows, those that a model made are trained on, but held-out images are judged by the others alone.
    `truth` holds labels of the same images that the method must not see: the log says how true its guesses are.
    `init_callback` is called in the epochs of the linear init, in place of `reporter.callback`.
    Returns the evaluation on the held-out images, if any. Of several processes the first one writes."""
    table, judged = training_and_evaluation_tables(labels)
    if made := table.known - judged.known:
        reporter.message(
            f"{made} of {table.known} labels were made by a model: it trains on them, but judges by the others alone"
        )
    how = recipe(config.method)
    # Some methods have weights of their own: they are the seed's too, whatever this process did before.
    method = seeded(config.settings.seed, lambda: how.make(**config.options))
    how.check_regime(table.stats().regime)
    device = choose_device(config.settings.device)

    backbone = build_backbone(
        config.backbone, weights=Path(config.weights) if config.weights else None, size=config.size
    )
    size = config.size or backbone.preprocess.size
    views = config.views(size, backbone)
    raw: Images | Arrays
    if isinstance(images, Tensor):
        raw = Arrays(images, table.images, views)
    else:
        # An older run that may not start after all stays as it is.
        own = run.bad_images if resume or not run.is_started else None
        raw = open_images(table.images, images, views, workers=config.workers, max_bad=config.max_bad, bad_images=own)
        raw.quarantine.path = run.bad_images

    # Dealt by the labels that judge: each class is to have its share of them on either side.
    shares = (1 - config.held_out, config.held_out)
    part = assign_parts(judged, shares, seed=config.settings.seed) if config.held_out else None
    if part is not None and config.begin_from is not None:
        part = _keep_split(RunFolder.open(config.begin_from), table.images, part)
    inside = np.arange(len(table)) if part is None else np.flatnonzero(part == 0)
    outside = np.arange(0) if part is None else np.flatnonzero(part == 1)
    known, hidden = table.subset(inside), judged.subset(outside)
    if config.held_out and not len(outside):
        reporter.message("too few images to hold any out: nothing is measured")

    if not resume:  # what is wrong with the settings or the images has been said by now
        truth = _align(truth, table) if truth is not None else None
        run.start(labels, {**config.as_dict(), "size": size}, truth)
    run.remove_temporary_files()
    run.write_env(device)
    run.write_split(table.images.array, part if part is not None else np.zeros(len(table), np.int8))

    def make_head() -> Head:
        return method.head(backbone.channels, len(table.classes))

    head = seeded(config.settings.seed, make_head)
    if config.begin_from is not None:
        _start_from(RunFolder.open(config.begin_from), Model(backbone, head), table.classes)
    place = cache if cache is not None else run.folder.parent / "cache"
    settings = config.settings
    judge = ValidationMetric(torch.from_numpy(hidden.dense())) if len(outside) else None

    def tune(
        model: Model, source: Source, settings: Settings, folder: Path, callback: Callback | None = reporter.callback
    ) -> list[EpochLog]:
        return fit(
            model,
            method,
            Subset(source, inside),
            known,
            settings,
            validation=Subset(source, outside) if judge is not None else None,
            judge=judge,
            callback=CallbackList(_LogWriter(run), callback or Callback()),
            truth=truth.subset(inside) if truth is not None else None,
            folder=folder,
            resume=resume,
        ).log

    def features() -> Source:
        return cache_features(
            backbone,
            raw,
            place,
            maps=head.needs_maps,
            copies=copies_for(method.views, config.copies),
            device=device,
            reporter=reporter,
        )

    try:
        if config.tune == "head":
            source: Source = features()
            tuned = Model(None, head)
            log = tune(tuned, source, settings, run.checkpoints / "head")
        else:
            source, tuned = raw, Model(backbone, head)
            if config.hold == "device" and isinstance(raw, Images):
                source = load_to_device(raw, device, reporter.progress)
            elif config.views_on == "device" and isinstance(raw, Images):
                source = DeviceViews(raw, device, decode=config.decode_on == "device")
            begun = distributed.run_on_main(lambda: load_newest(run.checkpoints / "all") is not None)
            if config.linear_init and not begun:
                reporter.message(f"linear init: {config.linear_init} epochs of the head on frozen features")
                rate = settings.lr if config.linear_lr is None else config.linear_lr
                first = dataclasses.replace(settings, epochs=config.linear_init, lr=rate, patience=0, compile="no")
                with warnings.catch_warnings():  # what begins later has the epochs after these
                    warnings.filterwarnings("ignore", ".* never starts in ")
                    tune(
                        Model(None, head),
                        features(),
                        first,
                        run.checkpoints / "head",
                        init_callback or reporter.callback,
                    )
            log = tune(tuned, source, settings, run.checkpoints / "all")
    except TooManyBadImages:
        if not (resume or run.read_log()):
            run.cancel_start()  # so that the same command with other options starts it
        raise
    finally:  # also when there are too many of them
        if isinstance(raw, Images) and distributed.is_main():
            raw.quarantine.write(run.bad_images)
    if isinstance(raw, Images) and len(raw.quarantine):
        reporter.message(f"{len(raw.quarantine)} of {len(raw)} images could not be read: see {run.bad_images}")
    run.write_log(log)
    if distributed.is_main():
        _write_model(run, Model(backbone, head), table.classes, config, size)
    run.write_repro_script(_repro(run, config, str(images) if isinstance(images, Path) else config.images))
    run.write_completion()
    if not len(outside):
        return None
    if config.mirror:  # features of mirror images are not cached
        tuned, source = Model(backbone.to(device), head), source if config.tune == "all" else raw
    logits = score_source(tuned, Subset(source, outside), device=device, mirror=config.mirror).logits
    left_out = table.subset(outside).known - hidden.known
    return distributed.run_on_main(
        lambda: _finish(run, logits, hidden, log, config, known.stats().annotations, left_out)
    )


def _start_from(run: RunFolder, model: Model, classes: Names) -> None:
    """Put the weights of a finished run into a model for the same classes."""
    before = Predictor.from_run(run)
    if list(before.classes) != list(classes):
        raise UserError(
            f"{run.folder} was trained on other classes", "go on with the same classes in the same order, or start anew"
        )
    try:
        model.load_state_dict(before.model.state_dict())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{run.folder} has another model ({reason})", "use its backbone, method and options, or start anew"
        ) from None


def _keep_split(run: RunFolder, images: Names, part: NDArray[np.int8]) -> NDArray[np.int8]:
    """What a run trained on must not be held out from the next: its images stay where they were."""
    before = run.split_of(images)
    return np.where(before < 0, part, before)


def _align(truth: LabelTable, table: LabelTable) -> LabelTable:
    """The rows and columns of `truth` in the order of `table`, by name."""
    images, classes = truth.images.index(table.images.array), truth.classes.index(table.classes.array)
    for kind, names, at in (("image", table.images, images), ("class", table.classes, classes)):
        if (at < 0).any():
            missing = names[int(np.flatnonzero(at < 0)[0])]
            raise UserError(f"the hidden labels have no {kind} {missing!r}", "give hidden labels of the same images")
    return truth.subset(images, classes)


def _finish(
    run: RunFolder,
    logits: Tensor,
    hidden: LabelTable,
    log: list[EpochLog],
    config: Config,
    annotations: NDArray[np.int64],
    left_out: int,
) -> Evaluation:
    """Thresholds, calibration and metrics from the held-out images, written to the run."""
    labels = torch.from_numpy(hidden.dense())
    readable = ~torch.isnan(logits).any(1)
    platt = fit_platt(logits, labels)
    scores = platt.scores(logits)
    if bool((labels < 0).any()):
        thresholds = metrics.best_thresholds(scores[readable], labels[readable]).float()
    else:
        thresholds = torch.full((len(hidden.classes),), 0.5)
    found = evaluate(logits, labels, hidden.classes, thresholds=thresholds, platt=platt, annotations=annotations)
    found = found.noting_excluded(left_out)
    run.write_calibration(platt, dict(zip(hidden.classes, thresholds.tolist(), strict=True)))
    run.write_metrics({"protocol": f"held-out images; {found.protocol}", **found.overall}, found.per_class)
    run.write_predictions(hidden.images.array, list(hidden.classes), scores.numpy())
    from halflabel.runs.model_card import model_card

    run.write_model_card(model_card(config.as_dict(), found, hidden))
    return found


def _write_model(run: RunFolder, model: Model, classes: Names, config: Config, size: int) -> None:
    about = {"classes": list(classes), "method": config.method, "size": size}
    # One entry: safetensors writes several in any order, and equal models are to be equal files.
    save_tensors(model.state_dict(), run.weights, {"halflabel": json.dumps(about)})


def _repro(run: RunFolder, config: Config, images: str) -> str:
    """A shell script that repeats the training with the labels of the run folder; it can be called from anywhere."""
    words = [os.path.abspath(images) if images else "", *config.as_arguments()]  # images in memory have no folder
    command = f'halflabel train "$here"/{run.labels.name} {shlex.join(words)} --out "$here"-again'
    return f'#!/bin/sh\nhere=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit\n{command}\n'


class _LogWriter(Callback):
    """Writes the log of the run after each epoch."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.lines: list[EpochLog] = []

    def _written(self) -> list[dict[str, Any]]:
        try:
            return self.run.read_log()
        except UserError:  # a damaged log: checkpoints hold another, which replaces it at the end
            return []

    def on_epoch_end(self, log: EpochLog) -> None:
        if not self.lines:
            self.lines = [EpochLog(old) for old in self._written() if old.get("epoch", math.inf) < log["epoch"]]
        self.lines.append(log)
        self.run.write_log(self.lines)
