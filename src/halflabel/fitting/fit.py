"""`fit`, which every command and class that trains calls: from labels and images to a model and unbiased scores.

A method with a linear loss is fitted by L-BFGS on pooled features, with out-of-fold scores; every other system is
trained in epochs of batches, and scores the images that were held out.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import NoReadableImage, UserError
from halflabel.evaluation.evaluate import Evaluation, ValidationMetric, measure
from halflabel.evaluation.ranking import ranking_quality
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import Backbone
from halflabel.features.combined import BackbonePair, Combined, frozen_copy, trained_part
from halflabel.features.heads import Head, Linear, Model, NormalisedHead, NormalisedLinear
from halflabel.features.names import NameScores
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly, pooled_features, solver_hindrance
from halflabel.fitting.auto import choose
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.checkpoint import load_newest
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import FOLDS, Basis, CrossFit, best_inside, crossfit
from halflabel.fitting.loop import Fitted
from halflabel.fitting.loop import fit as fit_epochs
from halflabel.fitting.solver import cross_entropy
from halflabel.fitting.whole import (
    Member,
    Mix,
    combine,
    refit_head,
    regularised_head,
    soft_targets,
    sum_of,
    taught_by,
)
from halflabel.images.sources import Features, Source, Subset
from halflabel.labels.labels import Labels
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import Method, Recipe
from halflabel.system import distributed, memory
from halflabel.system.format import duration
from halflabel.system.reporter import SILENT, Reporter
from halflabel.types import Sweep

TRAINED, HELD_OUT, LEFT_OUT = 0, 1, 2  # parts of the images

_SHOWN_PER_IMAGE = 1.5  # classes, as long as nothing is known
_HEAD_EPOCHS = 10  # of a head that cannot begin with a linear one, before the network is tuned
_TRIAL_IMAGES = 4  # of the training steps that tell how long a CPU would take
_LONGEST_ON_CPU = 600.0  # seconds of training that begin without a GPU although none was asked for
_FURTHEST_RATE = 30.0  # times the learning rate of the method, or a fraction of it: rates beyond are not tried
_FEW = 5  # of so many epochs one is trained to choose the rate

Begin = Callable[[Model, Method, Table], object]  # sets the weights that training in batches begins with


@dataclass
class Inputs:
    """The images of the labels, in their order: cached features, computed when they are first needed, and views.

    `of_backbone` False is for features that are any numbers. Images of one of the `groups` (N,) stay together.
    `likeness` (C, K) compares the names of the classes with those that the backbone was pretrained with.
    """

    make_features: Callable[[], Source]
    backbone: Backbone | None = None
    make_images: Callable[[], Source] | None = None
    groups: NDArray[np.int64] | None = None
    of_backbone: bool = True
    channels: int = 0  # of the features, where there is no backbone
    device: str = "cpu"  # where a linear head is fitted
    likeness: NDArray[np.float32] | None = None

    @cached_property
    def features(self) -> Source:
        return self.make_features()

    @cached_property
    def bases(self) -> list[Basis]:
        """Principal components of the normalised features: of all of them, and of each block if there are two."""
        backbone, features = self.backbone, pooled_features(self.features)
        about: dict[str, Any] = {"of_backbone": self.of_backbone, "device": self.device}
        if backbone is None:
            return Basis.of(features, **about)
        bases, names = Basis.of(features, backbone.classifier, blocks=backbone.blocks, **about), self.scores_of_names
        return bases if names is None else [basis.with_names(self.names, names) for basis in bases]

    @property
    def basis(self) -> Basis:
        return self.bases[0]

    @cached_property
    def _fitted_names(self) -> tuple[NameScores | None, Tensor | None]:
        backbone = self.backbone
        if backbone is None or self.likeness is None or backbone.name_classifier is None:
            return None, None
        is_map = isinstance(self.features, Features) and self.features.values.ndim == 4
        if is_map and backbone.has_own:  # the vector that names are compared with is not the mean of the map
            return None, None
        scorer, scores = NameScores.fit(backbone.name_classifier, self.likeness, pooled_features(self.features))
        return scorer, scores.cpu()

    @property
    def names(self) -> NameScores | None:
        """Scores of the classes from their names; None without their likeness, or a backbone to compare."""
        return self._fitted_names[0]

    @property
    def scores_of_names(self) -> Tensor | None:
        """The scores (N, C) of the images from class names, NaN for unreadable ones."""
        return self._fitted_names[1]

    def logits_of_names(self) -> Tensor:
        """Return the logits (N, C) of class names alone: their scores + b, NaN for unreadable images.

        b is such that an image shows about 1.5 of the classes; nothing measures that.
        """
        assert self.scores_of_names is not None
        return self.scores_of_names + _bias_of_names(self.scores_of_names.shape[1])

    def measure_names(self, table: Table) -> Evaluation | None:
        """Measure the scores from class names alone on known labels of the images; None without names."""
        if self.scores_of_names is None:
            return None
        return measure(self.scores_of_names, torch.from_numpy(table.dense()), table.classes, groups=self.groups)

    @cached_property
    def images(self) -> Source | None:
        return None if self.make_images is None else self.make_images()

    def width(self, *, maps: bool) -> int:
        return self.channels if self.backbone is None else self.backbone.width(maps=maps)


@dataclass(frozen=True)
class Watch:
    """Who is told about training in epochs, where its checkpoints are, and labels that the method must not see."""

    reporter: Reporter = SILENT
    callback: Callback | None = None
    folder: Path | None = None
    resume: bool = False
    truth: Table | None = None


@dataclass(frozen=True)
class Fit:
    """A model, and the scores of images whose labels it did not see; None if no image was held out."""

    scores: Scores | None
    log: list[EpochLog]
    trained: Model | None = None  # in batches
    crossfit: CrossFit | None = None  # of L-BFGS
    epochs: Fitted | None = None  # of training in batches
    head_log: Sequence[EpochLog] = ()  # of the epochs of the head alone
    assumes_absent: bool | None = None  # whether unknown labels counted as absent where something was chosen
    config: Config | None = None  # of a linear fit: with the methods that were taken

    @property
    def model(self) -> Model:
        """The model: without a backbone unless it was tuned."""
        if self.trained is not None:
            return self.trained
        assert self.crossfit is not None
        return Model(None, self.crossfit.head)


def fit(
    labels: Labels,
    inputs: Inputs,
    config: Config,
    *,
    recipe: Recipe | None = None,
    choosing: Table | None = None,
    folds: int | None = None,
    part: NDArray[np.int8] | None = None,
    validation: tuple[Source, Table] | None = None,
    begin: Begin | None = None,
    start: Fit | None = None,
    watch: Watch = Watch(),
) -> Fit:
    """Fit the model of a configuration to all labels in `labels.training`; without any, to the names of the classes.

    The labels of `choosing`, by default `labels.choosing`, choose the strength of L-BFGS; those of `labels.evaluation`
    on held-out images, or of `validation`, choose the epoch of batches. `part` says which images are held out or left
    out, by default `hold_out`. With `folds` each image is scored by a model without its fold, in batches too; then
    there is no model of all images. `start` is an earlier fit to fewer labels of the same images: a linear head is
    fitted from its solution.
    """
    assembly = Assembly(config, recipe)
    table = labels.training
    inputs.device = assembly.device
    if not table.known and inputs.names is not None:
        return _fit_nothing(labels, inputs, config)
    assembly.recipe.check_regime(assembly.training_table(table).stats.regime)
    if assembly.uses_solver(table):
        return _fit_linear(assembly, labels, inputs, choosing, folds, start, watch)
    if folds is not None:
        return _fit_folds(assembly, labels, inputs, folds)
    if part is None:
        part = hold_out(labels.evaluation, config, inputs.groups)
    # A whole network is tuned from the frozen recipe on, unless the images that validate it are given.
    can_start = assembly.tunes_from_frozen and inputs.backbone is not None and validation is None
    inside = table.subset(np.flatnonzero(part == TRAINED))
    way = _Whole if can_start and solver_hindrance(cross_entropy(), "bce", inside) is None else _Batches
    return way(assembly, labels, inputs, part, choosing, validation, begin, watch).fit()


def _fit_nothing(labels: Labels, inputs: Inputs, config: Config) -> Fit:
    """Return the model of class names alone, for images of which nothing is known."""
    table, count = labels.training, len(labels.classes)
    head = NormalisedLinear(inputs.basis.transform, count, names=inputs.names)
    for buffer, value in ((head.linear.weight, 0.0), (head.linear.bias, _bias_of_names(count)), (head.trust, 1.0)):
        assert buffer is not None
        buffer.data.fill_(value)
    fold = assign_parts(table, [1 / FOLDS] * FOLDS, groups=inputs.groups, seed=config.seed)
    scores = Scores(table.images, table.classes, inputs.logits_of_names().numpy(), fold, "out-of-fold")
    return Fit(scores, [], Model(None, head.cpu().eval()))


def _bias_of_names(classes: int) -> float:
    share = min(_SHOWN_PER_IMAGE / classes, 0.5)
    return math.log(share / (1 - share)) - 0.5  # the mean of exp(x) is e^½ where x is normal


def hold_out(table: Table, config: Config, groups: NDArray[np.int64] | None) -> NDArray[np.int8]:
    """Return 1 for images that are held out for validation, 0 for others; stratified by the labels that evaluate."""
    share = config.held_out
    if not share:
        return np.zeros(len(table), np.int8)
    return assign_parts(table, (1 - share, share), groups=groups, seed=config.seed)


def _fit_linear(
    assembly: Assembly,
    labels: Labels,
    inputs: Inputs,
    choosing: Table | None,
    folds: int | None,
    start: Fit | None,
    watch: Watch,
) -> Fit:
    config, table = assembly.config, labels.training
    choosing = labels.choosing if choosing is None else choosing
    assembly.recipe.check_way(config.options, "linear")
    measured = [] if config.l2_strength is not None or folds is not None else assembly.others(config.candidates)
    methods = measured or [assembly, *assembly.others(config.averaged_with)]
    fitted = crossfit(
        inputs.bases,
        assembly.training_table(table),
        [each.make_method for each in methods],
        measure=bool(measured),
        strength=config.l2_strength,
        use_similar=config.similar,
        evaluation=choosing,
        unchosen=labels.unchosen,
        groups=inputs.groups,
        folds=folds,
        seed=config.seed,
        progress=watch.reporter.fits,
        start=None if start is None else start.crossfit,
    )
    scores = Scores(table.images, table.classes, fitted.logits, fitted.fold, "out-of-fold")
    named = [methods[member].config for member in fitted.members]
    with_others = ", ".join(each.named for each in named[1:])
    chosen = dataclasses.replace(config, method=named[0].method, options=named[0].options, averaged_with=with_others)
    return Fit(scores, fitted.log, crossfit=fitted, assumes_absent=not (choosing.value < 0).any(), config=chosen)


def _fit_folds(assembly: Assembly, labels: Labels, inputs: Inputs, folds: int) -> Fit:
    """Train a model per fold, without its images, and score them; the last epoch counts, as nothing is held out."""
    table, config = labels.training, assembly.config
    if len(table) < folds:
        raise UserError(f"{len(table)} images cannot be dealt into {folds} folds", "use fewer ‹folds›, or more images")
    fold = assign_parts(table, [1 / folds] * folds, groups=inputs.groups, seed=config.seed)
    logits = memory.scratch_zeros(table.shape, what=f"the scores of {len(table)} images take")
    # A run that was trained on a GPU is scored on a machine without one too.
    config = dataclasses.replace(config, save_every=0, patience=0, device=assembly.device, tune="head")
    assembly = dataclasses.replace(assembly, config=config)
    for number in range(folds):
        part = np.where(fold == number, LEFT_OUT, TRAINED).astype(np.int8)
        fitted = _Batches(assembly, labels, inputs, part).fit()
        outside = np.flatnonzero(fold == number)
        rows = torch.from_numpy(outside)
        try:
            logits[rows] = score_source(
                fitted.model, Subset(inputs.features, outside), device=assembly.device, batch_size=512, features=False
            ).logits
        except NoReadableImage:  # not an error in a single fold
            logits[rows] = torch.nan
    scores = Scores(table.images, table.classes, logits.numpy(), fold, "out-of-fold")
    return dataclasses.replace(fitted, scores=scores)


@dataclass
class _Batches:
    """Training in epochs of batches: of a head on cached features, or of the whole network."""

    assembly: Assembly
    labels: Labels
    inputs: Inputs
    part: NDArray[np.int8]
    choosing: Table | None = None
    validation: tuple[Source, Table] | None = None
    begin: Begin | None = None
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        self.config = self.assembly.config
        self.trained, self.held_out = (np.flatnonzero(self.part == number) for number in (TRAINED, HELD_OUT))
        self.table = self.assembly.training_table(self.labels.training).subset(self.trained)
        self.judged = self.labels.evaluation if self.choosing is None else self.choosing
        self.is_cached = self.config.tune == "head"
        self.base: NormalisedLinear | None = None  # which the head begins at
        validated = self.judged.subset(self.held_out) if self.validation is None else self.validation[1]
        self.judge = ValidationMetric(torch.from_numpy(validated.dense())) if len(validated) else None

    def fit(self) -> Fit:
        config = self.config
        method = self.assembly.make_method()
        source = self.inputs.features if self.is_cached else self.inputs.images
        assert source is not None
        if self.is_cached:
            self.base = self._fit_base(source)
        similar = None
        if self.base is not None:  # an image would be most similar to itself while it is trained on
            similar, self.base.similar = self.base.similar, None
        head = self._make_head(method)
        model = Model(None if self.is_cached else self.inputs.backbone, head)
        log: list[EpochLog] = []
        place = None if self.watch.folder is None else self.watch.folder / config.tune
        begin = self.begin
        if begin is None and not self.is_cached and config.linear_init:
            log = self._fit_head_alone(method, head)
        if begin is None and self.is_cached:  # also of a training that is resumed, which has the same rate
            begin = None if self.base is None else self._begin_at_base(self.base, source)
            if config.choose_lr and self.judge is not None:
                config = self._with_best_rate(begin, source)
        if begin is not None:
            begin(model, method, self.table)
        fitted = self._epochs(model, method, source, config, place, self.watch.callback)
        self._report_kept(method, fitted)
        if isinstance(model.head, NormalisedHead):
            model.head.base.similar = similar
        return self._result(model, source, fitted, log)

    def _make_head(self, method: Method) -> Head:
        classes = len(self.table.classes)
        if self.base is not None:
            own = self.assembly.make_head(method, self.base.transform.out_channels, classes)
            return NormalisedHead(own, copy.deepcopy(self.base))  # moved to the GPU with the head
        maps = self.assembly.needs_maps(method, classes)
        return self.assembly.make_head(method, self.inputs.width(maps=maps), classes)

    def _fit_base(self, source: Source) -> NormalisedLinear | None:
        """Fit cross-entropy by L-BFGS to the images that are trained on; of maps, to the means over places.

        None where L-BFGS has too few images or too many scores.
        """
        method = "bce" if (self.table.value < 0).any() else "an"
        if not self.config.linear_start or solver_hindrance(cross_entropy(), method, self.table) is not None:
            return None
        config = dataclasses.replace(self.config, method=method, options={}, fit="linear", l2_strength=None)
        features, backbone = pooled_features(source), self.inputs.backbone
        if backbone is not None and features.shape[1] != backbone.width(maps=False):
            backbone = None  # cached maps do not tell the network's own vector
        choosing = self.judged.subset(self.trained)
        adds_names = self.assembly.make_head(self.assembly.make_method(), 8, len(self.table.classes)).adds_names

        def solve() -> tuple[Head, str]:
            fitted = self._fit_frozen(features, self.trained, config, backbone, choosing, names=adds_names)
            return fitted.model.head, fitted.crossfit.trust_in_names if fitted.crossfit is not None else ""

        head, words = distributed.run_on_main(solve)
        if words:
            self.watch.reporter.message(f"chosen by out-of-fold scores: {words}")
        assert isinstance(head, NormalisedLinear)
        return head

    def _begin_at_base(self, base: NormalisedLinear, source: Source) -> Begin:
        """Return what gives a head the scores of its base; a head that cannot begin with these learns them first."""
        method = self.assembly.make_method()
        model = Model(None, self._make_head(method))
        method.start(self.table, model)  # sets label vectors, where the head has them
        head = trained_part(model).head
        before = copy.deepcopy(head.state_dict())
        head.load_linear(base.linear.weight.detach(), base.linear.bias.detach())
        if all(torch.equal(value, before[name]) for name, value in head.state_dict().items()):
            with torch.no_grad():
                targets = base(pooled_features(Subset(source, self.trained))).logits.sigmoid()
            first: dict[str, Any] = {"epochs": _HEAD_EPOCHS, "lr": self.assembly.recipe.lr, "patience": 0, "ema": 0.0}
            few = dataclasses.replace(self.config, **first, compile="no")
            self._epochs(model, taught_by(targets), source, few, None, None)
        weights = copy.deepcopy(head.state_dict())
        return lambda model, *_: trained_part(model).head.load_state_dict(weights)

    def _fit_frozen(
        self,
        features: Tensor,
        rows: NDArray[np.int64],
        config: Config,
        backbone: Backbone | None,
        choosing: Table | None = None,
        *,
        names: bool = True,
    ) -> Fit:
        """Fit a linear head to some images, of which the pooled features (N, D) are those of a frozen backbone."""
        inputs, values = self.inputs, features[torch.from_numpy(rows)]
        bad = torch.isnan(values).any(1).nonzero()[:, 0].tolist()
        groups = None if inputs.groups is None else inputs.groups[rows]
        labels = self.labels.of_images(rows)
        some = Inputs(lambda: Features(values, labels.images, bad), backbone, None, groups, inputs.of_backbone)
        some.likeness = inputs.likeness if names else None
        return fit(labels, some, config, choosing=choosing)

    def _with_best_rate(self, begin: Begin | None, source: Source) -> Config:
        """Return the configuration with the learning rate that is best on the held-out images after a few epochs."""
        config = self.config
        few = dataclasses.replace(config, epochs=max(1, config.epochs // _FEW), patience=0, keep="best")

        def quality(rate: float) -> float:
            method = self.assembly.make_method()
            model = Model(None, self._make_head(method))
            if begin is not None:
                begin(model, method, self.table)
            with warnings.catch_warnings():  # what starts later has more epochs in the training afterwards
                warnings.filterwarnings("ignore", ".* never starts in ")
                return self._epochs(model, method, source, dataclasses.replace(few, lr=rate), None, None).select

        ends = config.lr / _FURTHEST_RATE, config.lr * _FURTHEST_RATE
        best, qualities = best_inside(quality, (config.lr, config.lr / 3), *ends)
        tried_all = ", ".join(f"{rate:.2g} → {value:.4f}" for rate, value in qualities.items())
        self.watch.reporter.message(f"learning rate {best:.2g}, chosen by the held-out images: {tried_all}")
        return dataclasses.replace(config, lr=best)

    def _report_kept(self, method: Method, fitted: Fitted) -> None:
        """Say which epoch was kept, and warn where a part of the method had not begun by then."""
        if self.judge is None:
            return
        last, kept, begins = len(fitted.log), fitted.best_epoch, method.begins()
        how = "" if self.config.keep == "last" else ", which ranks the held-out images best"
        self.watch.reporter.message(f"kept: epoch {kept} of {last}{how} (quality {fitted.select:.4f})")
        if begins is not None and kept < begins.first <= last:
            self.watch.reporter.message(
                f"Warning: {begins.part} begins with epoch {begins.first}, after the epoch that is kept; "
                "‹keep=last› keeps the last epoch"
            )

    def _fit_head_alone(self, method: Method, head: Head) -> list[EpochLog]:
        """Train the head on frozen features for some epochs, unless the network has been begun."""
        config, folder = self.config, self.watch.folder
        if folder is not None and distributed.run_on_main(lambda: load_newest(folder / "all") is not None):
            return []
        self.watch.reporter.message(f"linear init: {config.linear_init} epochs of the head on frozen features")
        rate = config.lr if config.linear_lr is None else config.linear_lr
        # Early stopping applies to the training afterwards; the head has a fixed number of epochs.
        first = dataclasses.replace(config, epochs=config.linear_init, lr=rate, patience=0, compile="no")
        with warnings.catch_warnings():  # what starts later has the epochs after these
            warnings.filterwarnings("ignore", ".* never starts in ")
            place = None if folder is None else folder / "head"
            return self._epochs(Model(None, head), method, self.inputs.features, first, place, self.watch.callback).log

    def _epochs(
        self,
        model: Model,
        method: Method,
        source: Source,
        config: Config,
        folder: Path | None,
        callback: Callback | None,
    ) -> Fitted:
        validation = Subset(source, self.held_out) if self.validation is None else self.validation[0]
        truth = self.watch.truth
        return fit_epochs(
            model,
            method,
            Subset(source, self.trained),
            self.table,
            config,
            validation=None if self.judge is None else validation,
            judge=self.judge,
            callback=callback,
            truth=None if truth is None else truth.subset(self.trained),
            folder=folder,
            resume=self.watch.resume,
        )

    def _result(self, model: Model, source: Source, fitted: Fitted, log: list[EpochLog]) -> Fit:
        """Score the held-out images, by the head fitted again where that ranks them better."""
        assumes_absent = None if self.judge is None else self.judge.assumes_absent
        result = Fit(None, fitted.log, model, epochs=fitted, head_log=log, assumes_absent=assumes_absent)
        if not len(self.held_out):
            return result
        logits = score_source(model, Subset(source, self.held_out), device=self.assembly.device).logits
        return dataclasses.replace(result, scores=self._scores(logits))

    def _scores(self, logits: Tensor) -> Scores:
        """Return the scores of the held-out images; `fill` calibrates those of a fold by the others."""
        table, folds = self.labels.evaluation.subset(self.held_out), min(FOLDS, len(self.held_out))
        groups = None if self.inputs.groups is None else self.inputs.groups[self.held_out]
        fold = assign_parts(table, [1 / folds] * folds, groups=groups)
        return Scores(table.images, table.classes, logits.numpy(), fold, "held-out")


class _Whole(_Batches):
    """Training of the whole network that begins with the frozen recipe and is combined with it in the end.

    The frozen recipe is fitted without the held-out images first: it starts the head, teaches unknown labels, and its
    scores of the held-out images are those of a model that did not see their labels. The one that is kept is fitted to
    all images.
    """

    def fit(self) -> Fit:
        backbone, source = self.inputs.backbone, self.inputs.images
        assert backbone is not None
        assert source is not None
        self.source, self.frozen_backbone = source, frozen_copy(backbone)
        self.check_time(backbone)
        self.message("the frozen recipe comes first")
        features = self._sweep(Model(self.frozen_backbone, Linear(backbone.width(maps=False), 1))).features

        def fit_frozen() -> tuple[Model, Model, Tensor]:
            inner = self._fit_frozen(features, self.trained, self._frozen_config(), self.frozen_backbone)
            assert inner.config is not None
            assert inner.scores is not None
            config = dataclasses.replace(inner.config, candidates="")
            used = np.flatnonzero(self.part != LEFT_OUT)
            whole = self._fit_frozen(features, used, config, self.frozen_backbone)
            return inner.model, whole.model, torch.from_numpy(inner.scores.logits)

        inner, whole, scores = distributed.run_on_main(fit_frozen)
        targets = soft_targets(self.table, scores, self.judged.subset(self.trained))
        teaches = self.config.targets == "soft"
        method = taught_by(targets) if teaches else self.assembly.make_method()
        head = self._make_head(self.assembly.make_method())
        model = Model(backbone, head)
        log = self._begin(model, method, features, targets)
        place = None if self.watch.folder is None else self.watch.folder / "all"
        fitted = self._epochs(model, method, source, self.config, place, self.watch.callback)
        self._report_kept(method, fitted)
        swept, held = self._sweep(model), torch.from_numpy(self.held_out)
        members = [Member("tuned head", model.head, swept.logits[held])]
        is_linear = swept.features.shape[1] == backbone.width(maps=False) and isinstance(head, Linear)
        if is_linear and (again := self._refit(swept.features)) is not None:
            members.append(Member("refitted head", *again))
        with torch.no_grad():
            outside = inner.head(features[held]).logits.float()
        members.append(Member("frozen recipe", whole.head, outside, True))
        mix = self._mix(members)
        judge = self.judge
        result = Fit(None, fitted.log, self._join(model, members, mix), epochs=fitted, head_log=log)
        if not len(self.held_out):
            return result
        assumes = None if judge is None else judge.assumes_absent
        return dataclasses.replace(result, scores=self._scores(mix.logits), assumes_absent=assumes)

    def message(self, text: str) -> None:
        self.watch.reporter.message(text)

    def check_time(self, backbone: Backbone) -> None:
        """Raise if no GPU is there, none was asked for, and training would take long; say how long."""
        if self.assembly.device != "cpu" or self.config.device == "cpu":
            return
        side, bands = self.config.size or backbone.preprocess.size, len(backbone.mean)
        trial, images = copy.deepcopy(backbone).train(), torch.zeros(_TRIAL_IMAGES, bands, side, side)
        for _ in range(2):  # the first one is slower
            began = time.perf_counter()
            trial.pooled(images).sum().backward()  # type: ignore[no-untyped-call]
        seconds = (time.perf_counter() - began) / _TRIAL_IMAGES * len(self.trained) * self.config.epochs
        if seconds > _LONGEST_ON_CPU:
            raise UserError(
                f"there is no GPU: tuning the whole network on this CPU would take about {duration(seconds)}",
                "leave ‹tune=all› out for the frozen recipe, which takes minutes, or state ‹device=cpu›",
            )

    def _sweep(self, model: Model) -> Sweep:
        """Score all images; their pooled features come with the scores."""
        device, size = self.assembly.device, max(64, self.config.batch_size)
        return score_source(model.to(device), self.source, device=device, batch_size=size, reporter=self.watch.reporter)

    def _frozen_config(self) -> Config:
        """Return the configuration of the frozen recipe: a named method trains the network, and `auto` chooses here."""
        frozen = dataclasses.replace(self.config, tune="head")
        if frozen.targets == "soft":  # then the method is the one that suits a frozen backbone
            return frozen
        choice = choose(self.labels.training.stats)
        candidates = ", ".join(map(str, choice.candidates))
        return dataclasses.replace(frozen, method=choice.method, options=choice.options, candidates=candidates)

    def _begin(self, model: Model, method: Method, features: Tensor, targets: Tensor) -> list[EpochLog]:
        """Set the weights that tuning begins with: those of an earlier run, or a head that fits frozen features.

        A head that cannot begin with a linear one is trained alone for some epochs.
        """
        if self.begin is not None:
            self.begin(model, method, self.table)
            return []
        if type(model.head).load_linear is Head.load_linear:
            epochs = self.config.linear_init or _HEAD_EPOCHS
            self.config = dataclasses.replace(self.config, linear_init=epochs, linear_lr=self.assembly.recipe.lr)
            return self._fit_head_alone(method, model.head)
        inside = features[torch.from_numpy(self.trained)]
        if model.head.needs_maps:
            inside = inside[:, -self.inputs.width(maps=True) :]  # the mean over places
        device = self.assembly.device
        weight, bias = distributed.run_on_main(lambda: regularised_head(inside, targets, device))
        model.head.load_linear(weight, bias)
        return []

    def _refit(self, features: Tensor) -> tuple[NormalisedLinear, Tensor] | None:
        """Fit the head again to tuned features, without the held-out images; None where L-BFGS cannot."""
        make, table = self.assembly.make_method, self.assembly.training_table(self.labels.training)
        if not len(self.held_out) or solver_hindrance(make(), self.config.method, self.table) is not None:
            return None
        features = features.clone()
        features[torch.from_numpy(np.flatnonzero(self.part == LEFT_OUT))] = torch.nan
        how: dict[str, Any] = {"evaluation": self.judged, "device": self.assembly.device}
        blocks = self.frozen_backbone.blocks
        return distributed.run_on_main(lambda: refit_head(features, table, make, self.held_out, blocks=blocks, **how))

    def _mix(self, members: list[Member]) -> Mix:
        """Combine the members by known labels of the held-out images, and say how."""
        labels = torch.from_numpy(self.judged.subset(self.held_out).dense())
        if not (labels > 0).any():
            same = [1 / len(members)] * len(members)
            self.message("no known label can tell which head is best: all count alike")
            return Mix(same, same, sum_of(same, [each.logits for each in members]))
        fold = self._scores(members[0].logits).fold
        mix = combine(members, labels, fold, single=self.config.single)
        parts = ", ".join(f"{each.name} {share:.2f}" for each, share in zip(members, mix.share, strict=True) if share)
        before, after = (ranking_quality(each, labels) for each in (members[-1].logits, mix.logits))
        alone = ", ".join(f"{each.name} {ranking_quality(each.logits, labels):.4f}" for each in members)
        self.message(f"quality on held-out images {after:.4f}, of the frozen recipe {before:.4f} (each head: {alone})")
        passes = "two passes (tuned and frozen network)" if 0 < mix.share[-1] < 1 else "one pass"
        self.message(f"weights: {parts}; a prediction takes {passes}")
        return mix

    def _join(self, tuned: Model, members: list[Member], mix: Mix) -> Model:
        """Return one model of the members that have a weight; the tuned head stays while its backbone does."""
        pairs = list(zip(members, mix.weight, mix.share, strict=True))
        if mix.share[-1] == 1:
            return Model(self.frozen_backbone, members[-1].head)
        kept = [pair for number, pair in enumerate(pairs) if pair[2] or not number]
        uses_frozen = kept[-1][0].is_frozen
        width = self.frozen_backbone.width(maps=False)
        first = self.frozen_backbone.width(maps=tuned.head.needs_maps)
        heads = [each.head for each, _, _ in kept]
        is_frozen, widths = [each.is_frozen for each, _, _ in kept], [first, width if uses_frozen else 0]
        head = Combined(heads, [weight for _, weight, _ in kept], is_frozen, widths)
        network: Any = tuned.backbone
        return Model(BackbonePair(network, self.frozen_backbone) if uses_frozen else network, head)
