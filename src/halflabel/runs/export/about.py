"""About: all that a model's weights do not say and its users need, as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halflabel import __version__
from halflabel.data.views import Plain
from halflabel.errors import UserError
from halflabel.metrics.calibration import Platt
from halflabel.runs.predictor import Predictor
from halflabel.runs.redact import shown_options

__all__ = ["LAYOUT", "About"]

LAYOUT = 1  # raised when a reader of today could not make sense of what is written


@dataclass(frozen=True)
class About:
    """Classes, thresholds, calibration, preprocessing, and how to build the network again.

    Nothing of where it was trained: no folder and no name of an image leaves the run. Of options that are paths, such
    as label vectors, the last part stays: it says what was trained, and building the network reads no such file.
    """

    classes: tuple[str, ...]
    thresholds: tuple[float, ...]  # on calibrated probabilities, per class
    calibration: Platt
    view: Plain  # how an image becomes S × S
    mean: tuple[float, ...]
    std: tuple[float, ...]
    backbone: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tune: str = "head"
    mirror: bool = False  # whether the mirror image is scored too, and the mean taken

    @classmethod
    def of(cls, predictor: Predictor) -> About:
        """What a trained run knows of itself."""
        config, view = predictor.config, predictor.views["plain"]
        assert isinstance(view, Plain)
        preprocess: Any = predictor.model.backbone.preprocess  # type: ignore[union-attr]
        return cls(
            tuple(predictor.classes),
            tuple(predictor.thresholds.tolist()),
            predictor.platt,
            view,
            preprocess.mean,
            preprocess.std,
            config.backbone,
            config.method,
            shown_options(config.options),
            config.tune,
            config.mirror,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it again."""
        view = self.view
        return {
            "halflabel": {"version": __version__, "layout": LAYOUT},
            "task": "multi-label image classification",
            "classes": list(self.classes),
            "thresholds": list(self.thresholds),
            "calibration": self.calibration._asdict(),
            "preprocess": {
                "colour": "RGB",
                "size": view.size,
                "resize": view.resize,
                "interpolation": view.interpolation,
                "crop_pct": view.crop_pct,
                "mean": list(self.mean),
                "std": list(self.std),
            },
            "backbone": self.backbone,
            "method": self.method,
            "options": dict(self.options),
            "tune": self.tune,
            "mirror": self.mirror,
        }

    @classmethod
    def from_dict(cls, found: Any, where: str) -> About:
        """What `as_dict` wrote, checked; `where` is named if it is something else."""
        fix = "export the run again"
        if not isinstance(found, dict) or not isinstance(found.get("halflabel"), dict):
            raise UserError(f"{where} was not exported by halflabel", "name a run, or what `halflabel export` wrote")
        layout = found["halflabel"].get("layout")
        if layout != LAYOUT:
            raise UserError(f"{where} has layout {layout!r}, and this version reads {LAYOUT}", "update halflabel")
        try:
            shape = found["preprocess"]
            about = cls(
                tuple(map(str, found["classes"])),
                tuple(map(float, found["thresholds"])),
                Platt(**found["calibration"]),
                Plain(int(shape["size"]), shape["resize"], shape["interpolation"], float(shape["crop_pct"])),
                tuple(map(float, shape["mean"])),
                tuple(map(float, shape["std"])),
                str(found["backbone"]),
                str(found["method"]),
                dict(found["options"]),
                str(found["tune"]),
                bool(found.get("mirror", False)),
            )
            finite = [*about.thresholds, about.calibration.slope, about.calibration.offset, *about.mean, *about.std]
            whole = all(math.isfinite(number) for number in finite) and len(about.mean) == len(about.std) == 3
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{where} lacks something, or is damaged ({error})", fix) from None
        if not whole or not about.classes or len(about.classes) != len(about.thresholds):
            raise UserError(f"{where} does not fit together", fix)
        return about
