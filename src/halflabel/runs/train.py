"""Training one classifier from labels and images, as a run folder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
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
from halflabel.runs.run_files import write_digests
from halflabel.system import distributed
from halflabel.system.files import write_csv
from halflabel.system.reporter import SILENT, Reporter


@dataclass
class TrainingJob:
    """One training, and what is opened for it; the images are a folder, or uint8 images (N, 3, H, W).

    `truth` holds labels of the same images that the method must not see: the log says how many of its guesses are
    right. `cache` is the folder of the features, by default that of the run.
    """

    labels: Labels
    images: Path | Tensor
    config: Config
    run: RunFolder
    truth: Table | None = None
    resume: bool = False
    cache: Path | None = None
    reporter: Reporter = SILENT

    def start(self, reporter: Reporter = SILENT) -> Evaluation | None:
        """Train and write the run folder; return the evaluation by labels that the model did not see, if any.

        Without any known label the model is that of the class names, and nothing is measured. Labels made by a model
        are never used for evaluation. Of several processes only the first one writes.
        """
        check_own_metrics()
        run, self.reporter = self.run, reporter
        if run.store is not None and distributed.is_main():
            callbacks = (each for each in (reporter.callback, run.store) if each is not None)
            self.reporter = replace(reporter, callback=CallbackList(*callbacks))
        with run.lock_for_training(resume=self.resume):
            evaluation = self._train()
        if self.config.begin_from:
            run.inherit_fill_options(RunFolder(self.config.begin_from))
        return evaluation

    def _train(self) -> Evaluation | None:
        device = choose_device(self.config.device)
        self._check()
        self._open_images()
        run, truth = self.run, self.truth
        if not self.resume:  # settings and images have been checked by now
            self.truth = truth = None if truth is None else _align(truth, self.table)
        if distributed.is_main():
            if not self.resume:
                run.start(self.labels, self._settings(), truth)
            run.remove_temporary_files()
            run.write_env(device)
            if run.store is not None:
                run.store.upload()
        try:
            fitted = self._fit()
        except TooManyBadImages:
            if distributed.is_main() and not (self.resume or run.read_log()):
                run.cancel_start()  # so that the same command with other options starts it
            raise
        finally:  # also when there are too many of them
            if isinstance(self.source, Images) and distributed.is_main():
                self.source.quarantine.write()
        if isinstance(self.source, Images):
            self._report_bad_images(self.source)
            share_what_was_read(self.source)
        if fitted.config is not None and fitted.crossfit is not None and fitted.crossfit.measured:
            self.config = fitted.config  # with the methods that were taken
            self.reporter.message(f"taken: {self.assembly.describe(self.table)}")
        evaluation = distributed.run_on_main(lambda: self._write(fitted))
        return evaluation if self.table.known else None

    @property
    def table(self) -> Table:
        return self.labels.training

    @property
    def assembly(self) -> Assembly:
        return Assembly(self.config)

    def _settings(self) -> dict[str, object]:
        return {**self.config.as_dict(), "size": self.size}

    def _check(self) -> None:
        tell, labels, config, table = self.reporter.message, self.labels, self.config, self.table
        assembly = self.assembly
        if chosen := labels.people.known - labels.unchosen.known:
            tell(
                f"{chosen} answers are trained on, but not used for evaluation: their questions were chosen, so they "
                "are not a random sample"
            )
        if labels.control is not None and labels.control.nnz:
            use = "correct probabilities that rest on an assumption; likely entries were asked about more often"
            if labels.is_asked:
                use = "are all that can tell how good the model is: precision, recall and F1 are estimated by them"
            tell(f"{labels.control.nnz} answers to random questions are trained on, and {use}")
        if model_made := table.known - labels.people.known:
            tell(
                f"{model_made} of {table.known} labels were made by a model: they are trained on, but only the "
                "others are used for evaluation"
            )
        assembly.make_method()  # raises for unsuitable options
        if table.known:
            self._check_regime()
        if table.uncertain is not None:
            tell(
                f"{table.uncertain.nnz} uncertain labels are {describe_reading(config.uncertain)}, and never "
                "used for evaluation"
            )
        is_measured = config.candidates and config.l2_strength is None and table.known
        if not is_measured or not assembly.uses_solver(table):  # else what is taken is described afterwards
            tell(assembly.describe(table))
        self.backbone = assembly.make_backbone()
        self.size = config.size or self.backbone.preprocess.size
        # Plain batches of the whole network do not use names: its features change.
        is_plain = config.tune == "all" and not assembly.tunes_from_frozen
        named = None if is_plain and table.known else self.backbone
        self.likeness = assembly.likeness(named, table.classes, self._cache, self.reporter)
        if not table.known and config.tune == "all":
            raise UserError("class names rank photos by a frozen backbone", "leave ‹tune=all› out")
        if not table.known and self.likeness is None:
            self._check_regime()

    def _check_regime(self) -> None:
        self.assembly.recipe.check_regime(self.assembly.training_table(self.table).stats.regime)

    @property
    def _cache(self) -> Path:
        return self.cache if self.cache is not None else self.run.cache

    def _open_images(self) -> None:
        config, names, views = self.config, self.table.images, self.config.views(self.backbone)
        self.source: Images | Arrays
        if isinstance(self.images, Tensor):
            self.source = Arrays(self.images, names, views)
        else:
            # The list of an older run stays as it is until this one starts.
            listed = self.run.bad_images if self.resume or not self.run.is_started else None
            how = {"max_bad": config.max_bad, "bad_images": listed}
            self.source = open_images(names, self.images, views, workers=config.workers, **how)  # type: ignore[arg-type]
            self.source.quarantine.path = self.run.bad_images
            if config.tune == "all" and isinstance(self.source, StoredFeatures):
                fix = "name the folder of the images, or leave it out"
                raise UserError("‹tune=all› needs images, not features", fix)
        self.groups = group_images(config.group, names, self.source, self.reporter)

    def _features(self) -> Features:
        features = self.assembly.features(
            self.backbone, self.source, len(self.table.classes), self._cache, reporter=self.reporter
        )
        may_hint = self.config.group is None and features.values.ndim == 2
        if may_hint and (warning := describe_near_copies(pooled_features(features))) is not None:
            self.reporter.message(warning)
        return features

    def _training_source(self) -> Source:
        """Return where images come from: files, or with --tune all the GPU."""
        if self.config.tune == "head":
            return self.source
        return fastest_source(self.source, choose_device(self.config.device), self.reporter.progress)

    def _fit(self) -> Fit:
        """Fit the model, from the weights of the run that this one continues, if there is one."""
        config, run, reporter = self.config, self.run, self.reporter
        part, begin = None, None
        if self.table.known and not self.assembly.uses_solver(self.table):
            part = hold_out(self.labels.evaluation, config, self.groups)
            if config.begin_from is not None:  # images that the earlier run was trained on must not be held out
                earlier = RunFolder.open(config.begin_from)
                before = earlier.split_of(self.table.images)
                part = np.where(before < 0, part, before)

                def begin(model: Network, *_: object) -> None:
                    _load_weights_of(earlier, trained_part(Network(self.backbone, model.head)), self.table.classes)

            if config.held_out and not (part == 1).any():
                reporter.message("too few images to hold any out: nothing is measured")
        callback = CallbackList(_LogWriter(run), reporter.callback or Callback())
        watch = Watch(reporter, callback, run.checkpoints, self.resume, self.truth)
        inputs = Inputs(self._features, self.backbone, self._training_source, self.groups, likeness=self.likeness)
        if (alone := inputs.measure_names(self.labels.evaluation)) is not None and self.likeness is not None:
            if distributed.is_main():
                header = ("class", "most like", "AP of the name")
                write_csv(run / "names.csv", header, names_rows(alone, self.likeness))
            if line := describe_names(alone):
                reporter.message(line)
        fitted = fit(self.labels, inputs, config, part=part, begin=begin, watch=watch)
        if fitted.crossfit is not None:
            if measured := fitted.crossfit.measured:
                names = [each.config.named for each in self.assembly.others(config.candidates)]
                reporter.message("methods, by the mean AP of out-of-fold scores on the known labels:")
                for line in measured_lines(measured, names, fitted.crossfit.members):
                    reporter.message(line)
            reporter.message(fitted.crossfit.choice)
        return fitted

    def _report_bad_images(self, source: Images) -> None:
        if bad := len(source.quarantine):
            image, _, reason = source.quarantine.rows[0]
            which = f"{image} ({reason})" if bad == 1 else f"see {self.run.bad_images}"
            self.reporter.message(f"{bad} of {len(source)} images could not be read: {which}")

    def _write(self, fitted: Fit) -> Evaluation | None:
        run, config, classes = self.run, self.config, self.table.classes
        run.write_config(self._settings())
        run.write_log(fitted.log)
        if isinstance(self.source, Images):
            write_digests(run.digests, self.table.images, self.source.digests)
        if fitted.scores is not None:
            run.write_scores(fitted.scores)
        network = Network(fitted.model.backbone or self.backbone, fitted.model.head)
        about = {"classes": list(classes), "method": config.method, "size": self.size}
        # One entry: safetensors writes several in any order, and equal models are to be equal files.
        save_tensors(network.state_dict(), run.weights, {"halflabel": json.dumps(about)})
        run.write_checksums(run.weights.name)
        run.write_completion(self.assembly.describe(self.table))
        evaluation = None if fitted.scores is None else self._evaluate(fitted.scores)
        if self.reporter.callback is not None:
            self.reporter.callback.on_training_end({} if evaluation is None else evaluation.overall)
        return evaluation

    def _evaluate(self, scores: Scores) -> Evaluation:
        run, rows = self.run, self.table.images.index(scores.images.array)
        (calibration, thresholds), evaluation = evaluate(
            scores,
            self.labels,
            positives_per_image=self.config.positives_per_image,
            groups=None if self.groups is None else self.groups[rows],
        )
        if calibration.assumption:
            self.reporter.message(
                f"Probabilities assume that {calibration.assumption}. To assume less, answer random questions "
                "(halflabel review) and train with the answers, or state ‹positives_per_image›"
            )
        elif self.table.stats.regime != "full":
            self.reporter.message(
                "Probabilities assume that an unknown label is present as often as known labels with the same score "
                "are. To assume less, answer random questions (halflabel review)"
            )
        held_out = self.labels.evaluation.subset(rows)
        run.write_calibration(calibration, dict(zip(held_out.classes, thresholds.tolist(), strict=True)))
        protocol = f"{MEASURED_ON[scores.kind]}; {evaluation.protocol}"
        run.write_metrics({"protocol": protocol, **evaluation.overall}, evaluation.per_class)
        description = self.assembly.describe(self.table)
        card = model_card(self.config.as_dict(), description, evaluation, held_out, scores.kind)
        run.write_text("model_card.md", card)
        return evaluation


def train(
    labels: Table | Labels,
    images: Path | Tensor,
    config: Config,
    run: RunFolder,
    *,
    reporter: Reporter = SILENT,
    cache: Path | None = None,
    resume: bool = False,
) -> Evaluation | None:
    """Train one classifier and write the run folder, see `TrainingJob`."""
    return TrainingJob(Labels.of(labels), images, config, run, resume=resume, cache=cache).start(reporter)


def _load_weights_of(run: RunFolder, model: Network, classes: Names) -> None:
    """Put the weights of a finished run into a model for the same classes."""
    before = Model.open(run)
    if list(before.classes) != list(classes):
        raise UserError(
            f"{run.folder} was trained on other classes", "use the same classes in the same order, or start a new run"
        )
    try:
        load_state(model, trained_part(before.network).state_dict())
    except RuntimeError as error:
        raise UserError(
            f"{run.folder} has another model ({error_summary(error)})",
            "use its backbone, method and options, or start a new run",
        ) from None


def _align(truth: Table, table: Table) -> Table:
    """Return the rows and columns of `truth` in the order of `table`, by name."""

    def find(kind: str, names: Names, place: NDArray[np.int64]) -> NDArray[np.int64]:
        if (place < 0).any():
            missing = names[int(np.flatnonzero(place < 0)[0])]
            raise UserError(f"the hidden labels have no {kind} {missing!r}", "give hidden labels of the same images")
        return place

    images = find("image", table.images, truth.images.index(table.images.array))
    return truth.subset(images, find("class", table.classes, truth.classes.index(table.classes.array)))


class _LogWriter(Callback):
    """Writes the log of the run after each epoch."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.lines: list[EpochLog] = []

    def on_epoch_end(self, log: EpochLog) -> None:
        if not self.lines:
            try:
                written = self.run.read_log()
            except UserError:  # a damaged log: checkpoints hold another, which replaces it at the end
                written = []
            self.lines = [EpochLog(old) for old in written if old.get("epoch", math.inf) < log["epoch"]]
        self.lines.append(log)
        self.run.write_log(self.lines)
