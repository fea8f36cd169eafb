"""The classifier in scikit-learn's manner: fit, predict_proba, predict and score on features, images or image files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor
from torch.nn.functional import logsigmoid

from halflabel import metrics
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import evaluate
from halflabel.features.backbone_names import DEFAULT
from halflabel.features.backbones import Backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.auto import Choice, choose
from halflabel.fitting.config import Config
from halflabel.fitting.device import choose_device
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.estimator_inputs import InputImages, Zero, read_images, read_labels
from halflabel.images.sources import Arrays, Features, Images
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table
from halflabel.methods.base import Method, Recipe, recipe
from halflabel.runs.new_run import make_config

__all__ = ["HalfLabelClassifier"]

_MAX_BAD = 0.01  # the share of unreadable images that is too much to train on
_EPOCHS = 20  # of batches
_CHOICES = {
    "names": ("auto", "on", "off"),
    "fit_by": ("auto", "linear", "batches"),
    "zero": ("auto", "unknown", "absent"),
}
# parameters that are options of `halflabel train`
_OPTIONS = ("backbone", "names", "size", "seed", "epochs", "batch_size", "lr", "weight_decay")


@dataclass(eq=False, repr=False)
class HalfLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A head trained by one of the methods on labels of which only some are known; a scikit-learn classifier.

    X, recognised by its type:
      - numbers (N, D): any features; `make_pipeline(StandardScaler(), …)` makes their columns count alike. Those of a
        backbone are better normalised as `halflabel train` does it: say so by backbone="features-D"
      - image files, a list of str or Path: features of the frozen backbone, as the method needs them
      - uint8 (N, 3, H, W) or (N, H, W, 3), or a list of PIL images of any sizes: images, likewise

    y (N, C), one column per class: 1 is present, −1 absent, NaN unknown. 0 is unknown beside ±1, and absent in
    scikit-learn's indicator: `zero` states it. "auto" takes it from y: beside −1 a 0 is unknown, beside NaN it is
    absent; a y with 0 and neither of them, or with 0 and both, is refused. A Table or Labels is not ambiguous: its
    image i is X[i]. y (N,): the one class of each image, everything known, as in any scikit-learn classifier.

    `predict` gives 1 and 0 where 0 means absent, else 1 and −1 (see `zero_`), and classes for y (N,).
    `score` is the mean average precision over known entries, or the accuracy for y (N,). Images that cannot be read are
    left out of training with a warning, refused above 1 %; `predict_proba` and `decision_function` give NaN for them.

    In `cross_val_score`, `GridSearchCV` and their like, a y with NaN takes a splitter, such as `cv=KFold(5)`: with
    `cv=5` scikit-learn checks y itself and refuses NaN. `cross_val_predict` would encode the values of y: pass y as a
    parameter of `fit` instead: `cross_val_predict(classifier, X, params={"y": y}, method="predict_proba")`.

    Parameters:
      - `method`: a method's name, "auto" to choose one by the labels, or the function under `@method` or Recipe of your
        own; `options`: the method's own. A pickled classifier names their code, which must be importable where it is
        loaded, or in a file that HALFLABEL_PLUGINS lists
      - `fit_by`: "linear" fits the head on all rows at once, "batches" in `epochs` (None: 20); "auto" is linear for at
        least 20 rows where the method allows it, and then refuses `epochs`, `batch_size`, `lr` and `weight_decay`
        (None: the method's default). Batches hold out a fifth of the rows, to choose the epoch
      - `backbone`, `names`, `size`, `seed`, `device`: as those of `halflabel train`; the same data, parameters and seed
        give the same classifier
      - `threshold`: the least probability called present; "auto" is that of the best expected F1
      - `cache`: a folder that keeps the features of images for the next call

    Attributes: `classes_`, the names or numbers of the columns of y, or the classes of y (N,); `zero_`, what 0 means in
    y, "auto" where y had no 0, None for y (N,); `calibration_`, from logits to probabilities; `thresholds_` (C,);
    `model_`, backbone (None for features) and head; `log_`, one line per epoch, or per strength of regularisation;
    `oof_logits_` (N, C), the logits of the training rows by models that did not see their labels, None in batches; for
    features also `n_features_in_` and, where X names its columns, `feature_names_in_`.

    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> y = np.array([[-1, 1], [-1, 0], [1, 0], [0, -1]])
    >>> HalfLabelClassifier(lr=0.1, epochs=50, device="cpu").fit(X, y).predict(X).tolist()
    [[-1, 1], [-1, 1], [1, -1], [1, -1]]
    """

    method: str | Recipe | Callable[..., Method] = "bn-bce"
    _: KW_ONLY
    options: Mapping[str, Any] | None = None
    backbone: str = DEFAULT
    names: Literal["auto", "on", "off"] = "auto"
    size: int | None = None
    fit_by: Literal["auto", "linear", "batches"] = "auto"
    epochs: int | None = None
    batch_size: int = 32
    lr: float | None = None
    weight_decay: float | None = None
    zero: Zero = "auto"
    threshold: float | Literal["auto"] = "auto"
    seed: int = 0
    device: str = "auto"
    cache: str | Path | None = None

    def fit(self, X: Any, y: Any) -> HalfLabelClassifier:
        """Train on N images or rows of features and what y knows of them."""
        self._check_parameters()
        images = read_images(X)
        if images is None:
            X = validate_data(self, X, dtype=np.float32)
        labels = read_labels(y, self.zero)
        check_consistent_length(X if images is None else images.keys, labels.labels)
        rows = labels.rows
        table = rows.training
        assembly = self._assemble(table)
        backbone = None if images is None else assembly.make_backbone()
        maps, copies = assembly.feature_kind(len(table.classes))
        if backbone is None and maps:
            raise UserError(
                f"the method {assembly.recipe.name!r} looks at places of images, and X has pooled features",
                "give images or image files as X, or use another method",
            )

        def features() -> Features:
            if images is None or backbone is None:
                return Features(X, table.images)
            source = self._compute_features(backbone, images, labels.given, maps=maps, copies=copies)
            _check_bad_images(X, source)
            return source

        inputs = Inputs(
            features,
            backbone,
            groups=None if images is None else group_numbers(images.keys, len(table)),
            of_backbone=backbone is not None or self.backbone.startswith("features-"),
            channels=X.shape[1] if backbone is None else 0,
            likeness=assembly.likeness(backbone, table.classes, self.cache),
        )
        # Training seeds torch's random generators.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count() * (assembly.device != "cpu"))):
            fitted = fit(rows, inputs, assembly.config, recipe=assembly.given_recipe)
            head = fitted.model.head
        self.log_ = fitted.log
        self.model_ = Model(backbone, head).cpu().eval()
        self.classes_ = labels.classes
        self.zero_ = labels.zero
        self.oof_logits_ = None if fitted.crossfit is None else fitted.crossfit.logits
        decisions = Decisions(Calibration(), torch.full((len(table.classes),), 0.5))
        if fitted.scores is not None and labels.zero is not None:
            decisions, _ = evaluate(fitted.scores, rows, resamples=0)
        self.calibration_ = decisions.calibration
        self.thresholds_ = decisions.thresholds.double().numpy()
        if self.threshold != "auto":
            self.thresholds_ = np.full(len(table.classes), float(self.threshold))
        return self

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Logits (N, C), NaN for images that cannot be read; for y (N,) of two classes log p₁ − log p₀, (N,)."""
        logits = self._logits(X)
        if self.zero_ is None and len(self.classes_) == 2:
            return logsigmoid(logits).diff(dim=1)[:, 0].numpy()
        return logits.numpy()

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities (N, C), NaN for images that cannot be read.

        p = σ(a x + b), calibrated on scores of rows that the head was not fitted to; `calibration_` says under which
        assumption where hardly anything is known to be absent. For y (N,) rows sum to 1: pₖ = σ(xₖ) / Σⱼ σ(xⱼ).
        """
        logits = self._logits(X)
        if self.zero_ is None:
            # The same quotient, and no 0 / 0 where all classes are far from likely.
            return torch.softmax(logsigmoid(logits), dim=1).numpy()
        return self.calibration_.scores(logits).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels (N, C): 1 where p ≥ threshold, else what means absent (0 or −1); for y (N,) the likeliest class."""
        logits = self._logits(X)
        _check_read(logits)
        if self.zero_ is None:
            return np.asarray(self.classes_[logits.argmax(1).numpy()])
        absent = 0 if self.zero_ == "absent" else -1
        return np.where(self.calibration_.scores(logits).numpy() >= self.thresholds_, 1, absent)

    def score(self, X: Any, y: Any) -> float:
        """The mean average precision over the known entries of y (N, C); the accuracy on y (N,)."""
        check_is_fitted(self)
        if self.zero_ is None:
            return float(accuracy_score(y, self.predict(X)))
        logits = self._logits(X)
        _check_read(logits)
        known = read_labels(y, self.zero_)
        if isinstance(y, Table | Labels) and not np.array_equal(known.classes, self.classes_):
            fix = "give the same classes in the same order"
            raise UserError("the labels have other classes than those fitted", fix)
        if not (known.labels < 0).any():
            # Every ranking of positives alone is perfect: 1.0 would be no measurement.
            zero = " (0 means unknown, as in fit)" if (known.labels == 0).any() else ""
            raise UserError(f"nothing in y is known to be absent{zero}", "score on labels that have some -1")
        return float(metrics.mean_average_precision(logits, known.labels))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _check_parameters(self) -> None:
        """Check the parameters that neither the method nor `Config` checks, before anything is computed."""
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise UserError(f"{name}={value!r} cannot be used", f"use one of: {', '.join(allowed)}")
        if self.threshold != "auto" and not (isinstance(self.threshold, int | float) and 0 <= self.threshold <= 1):
            raise UserError(f"{self.threshold!r} is not a threshold", 'give a probability, or "auto"')

    def _assemble(self, table: Table) -> Assembly:
        """Return what makes the parts: by the parameters, else by the choice for the labels."""
        is_auto = isinstance(self.method, str) and self.method == "auto"
        choice = choose(table.stats) if is_auto else Choice("", config={"epochs": _EPOCHS})
        chosen = recipe(choice.method or self.method)
        training = {name: getattr(self, name) for name in _OPTIONS}
        given = [name for name, value in training.items() if value != getattr(type(self), name)]
        training |= {"device": choose_device(self.device), "fit": self.fit_by}
        assembly = Assembly(make_config(choice, training, self.options or {}, given_recipe=chosen), chosen)
        assembly.check_fit(given, table, "fit_by")
        return assembly

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self)
        backbone = self.model_.backbone
        if backbone is None:
            X = validate_data(self, X, dtype=np.float32, reset=False)
            source = Features(X, Names.numbered(len(X)))
        else:
            images = read_images(X)
            if images is None:
                raise UserError("this classifier was fitted on images", "give image files, or uint8 images, as X")
            assert isinstance(backbone, Backbone)
            source = self._compute_features(backbone, images, maps=self.model_.head.needs_maps)
        return score_source(Model(None, self.model_.head), source).logits

    def _compute_features(
        self, backbone: Backbone, images: InputImages, given: Labels | None = None, *, maps: bool, copies: int = 0
    ) -> Features:
        """Return the features of each image of X; those of equal images are computed once.

        Memory: (1 + copies) · 2·D bytes per image, · h·w for maps.
        """
        distinct, first, again = np.unique(images.keys, return_index=True, return_inverse=True)
        # Strong views are drawn by name: by that of the labels, where they have one.
        names = Names(distinct.tolist()) if given is None else given.images.take(first)
        views = Config().views(backbone)
        source: Images | Arrays
        if images.pixels is None:
            source = Images([Path(key) for key in distinct.tolist()], names, views, max_bad=1.0)
        else:
            source = Arrays([torch.from_numpy(images.pixels[number]) for number in first], names, views)
        with TemporaryDirectory() as temporary:
            place, device = Path(self.cache or temporary), choose_device(self.device)
            cached = cache_features(backbone, source, place, maps=maps, copies=copies, device=device)
            assert cached.strong is not None  # the views above have a strong one
            # Copies, as the files may be deleted.
            values, *strong = (torch.from_numpy(np.take(v, again, axis=0)) for v in (cached.values, *cached.strong))
            bad = np.flatnonzero(np.isin(again, cached.bad))
            del cached
        backbone.cpu()
        numbered = Names.numbered(len(values)) if given is None else given.images
        return Features(values, numbered, bad.tolist(), strong=strong)


def _check_read(logits: Tensor) -> None:
    bad = torch.isnan(logits).any(1).nonzero()
    if len(bad):
        raise UserError(
            f"{len(bad)} of {len(logits)} images cannot be read (first: X[{int(bad[0])}])",
            "take them out of X; predict_proba gives NaN for them",
        )


def _check_bad_images(X: Any, source: Features) -> None:
    """Refuse images that cannot be read, or warn if they are few."""
    if not len(source.bad):
        return
    bad, count, first = len(source.bad), len(source.values), int(source.bad[0])
    message, name = f"{bad} of {count} images cannot be read", f"X[{first}], {list(X)[first]}"
    if bad > _MAX_BAD * count:
        fix = f"take them out of X and y; up to {100 * _MAX_BAD:g} % are left out automatically"
        raise UserError(f"{message} (first: {name})", fix)
    warnings.warn(f"{message} and are left out of training (first: {name})", stacklevel=3)
