"""Training one classifier from labels and images, as a run directory on the disk."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from halflabel.errors import UserError, error_summary
from halflabel.evaluation.evaluate import Evaluation, evaluate
from halflabel.evaluation.registry import check_own_metrics
from halflabel.evaluation.scores import MEASURED_ON, Scores
from halflabel.features.combined import trained_part
from halflabel.features.heads import Model as Network
from halflabel.features.near_copies import describe_near_copies
from halflabel.fitting.advice import describe_names, names_rows
from halflabel.fitting.assembly import Assembly, pooled_features
from halflabel.fitting.callbacks import Callback, CallbackList, EpochLog
from halflabel.fitting.checkpoint import load_state, save_tensors
from halflabel.fitting.config import Config
from halflabel.fitting.device import choose_device
from halflabel.fitting.fit import Fit, Inputs, Watch, fit, hold_out
from halflabel.fitting.measured import measured_lines
from halflabel.images.device_views import fastest_source
from halflabel.images.quarantine import TooManyBadImages
from halflabel.images.sources import (
    Arrays,
    Features,
    Images,
    Source,
    group_images,
    open_images,
    share_what_was_read,
)
from halflabel.images.stored_features import StoredFeatures
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.labels.uncertain import describe_reading
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.model_card import model_card
from halflabel.runs.run_files import write_checksums
from halflabel.system import distributed
from halflabel.system.files import absolute_path
from halflabel.system.reporter import SILENT, Reporter


def train(
    labels: Table | Labels,
    images: Path | Tensor,
    config: Config,
    run: RunFolder,
    *,
    reporter: Reporter = SILENT,
    init_callback: Callback | None = None,
    cache: Path | None = None,
    truth: Table | None = None,
    resume: bool = False,
) -> Evaluation | None:
    """Train one classifier on a folder of images, or on (N, 3, H, W) uint8 images, and write the run folder.

    Without any known label the model is that of the class names, and nothing is measured.
    Labels made by a model are trained on, but never used for evaluation. In a linear fit every image is
    evaluated by its out-of-fold scores; in batches a share of the images is held out. `truth` holds labels of the same
    images that the method must not see: the log says how many of its guesses are right. `init_callback` is called in
    the epochs of the linear init, in place of `reporter.callback`. Returns the evaluation, if anything was held out.
    Of several processes only the first one writes.
    """
    check_own_metrics()
    if run.store is not None and distributed.is_main():
        callbacks = (each for each in (reporter.callback, run.store) if each is not None)
        reporter = dataclasses.replace(reporter, callback=CallbackList(*callbacks))
    with run.lock_for_training(resume=resume):
        return _train(_Job(Labels.of(labels), images, config, run, reporter, cache, truth, resume), init_callback)


def _train(job: _Job, init_callback: Callback | None) -> Evaluation | None:
    """Check the job, start the run, fit the head or the network and write the results."""
    run, config, resume = job.run, job.config, job.resume
    job.check()
    job.open_images()
    if not resume:  # settings and images have been checked by now
        job.truth = _align(job.truth, job.table) if job.truth is not None else None
        run.start(job.labels, {**config.as_dict(), "size": job.size}, job.truth)
    run.remove_temporary_files()
    run.write_env(job.device)
    if run.store is not None and distributed.is_main():
        run.store.upload()
    try:
        fitted = _fit(job, init_callback)
    except TooManyBadImages:
        if not (resume or run.read_log()):
            run.cancel_start()  # so that the same command with other options starts it
        raise
    finally:  # also when there are too many of them
        job.write_bad_images()
    job.report_bad_images()
    if fitted.config is not None and fitted.crossfit is not None and fitted.crossfit.measured:
        job.set_config(fitted.config)
        if distributed.is_main():
            run.write_config({**job.config.as_dict(), "size": job.size})
    run.write_log(fitted.log)
    if isinstance(job.source, Images):
        share_what_was_read(job.source)
        run.write_digests(job.table.images, job.source.digests)
    scores = fitted.scores
    if scores is not None:
        run.write_scores(scores)
    if distributed.is_main():
        network = fitted.model.backbone or job.backbone
        _write_model(run, Network(network, fitted.model.head), job.table.classes, job.config, job.size)
    images = str(job.image_folder) if isinstance(job.image_folder, Path) else config.images
    run.write_text("repro.sh", _repro(run, images))
    run.write_completion(job.assembly.describe(job.table))
    evaluation = None if scores is None else distributed.run_on_main(lambda: _finish(job, scores))
    if job.reporter.callback is not None and distributed.is_main():
        job.reporter.callback.on_training_end({} if evaluation is None else evaluation.overall)
    return evaluation if job.table.known else None


@dataclass
class _Job:
    """One training: labels, configuration and run, and what is opened for it."""

    labels: Labels
    image_folder: Path | Tensor
    config: Config
    run: RunFolder
    reporter: Reporter
    cache: Path | None
    truth: Table | None
    resume: bool

    def set_config(self, config: Config) -> None:
        """Take a configuration with other methods."""
        self.config, self.assembly = config, Assembly(config)
        self.reporter.message(f"taken: {self.assembly.describe(self.table)}")

    def check(self) -> None:
        """Check method and labels, and load the backbone."""
        self.assembly = Assembly(self.config)
        self.table, people = self.labels.training, self.labels.people
        self.evaluation_table, self.control = self.labels.evaluation, self.labels.control
        random = self.control.nnz if self.control is not None else 0
        if chosen := people.known - self.labels.unchosen.known:
            self.reporter.message(
                f"{chosen} answers are trained on, but not used for evaluation: their questions were chosen, so they "
                "are not a random sample"
            )
        if random:
            use = "correct probabilities that rest on an assumption; likely entries were asked about more often"
            if self.labels.is_asked:
                use = "are all that can tell how good the model is: precision, recall and F1 are estimated by them"
            self.reporter.message(f"{random} answers to random questions are trained on, and {use}")
        if model_made := self.table.known - people.known:
            self.reporter.message(
                f"{model_made} of {self.table.known} labels were made by a model: they are trained on, but only the "
                "others are used for evaluation"
            )
        self.method = self.assembly.make_method()
        if self.table.known:
            self.check_regime()
        if self.table.uncertain is not None:
            self.reporter.message(
                f"{self.table.uncertain.nnz} uncertain labels are {describe_reading(self.config.uncertain)}, and never "
                "used for evaluation"
            )
        is_measured = self.config.candidates and self.config.l2_strength is None and self.table.known
        if not is_measured or not self.assembly.uses_solver(self.table):  # else what is taken is described afterwards
            self.reporter.message(self.assembly.describe(self.table))
        self.device = choose_device(self.config.device)
        self.backbone = self.assembly.make_backbone()
        self.size = self.config.size or self.backbone.preprocess.size
        # Plain batches of the whole network do not use names: its features change.
        is_plain = self.config.tune == "all" and not self.assembly.tunes_from_frozen
        named = None if is_plain and self.table.known else self.backbone
        self.likeness = self.assembly.likeness(named, self.table.classes, self.cache_folder, self.reporter)
        if not self.table.known and self.config.tune == "all":
            raise UserError("class names rank photos by a frozen backbone", "leave ‹tune=all› out")
        if not self.table.known and self.likeness is None:
            self.check_regime()

    def check_regime(self) -> None:
        self.assembly.recipe.check_regime(self.assembly.training_table(self.table).stats.regime)

    def open_images(self) -> None:
        views = self.config.views(self.backbone)
        self.source: Images | Arrays
        if isinstance(self.image_folder, Tensor):
            self.source = Arrays(self.image_folder, self.table.images, views)
            self.groups = group_images(self.config.group, self.table.images, self.source)
            return
        # The list of an older run stays as it is until this one starts.
        bad_images = self.run.bad_images if self.resume or not self.run.is_started else None
        self.source = open_images(
            self.table.images,
            self.image_folder,
            views,
            workers=self.config.workers,
            max_bad=self.config.max_bad,
            bad_images=bad_images,
        )
        self.source.quarantine.path = self.run.bad_images
        if self.config.tune == "all" and isinstance(self.source, StoredFeatures):
            raise UserError("‹tune=all› needs images, not features", "name the folder of the images, or leave it out")
        self.groups = group_images(self.config.group, self.table.images, self.source, self.reporter)

    @property
    def cache_folder(self) -> Path:
        return self.cache if self.cache is not None else self.run.cache

    def features(self) -> Features:
        features = self.assembly.features(
            self.backbone, self.source, len(self.table.classes), self.cache_folder, reporter=self.reporter
        )
        may_hint = self.config.group is None and features.values.ndim == 2
        if may_hint and (warning := describe_near_copies(pooled_features(features))) is not None:
            self.reporter.message(warning)
        return features

    def write_bad_images(self) -> None:
        if isinstance(self.source, Images) and distributed.is_main():
            self.source.quarantine.write()

    def report_bad_images(self) -> None:
        if isinstance(self.source, Images) and (bad := len(self.source.quarantine)):
            image, _, reason = self.source.quarantine.rows[0]
            which = f"{image} ({reason})" if bad == 1 else f"see {self.run.bad_images}"
            self.reporter.message(f"{bad} of {len(self.source)} images could not be read: {which}")


def _fit(job: _Job, init_callback: Callback | None) -> Fit:
    """Fit the model, from the weights of the run that this one continues, if there is one."""
    config, run, reporter = job.config, job.run, job.reporter
    part, begin = None, None
    if job.table.known and not job.assembly.uses_solver(job.table):
        part = hold_out(job.evaluation_table, config, job.groups)
        if config.begin_from is not None:  # images that the earlier run was trained on must not be held out
            earlier = RunFolder.open(config.begin_from)
            before = earlier.split_of(job.table.images)
            part = np.where(before < 0, part, before)

            def begin(model: Network, *_: object) -> None:
                _load_weights_of(earlier, trained_part(Network(job.backbone, model.head)), job.table.classes)

        if config.held_out and not (part == 1).any():
            reporter.message("too few images to hold any out: nothing is measured")
    log_writer = _LogWriter(run)
    watch = Watch(
        reporter,
        CallbackList(log_writer, reporter.callback or Callback()),
        CallbackList(log_writer, init_callback or reporter.callback or Callback()),
        run.checkpoints,
        job.resume,
        job.truth,
    )
    inputs = Inputs(job.features, job.backbone, partial(_training_source, job), job.groups, likeness=job.likeness)
    if (alone := inputs.measure_names(job.evaluation_table)) is not None:
        assert job.likeness is not None
        run.write_csv("names.csv", ("class", "most like", "AP of the name"), names_rows(alone, job.likeness))
        if line := describe_names(alone):
            reporter.message(line)
    fitted = fit(job.labels, inputs, config, part=part, begin=begin, watch=watch)
    if fitted.crossfit is not None:
        if measured := fitted.crossfit.measured:
            names = [each.config.named for each in job.assembly.others(config.candidates)]
            reporter.message("methods, by the mean AP of out-of-fold scores on the known labels:")
            for line in measured_lines(measured, names, fitted.crossfit.members):
                reporter.message(line)
        reporter.message(fitted.crossfit.choice)
    return fitted


def _load_weights_of(run: RunFolder, model: Network, classes: Names) -> None:
    """Put the weights of a finished run into a model for the same classes."""
    before = Model.open(run)
    if list(before.classes) != list(classes):
        raise UserError(
            f"{run.folder} was trained on other classes", "use the same classes in the same order, or start a new run"
        )
    state = trained_part(before.network).state_dict()
    try:
        load_state(model, state)
    except RuntimeError as error:
        raise UserError(
            f"{run.folder} has another model ({error_summary(error)})",
            "use its backbone, method and options, or start a new run",
        ) from None


def _training_source(job: _Job) -> Source:
    """Return where images come from: files, or with --tune all the GPU."""
    config, source = job.config, job.source
    if config.tune == "head":
        return source
    return fastest_source(source, job.device, job.reporter.progress)


def _align(truth: Table, table: Table) -> Table:
    """The rows and columns of `truth` in the order of `table`, by name."""
    images, classes = truth.images.index(table.images.array), truth.classes.index(table.classes.array)
    for kind, names, at in (("image", table.images, images), ("class", table.classes, classes)):
        if (at < 0).any():
            missing = names[int(np.flatnonzero(at < 0)[0])]
            raise UserError(f"the hidden labels have no {kind} {missing!r}", "give hidden labels of the same images")
    return truth.subset(images, classes)


def _finish(job: _Job, scores: Scores) -> Evaluation:
    """Write thresholds, calibration and metrics from scores of images by models that did not see their labels."""
    run, rows = job.run, job.table.images.index(scores.images.array)
    (calibration, thresholds), evaluation = evaluate(
        scores,
        job.labels,
        positives_per_image=job.config.positives_per_image,
        groups=None if job.groups is None else job.groups[rows],
    )
    if calibration.assumption:
        job.reporter.message(
            f"Probabilities assume that {calibration.assumption}. To assume less, answer random questions "
            "(halflabel review) and train with the answers, or state ‹positives_per_image›"
        )
    elif job.table.stats.regime != "full":
        job.reporter.message(
            "Probabilities assume that an unknown label is present as often as known labels with the same score are. "
            "To assume less, answer random questions (halflabel review)"
        )
    held_out = job.evaluation_table.subset(rows)
    run.write_calibration(calibration, dict(zip(held_out.classes, thresholds.tolist(), strict=True)))
    protocol = f"{MEASURED_ON[scores.kind]}; {evaluation.protocol}"
    run.write_metrics({"protocol": protocol, **evaluation.overall}, evaluation.per_class)
    run.write_text(
        "model_card.md",
        model_card(job.config.as_dict(), job.assembly.describe(job.table), evaluation, held_out, scores.kind),
    )
    return evaluation


def _write_model(run: RunFolder, model: Network, classes: Names, config: Config, size: int) -> None:
    about = {"classes": list(classes), "method": config.method, "size": size}
    # One entry: safetensors writes several in any order, and equal models are to be equal files.
    save_tensors(model.state_dict(), run.weights, {"halflabel": json.dumps(about)})
    write_checksums(run.folder, run.weights.name)


def _repro(run: RunFolder, images: str) -> str:
    """A shell script that repeats the training with the labels of the run folder; it can be called from anywhere."""
    place = shlex.quote(absolute_path(images) if images else "")  # images in memory have no folder
    files = f'"$here"/{run.labels.name} {place} --config "$here"/config.yaml'
    command = f'halflabel train {files} --out "$here"-again'
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
