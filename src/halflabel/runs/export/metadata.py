"""The description of an exported model: what its users need that the weights do not contain, as JSON values.

It has no folder and no image name of the machine of the training: of options that are paths, such as label vectors, the
file name stays, and building the network does not read the file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

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
_SETTINGS = ("backbone", "method", "tune")  # fields of Config
LAYOUT = 1  # version of the format; raise it when older readers could not read the new one


def describe(model: Model) -> dict[str, Any]:
    """Return what `read_description` reads."""
    config, view = model.config, model.views["plain"]
    if config.backbone.endswith(".onnx"):
        raise UserError(
            f"a model on {config.backbone} cannot be exported, as its backbone is not in the run",
            "train with another ‹backbone›, or predict with the run",
        )
    assert isinstance(view, Plain)
    preprocess: Any = model.network.backbone.preprocess  # type: ignore[union-attr]
    # Heights and widths; an image gets the one that is nearest to its aspect ratio.
    shapes = {"shapes": kept_shapes(view.size)} if view.resize == "keep" else {}
    views = {"colour": "RGB", **{name: getattr(view, name) for name in _VIEW}, **shapes}
    return {
        "halflabel": {"version": __version__, "layout": LAYOUT},
        "task": "multi-label image classification",
        "classes": list(model.classes),
        "thresholds": model.thresholds.tolist(),
        "calibration": model.calibration.as_json(),
        "preprocess": {**views, "mean": list(preprocess.mean), "std": list(preprocess.std)},
        **{name: getattr(config, name) for name in _SETTINGS},
        "options": shown_options(config.options),
    }


def read_description(content: Any, where: str) -> tuple[dict[str, Any], list[list[float]]]:
    """Return the fields of a `Model` beside its network, and the normalisation (mean, std); `where` is for errors."""
    fix = "export the run again"
    if not isinstance(content, dict) or not isinstance(content.get("halflabel"), dict):
        raise UserError(f"{where} was not exported by halflabel", "name a run, or what `halflabel export` wrote")
    layout = content["halflabel"].get("layout")
    if layout != LAYOUT:
        raise UserError(f"{where} has layout {layout!r}, and this version reads {LAYOUT}", "update halflabel")
    try:
        preprocess, classes = content["preprocess"], Names(content["classes"])
        view = Plain(**{name: preprocess[name] for name in _VIEW})
        check_fields(Plain, vars(view))
        thresholds = [float(value) for value in content["thresholds"]]
        normalisation = [[float(value) for value in preprocess[name]] for name in ("mean", "std")]
        calibration = Calibration.from_json(content["calibration"], len(classes))
        settings = {name: content[name] for name in _SETTINGS}
        about: dict[str, Any] = {"size": view.size, "resize": view.resize, "channels": view.channels}
        config = Config(**settings, **about, options=dict(content["options"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where} is incomplete or damaged ({error_summary(error)})", fix) from None
    numbers = [*thresholds, *normalisation[0], *normalisation[1]]
    has_three = all(len(values) == 3 for values in normalisation)
    if not all(map(math.isfinite, numbers)) or not has_three or not 0 < len(classes) == len(thresholds):
        raise UserError(f"{where} is inconsistent", fix)
    if not (SMALLEST <= view.size <= MOST_PIXELS and 0 < view.crop_pct <= 1):
        raise UserError(f"{where} has images of {view.size} pixels, cropped to {view.crop_pct:g} of the side", fix)
    fields = {"config": config, "classes": classes, "views": {"plain": view}, "calibration": calibration}
    return {**fields, "thresholds": torch.tensor(thresholds)}, normalisation
