"""Metadata of an exported model: everything its users need that the weights do not contain, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from halflabel import __version__
from halflabel.errors import UserError, error_summary
from halflabel.evaluation.calibration import Calibration
from halflabel.features.backbones import SMALLEST
from halflabel.fitting.config import Config
from halflabel.images.views import MOST_PIXELS, Plain, kept_shapes
from halflabel.labels.names import Names
from halflabel.runs.redact import shown_options
from halflabel.system.validate import check_fields

if TYPE_CHECKING:
    from halflabel.runs.model import Model


_VIEW = ("size", "resize", "interpolation", "crop_pct")  # fields of the plain view
LAYOUT = 1  # version of the format; raise it when older readers could not read the new one


@dataclass(frozen=True)
class ModelMetadata:
    """Classes, thresholds, calibration, preprocessing, and how to build the network again.

    Contains no folder and no image name of the machine it was trained on. Options that are paths, such as label
    vectors, keep only the file name: it documents the training, and building the network does not read the file.
    """

    classes: tuple[str, ...]
    thresholds: tuple[float, ...]  # on calibrated probabilities, per class
    calibration: Calibration
    view: Plain  # how an image is resized
    mean: tuple[float, ...]
    std: tuple[float, ...]
    backbone: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tune: str = "head"
    mirror: bool = False  # whether scores are the mean over the image and its mirror image

    @classmethod
    def of(cls, predictor: Model) -> ModelMetadata:
        """Return the metadata of a trained model."""
        config, view = predictor.config, predictor.views["plain"]
        if config.backbone.endswith(".onnx"):
            raise UserError(
                f"a model on {config.backbone} cannot be exported, as its backbone is not in the run",
                "train with another ‹backbone›, or predict with the run",
            )
        assert isinstance(view, Plain)
        preprocess: Any = predictor.network.backbone.preprocess  # type: ignore[union-attr]
        return cls(
            tuple(predictor.classes),
            tuple(predictor.thresholds.tolist()),
            predictor.calibration,
            view,
            preprocess.mean,
            preprocess.std,
            config.backbone,
            config.method,
            shown_options(config.options),
            config.tune,
            config.mirror,
        )

    @property
    def config(self) -> Config:
        """The settings that build the network and its view."""
        return Config(
            method=self.method,
            options=self.options,
            backbone=self.backbone,
            size=self.view.size,
            resize=self.view.resize,
            tune=cast(Literal["head", "all"], self.tune),
            mirror=self.mirror,
            channels=self.view.channels,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, which `from_dict` reads."""
        view = self.view
        # Heights and widths; an image gets the one that is nearest to its aspect ratio.
        shapes = {"shapes": kept_shapes(view.size)} if view.resize == "keep" else {}
        return {
            "halflabel": {"version": __version__, "layout": LAYOUT},
            "task": "multi-label image classification",
            "classes": list(self.classes),
            "thresholds": list(self.thresholds),
            "calibration": self.calibration.as_json(),
            "preprocess": {
                "colour": "RGB",
                **{name: getattr(view, name) for name in _VIEW},
                **shapes,
                "mean": list(self.mean),
                "std": list(self.std),
            },
            **{name: getattr(self, name) for name in ("backbone", "method", "tune", "mirror")},
            "options": dict(self.options),
        }

    @classmethod
    def from_dict(cls, content: Any, where: str) -> ModelMetadata:
        """Check and read the output of `as_dict`; `where` is named in errors."""
        fix = "export the run again"
        if not isinstance(content, dict) or not isinstance(content.get("halflabel"), dict):
            raise UserError(f"{where} was not exported by halflabel", "name a run, or what `halflabel export` wrote")
        layout = content["halflabel"].get("layout")
        if layout != LAYOUT:
            raise UserError(f"{where} has layout {layout!r}, and this version reads {LAYOUT}", "update halflabel")
        try:
            preprocess = content["preprocess"]
            view = Plain(**{name: preprocess[name] for name in _VIEW})
            check_fields(Plain, vars(view))
            Names(content["classes"])
            metadata = cls(
                tuple(content["classes"]),
                tuple(map(float, content["thresholds"])),
                Calibration.from_json(content["calibration"], len(content["classes"])),
                view,
                tuple(map(float, preprocess["mean"])),
                tuple(map(float, preprocess["std"])),
                str(content["backbone"]),
                str(content["method"]),
                dict(content["options"]),
                str(content["tune"]),
                bool(content.get("mirror", False)),
            )
            numbers = [*metadata.thresholds, *metadata.mean, *metadata.std]
            is_valid = all(map(math.isfinite, numbers)) and len(metadata.mean) == len(metadata.std) == 3
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where} is incomplete or damaged ({error_summary(error)})", fix) from None
        if not is_valid or not metadata.classes or len(metadata.classes) != len(metadata.thresholds):
            raise UserError(f"{where} is inconsistent", fix)
        if not (SMALLEST <= view.size <= MOST_PIXELS and 0 < view.crop_pct <= 1):
            raise UserError(f"{where} has images of {view.size} pixels, cropped to {view.crop_pct:g} of the side", fix)
        return metadata
