"""What to train and how, and what that makes of a folder of images: its files, their views, the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from halflabel.data.views import View, make_views
from halflabel.errors import UserError
from halflabel.models.backbones import Backbone
from halflabel.system.files import check_field_types
from halflabel.system.validate import between
from halflabel.training.loop import Settings

__all__ = ["STRONG", "Config"]

STRONG = ("strong_ops", "strong_magnitude", "cutout")  # the settings of strong views
MOST_OPS, MOST_MAGNITUDE = 10, 30


@dataclass(frozen=True)
class Config:
    """What to train and how; written to config.yaml with every default filled in."""

    method: str = "bce"
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "efficientnet-lite0"
    weights: str | None = None
    begin_from: str | None = None  # a finished run whose weights training starts from
    size: int | None = None  # pixels; None = what the backbone was trained on
    resize: Literal["squash", "crop"] = "squash"
    tune: Literal["head", "all"] = "head"  # head: frozen backbone, cached features
    linear_init: int = 0  # epochs of the head alone on frozen features before all is tuned
    linear_lr: float | None = None  # their learning rate; None = that of all
    crop: float = 0.8  # the least share of an image that a random crop shows; 1 = mirror images only
    strong_ops: int = 2  # of a strong view: operations of RandAugment, one after the other
    strong_magnitude: int = 9  # how far each of them goes, 0 to 30
    cutout: float = 0.5  # the grey square's longest side, as a share of the image's
    held_out: float = 0.2  # the share of images kept for validation
    max_bad: float = 0.01  # the share of unreadable images that is too much
    workers: int = 0
    hold: Literal["files", "device"] = "files"  # where images are kept when all is tuned: decoded once, on the device
    views_on: Literal["workers", "device"] = "workers"  # where views are made of images that are not held there
    decode_on: Literal["workers", "device"] = "workers"  # where the JPEGs of a pack are decoded
    mirror: bool = False  # score the mirror image too, and take the mean
    copies: int = 4  # cached strong views per image, for methods that ask for them on a frozen backbone
    settings: Settings = field(default_factory=Settings)
    images: str = ""  # the folder, for resuming

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    def views(self, size: int, backbone: Backbone) -> dict[str, View]:
        """The views of images of so many pixels that these settings ask for."""
        between(0, MOST_OPS, strong_ops=self.strong_ops)
        between(0, MOST_MAGNITUDE, strong_magnitude=self.strong_magnitude)
        between(0, 1, cutout=self.cutout)
        strong = {"num_ops": self.strong_ops, "magnitude": self.strong_magnitude, "cutout": self.cutout}
        preprocess = backbone.preprocess
        return make_views(size, self.resize, preprocess.interpolation, preprocess.crop_pct, crop=self.crop, **strong)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Config:
        try:
            check_field_types(Settings, found["settings"])
            check_field_types(cls, {name: value for name, value in found.items() if name != "settings"})
            return cls(**{**found, "settings": Settings(**found["settings"])})
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(f"the run's config.yaml does not fit this version ({error})", "train again") from None
