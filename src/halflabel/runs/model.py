"""Model: a trained model, from a run, a Hub folder or an ONNX file, that scores images and evaluates on labels."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from halflabel.errors import UserError, error_summary
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import Evaluation, evaluate
from halflabel.evaluation.positives_only import expected_f1_threshold, expected_threshold, match_positives_per_image
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.combined import BackbonePair, Combined, frozen_copy
from halflabel.features.embed import checked_features
from halflabel.features.feature_blocks import engine_device, goes_to_ray
from halflabel.features.heads import Head, NormalisedHead, NormalisedLinear
from halflabel.features.heads import Model as Network
from halflabel.features.onnx_features import find_onnx_backbone
from halflabel.features.scoring import ImageScorer, score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.checkpoint import load_state
from halflabel.fitting.config import Config
from halflabel.fitting.device import choose_device
from halflabel.images.items import Items, pool_items
from halflabel.images.sources import Features, Images, Source, group_images, open_images
from halflabel.images.stored_features import StoredFeatures
from halflabel.images.views import View
from halflabel.labels.formats import read
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.runs.export.metadata import read_description
from halflabel.runs.export.onnx import OnnxHead
from halflabel.runs.folder import RunFolder, model_kind
from halflabel.runs.predict import Prediction, list_files, stream_predictions
from halflabel.runs.run_files import verify_checksum
from halflabel.system import distributed, memory
from halflabel.system.files import read_json
from halflabel.system.reporter import SILENT, Reporter
from halflabel.types import Sweep


@dataclass(eq=False)
class Model:
    """A trained model with its classes, thresholds, calibration and preprocessing."""

    network: Network
    config: Config
    classes: Names
    views: Mapping[str, View]
    calibration: Calibration
    thresholds: Tensor  # (C,) on calibrated probabilities
    device: str = "cpu"
    run: RunFolder | None = None  # None for an exported model

    @classmethod
    def open(cls, place: str | Path | RunFolder) -> Model:
        """Open a run, a folder that was exported for the Hub, or an .onnx file.

        No code of an export is run, and nothing is downloaded. ONNX Runtime runs an .onnx file on the CPU; its
        `network` has no weights to inspect.
        """
        if isinstance(place, RunFolder):
            return cls._of_run(place)
        path = Path(place)
        match model_kind(path):
            case "run":
                return cls._of_run(RunFolder.open(path))
            case "onnx":
                head = OnnxHead.open(path)
                return cls(Network(None, head), **read_description(head.description, str(path))[0])
        about = path / "config.json"
        described, normalisation = read_description(read_json(about, "export the run again"), str(about))
        weights = path / "model.safetensors"
        if not weights.is_file():
            raise UserError(f"{path} has no model.safetensors", "export the run again, or download the whole folder")
        state, _ = _read_weights(weights, "export the run again")
        backbone = _empty_backbone(described["config"])
        # The normalisation used in training, even if another version of timm has other values.
        for buffer, values in zip((backbone.mean, backbone.std), normalisation, strict=True):
            buffer.copy_(torch.tensor(values).view(3, 1, 1))
        network = _build_network(backbone, described["config"], described["classes"], state, weights)
        device = choose_device("auto")
        return cls(_ready(network, device), **described, device=device)

    @classmethod
    def _of_run(cls, run: RunFolder) -> Model:
        """Load the weights, class names, thresholds and calibration of a finished run."""
        config = Config.from_dict(run.read_config())
        run.check_finished()
        verify_checksum(run.weights)
        weights, about = _read_weights(run.weights, "train again, or resume the run")
        try:
            classes = Names(json.loads(about["halflabel"])["classes"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(f"{run.weights} does not name its classes", "train again") from None
        backbone = _empty_backbone(config)
        network = _build_network(backbone, config, classes, weights, run.weights)
        calibration, thresholds = run.read_calibration(), torch.full((len(classes),), 0.5)
        if run.is_calibrated:
            by_class = run.read_thresholds()
            if missing := [name for name in classes if by_class.get(name) is None]:
                raise UserError(f"{run.folder} has no threshold for the class {missing[0]!r}", "train again")
            thresholds = torch.tensor([by_class[name] for name in classes])
        device = choose_device(config.device, fall_back=True)
        views = config.views(backbone)
        if network.head.needs_maps and "square" in views:
            views["plain"] = views["square"]
        return cls(_ready(network, device), config, classes, views, calibration, thresholds, device, run)

    def __repr__(self) -> str:
        place = "exported model" if self.run is None else f"model of {self.run.address}"
        return f"<{place}: {self.config.method} on {self.config.backbone}, {len(self.classes)} classes>"

    def predict(
        self, images: str | Path | Sequence[str | Path], *, items: bool = False, **options: Any
    ) -> list[Prediction]:
        """Return the labels of image files, and of the images of folders, most likely first.

        Labels over their threshold, and the `top` (3) most likely ones, or all with `all_scores`. With `items` each
        folder is one item of several images.
        """
        files = list_files([images] if isinstance(images, str | Path) else images, items=items)
        return list(stream_predictions(self, files, items=items, **options))

    def logits(self, source: Source, reporter: Reporter = SILENT, *, cached: bool = False) -> Tensor:
        """Return the logits (N, C) of the images of a source; NaN for unreadable ones.

        `cached`: by features in the cache of the run, so that a second call is quick; maps would fill the disk.
        """
        cached = cached and not self.network.head.needs_maps
        return self.sweep(source, reporter, cached=cached, with_features=False).logits

    def sweep(
        self, source: Source, reporter: Reporter = SILENT, *, cached: bool = False, with_features: bool = True
    ) -> Sweep:
        """Return the logits (N, C) and features (N, D) of the images of a source; NaN for unreadable ones.

        `cached`: by features in the cache of the run, where there is one.
        """
        scorer, source = self._scorer(source, len(source), reporter, cached=cached)
        if with_features or not goes_to_ray(source):
            how: Any = {"device": scorer.device, "batch_size": scorer.batch_size}
            reporter = SILENT if isinstance(source, Features) else reporter  # the features took the time
            return score_source(scorer.model, source, **how, reporter=reporter, features=with_features)
        shape = len(source), len(self.classes)
        logits, first = memory.scratch_zeros(shape, what=f"the scores of {len(source)} images take"), 0
        for block in scorer.stream(source, reporter):
            logits[first : first + len(block)] = block
            first += len(block)
        return Sweep(logits, torch.zeros(len(source), 0))

    def stream(self, source: Source, reporter: Reporter = SILENT, *, of: int = 0) -> Iterator[Tensor]:
        """Yield the calibrated probabilities (B, C) of all images in order, in memory that does not grow with them.

        `of` is the number of images of which the source holds a part, so that all parts are computed alike. Items, and
        the images of several processes, are scored before the first result.
        """
        if isinstance(source, Items) or distributed.is_distributed():
            yield self.scores(source, reporter)
            return
        scorer, source = self._scorer(source, of or len(source), reporter)
        yield from map(self.calibration.scores, scorer.stream(source, reporter))

    def _scorer(
        self, source: Source, images: int, reporter: Reporter, *, cached: bool = False
    ) -> tuple[ImageScorer, Source]:
        """Return what computes logits, and of what: images or their features; a UserError if features do not fit.

        An exported ONNX file has no backbone, and runs on the CPU.
        """
        features = self._features(source, reporter, cached=cached)
        if features is not None:
            return ImageScorer(Network(None, self.network.head), len(self.classes), self.device, 256), features
        device = self.device if self.network.backbone is None else engine_device(source, self.device)
        model = self._fastest_model(images, device, reporter)
        return ImageScorer(model, len(self.classes), device, 32), source

    def _features(self, source: Source, reporter: Reporter, *, cached: bool) -> Features | None:
        """Return the features that logits are computed from; None where they are computed from the images."""
        backbone, folder = self.network.backbone, self._feature_folder if cached else None
        has_vectors = not self.network.head.needs_maps
        if isinstance(source, StoredFeatures):
            if not isinstance(backbone, Backbone) or not has_vectors:
                raise UserError("this model takes images, not features", "name the folder of the images")
            return checked_features(source, backbone)
        if isinstance(source, Items) and (backbone is None or not has_vectors):
            raise UserError("this model cannot score items of several images", "use a run on a frozen backbone")
        if folder is not None and isinstance(backbone, Backbone) and isinstance(source, Images):
            assembly, classes = Assembly(self.config), len(self.classes)
            return assembly.features(backbone, source, classes, folder, for_training=False, reporter=reporter)
        if not isinstance(source, Items):
            return None
        features = self.sweep(source.images, reporter).features
        bad = torch.isnan(features).any(1).nonzero()[:, 0].numpy()
        return pool_items(source, Features(features, source.images.names, bad.tolist()))

    @property
    def _feature_folder(self) -> Path | None:
        """The folder that caches the features of a frozen backbone; None for other models, and where none can be."""
        run, is_frozen = self.run, self.config.tune == "head"
        return run.cache if run is not None and is_frozen and os.access(run.folder.parent, os.W_OK) else None

    def _fastest_model(self, images: int, device: torch.device | str, reporter: Reporter) -> Network:
        """Return the model; ONNX Runtime runs its frozen backbone where that is faster and the head allows it."""
        backbone = self.network.backbone
        if self.config.tune != "head" or self.network.head.needs_maps or not isinstance(backbone, Backbone):
            return self.network
        folder = None if self.run is None else self.run.cache
        view = self.views["plain"]
        onnx_backbone = find_onnx_backbone(backbone, view, folder, images=images, device=device, reporter=reporter)
        return self.network if onnx_backbone is None else Network(onnx_backbone, self.network.head)

    def scores(self, source: Source, reporter: Reporter = SILENT) -> Tensor:
        """Return calibrated probabilities (N, C); NaN for unreadable images."""
        return self.calibration.scores(self.logits(source, reporter))

    def deciding(self, *, threshold: float | str | None = None, positives_per_image: float | None = None) -> Model:
        """Return a copy that decides otherwise: by one threshold, or as if images had so many present classes.

        The threshold is a probability, or a text such as "precision=0.9" or "recall=0.8": what is expected of the
        decisions by the calibrated probabilities. All but a probability needs the out-of-fold scores of a run.
        """
        calibration, thresholds = self.calibration, self.thresholds
        wanted = _wanted_threshold(threshold) if threshold is not None else 0.0
        scores = None
        if positives_per_image is not None or isinstance(wanted, dict):
            scores = self.run.read_scores() if self.run is not None else None
            if scores is None or scores.kind != "out-of-fold":
                raise UserError(
                    "positives per image, and a threshold by precision or recall, need the out-of-fold scores of a run",
                    "name a run with a linear fit, or state the probability to decide by",
                )
        if positives_per_image is not None:
            assert scores is not None
            if not 0 < positives_per_image < len(self.classes):
                raise UserError(
                    f"{positives_per_image:g} positives per image do not fit {len(self.classes)} classes",
                    "state their mean number, such as 1.5",
                )
            calibration = match_positives_per_image(scores.logits, calibration, positives_per_image)
            optimum = expected_f1_threshold(calibration.scores(torch.from_numpy(scores.logits)).numpy())
            thresholds = torch.full_like(thresholds, optimum)
        if isinstance(wanted, dict):
            assert scores is not None
            wanted = expected_threshold(calibration.scores(torch.from_numpy(scores.logits)).numpy(), **wanted)
        if threshold is not None:
            thresholds = torch.full_like(thresholds, wanted)
        return replace(self, calibration=calibration, thresholds=thresholds)

    def labels(self, scores: Tensor, *, top: int = 3, every: bool = False) -> list[dict[str, Any]]:
        """Return class, probability and present (over its threshold) from the scores (C,), most likely first.

        Includes the classes that are present and the `top` most likely ones, or all classes with `every`.
        """
        present = scores >= self.thresholds
        order = torch.argsort(scores, descending=True, stable=True)
        shown = order if every else order[(torch.arange(len(order)) < min(top, len(order))) | present[order]]
        columns = (self.classes.take(shown.numpy()), scores[shown].tolist(), present[shown].tolist())
        keys = ("class", "probability", "present")
        return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]

    def evaluate(
        self,
        labels: str | Path | Table | Labels,
        images: str | Path,
        reporter: Reporter = SILENT,
        *,
        labels_name: str = "the label table",
        threshold: float | None = None,
        group: str | None = None,
        **stated: Any,
    ) -> Evaluation:
        """Evaluate on labels of other images; labels made by a model are never used. Classes are matched by name.

        A class that the labels do not have counts as unknown. Images that the run was trained on are evaluated by its
        scores of models that had not seen them, or left out; `images` of the result says how many. `labels_name` is
        used in error messages. With `threshold` that one probability decides for all classes, otherwise each class has
        its own threshold. Intervals never separate images of one `group`, as the option of `train`. `stated` is what a
        label file leaves open, such as `unlisted="unknown"`.
        """
        if threshold is not None:
            check_threshold(threshold)
        if isinstance(labels, str | Path):
            labels_name, labels = str(labels), read(labels, **stated).rows
        labels = Labels.of(labels)
        with_model_made, table = labels.training, labels.people
        if with_model_made.known and not table.known:
            raise UserError(
                f"all {with_model_made.known} labels were made by a model, so there is nothing to evaluate on",
                "have some of them checked: halflabel review",
            )
        if (table.classes.index(self.classes.array) < 0).all():
            given_classes, own_classes = (
                ", ".join(map(repr, list(names)[:3])) for names in (table.classes, self.classes)
            )
            raise UserError(
                f"{labels_name} has none of the model's {len(self.classes)} classes: it has {given_classes} …, "
                f"the model {own_classes} …",
                "use the same class names",
            )
        table, with_model_made = (_with_classes(each, self.classes) for each in (table, with_model_made))
        source = open_images(table.images, Path(images), self.views, workers=self.config.workers, max_bad=1.0)
        logits = self.logits(source, reporter, cached=True).numpy()
        scores, note = self._unseen(Scores.held_out(table.images, self.classes, logits), source)
        kept, groups = scores.unbiased, group_images(group, table.images, source)
        table, with_model_made = table.subset(np.flatnonzero(kept)), with_model_made.subset(np.flatnonzero(kept))
        if self.run is not None and not kept.all() and not table.known:
            raise UserError(
                "the run was trained on all of these images, and stored no scores by models that had not seen them",
                f"name labels of other images; what the run measured itself is in {self.run / 'report.html'}, "
                f"which `halflabel report {shlex.quote(self.run.address)}` writes",
            )
        thresholds = self.thresholds if threshold is None else torch.full_like(self.thresholds, threshold)
        decisions = Decisions(self.calibration, thresholds)
        groups = None if groups is None else groups[kept]
        _, evaluation = distributed.run_on_main(
            lambda: evaluate(scores.of(table.images), table, decisions=decisions, groups=groups)
        )
        return replace(evaluation.noting_excluded(with_model_made.known - table.known), images=note)

    def _unseen(self, scores: Scores, source: Images) -> tuple[Scores, str]:
        """Return scores by models that saw no label of their image, fold −1 where there are none; and how many."""
        if self.run is None:
            return scores, "an exported model does not know its training images: these should be others"
        scores, own = self.run.unseen_scores(scores, source.digests)
        if own is None:
            return scores, "the run was trained on images in memory: these should be others"
        trained, left_out = int(own.sum()), int((~scores.unbiased).sum())
        of_run = f"{trained} that the run was trained on"
        if trained:
            of_run += f": {trained - left_out} by scores of models that had not seen them, {left_out} left out"
        return scores, f"{len(own) - trained} new images, {of_run}"


def _wanted_threshold(threshold: float | str) -> float | dict[str, float]:
    """Return a probability, or the precision or recall that a text asks for."""
    name, has_value, number = str(threshold).partition("=")
    try:
        value = float(number if has_value else name)
    except ValueError:
        value = math.nan
    if has_value and name.strip() in ("precision", "recall") and 0 < value < 1:
        return {name.strip(): value}
    if has_value or math.isnan(value):
        raise UserError(f"{threshold} is not a threshold", "use a probability, precision=0.9 or recall=0.8")
    return check_threshold(value)


def check_threshold(threshold: float) -> float:
    if not 0 <= threshold <= 1:
        raise UserError(f"{threshold:g} is not a threshold", "give a probability between 0 and 1")
    return threshold


def _read_weights(path: Path, fix: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error})", fix) from None


def _empty_backbone(config: Config) -> Backbone:
    return build_backbone(config.backbone, pretrained=False, size=config.size, bands=config.channels)


def _build_network(
    backbone: Backbone, config: Config, classes: Sequence[str] | Names, state: Mapping[str, Tensor], weights: Path
) -> Network:
    """Return the network that has these weights: its head is that of the solver, or that of the method."""
    try:
        network = _untrained(backbone, config, classes, state)
        load_state(network, state)
    except (RuntimeError, TypeError, ValueError) as error:  # unsuitable options raise any of these
        raise UserError(
            f"{weights} belongs to another model ({error_summary(error)})", "train again, or export the run again"
        ) from None
    return network


def _untrained(
    backbone: Backbone, config: Config, classes: Sequence[str] | Names, state: Mapping[str, Tensor]
) -> Network:
    if (solved := NormalisedLinear.from_shapes(state, "head.")) is not None:
        return Network(backbone, solved)
    untrained = recipe(config.method).make(**config.options)
    if (base := NormalisedLinear.from_shapes(state, "head.base.")) is not None:
        return Network(backbone, NormalisedHead(untrained.head(base.transform.out_channels, len(classes)), base))
    width = backbone.width(maps=untrained.head(8, len(classes)).needs_maps)

    def make_head() -> Head:
        return untrained.head(width, len(classes))

    combined = Combined.from_shapes(state, "head.", make_head)
    if combined is None:
        return Network(backbone, make_head())
    has_pair = bool(combined.is_frozen.any())
    return Network(BackbonePair(backbone, frozen_copy(backbone)) if has_pair else backbone, combined)


def _ready(model: Network, device: str) -> Network:
    return model.to(device).to(memory_format=torch.channels_last).eval()


def _with_classes(table: Table, classes: Names) -> Table:
    """Return the labels of a table with other classes, matched by name; classes it does not have are unknown."""
    index = classes.index(table.classes.array)
    image, column, value = table.entries()
    shared = index[column] >= 0
    return Table.from_entries(table.images, classes, image[shared], index[column[shared]], value[shared])
