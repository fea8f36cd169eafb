"""Every training option, declared once: name, type, bounds, default and help text.

The fields of `Config` are the content of config.yaml and the options of `train`, `compare`, `study` and `reproduce`:
to add an option, add a field. This module must not import torch, so that `--help` stays fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le

from halflabel.errors import UserError
from halflabel.features.backbone_names import DEFAULT, full_name
from halflabel.fitting.optimizer import OPTIMIZERS, SCHEDULES, check_name
from halflabel.labels.groups import absolute_group
from halflabel.labels.uncertain import parse_uncertain
from halflabel.system.validate import check_fields

if TYPE_CHECKING:
    from halflabel.features.backbones import Backbone
    from halflabel.images.views import View

COMMON = "Common options"
MODEL = "Model and starting weights"
IMAGES = "Images and views"
OPTIMIZATION = "Optimization"
SPEED = "Speed and memory"

TRAIN = ("train",)
TRAIN_AND_COMPARE = ("train", "compare")
EXPERIMENTS = ("train", "compare", "study")
EVERY_COMMAND = ("train", "compare", "study", "reproduce")
WITH_EMBED = (*EVERY_COMMAND, "embed")

Share = Annotated[float, Ge(0), Le(1)]
Amount = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Option:
    """What the command line shows of a field; `declared_options` adds what the declaration of the field says."""

    help: str
    group: str
    commands: tuple[str, ...] = TRAIN
    decided_by: str = ""  # who chooses the value where the user gives none, such as "the method"
    command_default: Any = None  # the value that the commands take where the user gives none; the field's if None
    is_path: bool = False  # a path, stored as an absolute one
    type: Any = None
    minimum: Any = None
    maximum: Any = None

    @property
    def values(self) -> str:
        """What the option can be, for a list of options."""
        if get_origin(self.type) is Literal:
            return "|".join(get_args(self.type))
        if self.type is bool:
            return "true|false"
        low = "" if self.minimum is None else f" ≥ {self.minimum:g}"
        high = "" if self.maximum is None else f" ≤ {self.maximum:g}"
        return ("TEXT" if self.type in (str, str | None) else "NUMBER") + low + high


def option(default: Any, help: str, group: str, commands: tuple[str, ...] = TRAIN, **more: Any) -> Any:
    """Declare a field of `Config` that is an option of these commands; `more` are further fields of `Option`."""
    return field(default=default, metadata={"option": Option(help, group, commands, **more)})


@dataclass(frozen=True)
class Config:
    """What to train and how; all that a run's config.yaml holds.

    Learning rates are used as given: they are never scaled by the batch size or otherwise.
    """

    method: str = "bce"
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the method
    backbone: str = option(
        DEFAULT,
        "efficientnet-lite2, which comes with the package; fast: efficientnet-lite0, half the time, about 2 mAP "
        "less; any timm model, downloaded once: docs/backbones.md names good ones and what they cost; or an .onnx "
        "file with an image encoder.",
        COMMON,
        WITH_EMBED,
    )
    weights: str | None = option(None, "A local file with the backbone's weights.", MODEL, WITH_EMBED, is_path=True)
    names: Literal["auto", "on", "off"] = option(
        "auto",
        "Start from what the class names mean to a backbone that knows the classes of ImageNet; it needs the extra "
        "halflabel[names]. auto: where that is possible.",
        MODEL,
        EXPERIMENTS,
    )
    descriptions: str | None = option(
        None,
        "A YAML file with a sentence, or a list of them, in place of the names of some classes.",
        MODEL,
        EXPERIMENTS,
        is_path=True,
    )
    begin_from: str | None = None  # a finished run whose weights training starts from
    size: int | None = option(
        None, "Image size in pixels.", IMAGES, WITH_EMBED, decided_by="the size that suits the backbone"
    )
    channels: Positive = option(
        3,
        "Bands of each image: other than 3, images are .npy arrays or TIFF files, and the backbone's first "
        "convolution is adapted.",
        IMAGES,
        (*EXPERIMENTS, "embed"),
    )
    resize: Literal["squash", "crop", "keep"] = option(
        "keep",
        "keep: the whole image in about its aspect ratio, with as many pixels as the square; squash: squeezed to "
        "the square; crop: the centre square. Where squares are needed (--tune all, heads on maps, ViTs), keep is "
        "squash.",
        IMAGES,
        (*EXPERIMENTS, "embed"),
    )
    tune: Literal["head", "all"] = option(
        "head",
        "head: freeze the backbone and train the head on cached features, fast on a CPU; all: the whole network.",
        COMMON,
        EVERY_COMMAND,
    )
    fit: Literal["auto", "linear", "batches"] = option(
        "batches",
        "linear: fit the head on all images at once by L-BFGS, with out-of-fold scores instead of held-out images; "
        "batches: in epochs of batches; auto: linear where the backbone is frozen and the method allows it. With "
        "--tune all, auto begins with the frozen recipe and is combined with it; batches does neither.",
        OPTIMIZATION,
        EXPERIMENTS,
        command_default="auto",
    )
    l2_strength: Annotated[float | None, Ge(0)] = option(
        None,
        "In a linear fit: strength of the L2 regularisation.",
        OPTIMIZATION,
        decided_by="by out-of-fold scores of known labels",
    )
    similar: bool = option(
        True,
        "In a linear fit: mix in the labels of similar training images, unless out-of-fold scores are worse.",
        OPTIMIZATION,
    )
    averaged_with: str = ""  # in a linear fit: further methods whose logits are averaged with those of the method
    candidates: str = ""  # in a linear fit: methods that are measured, to be taken instead or averaged with
    from_nothing: bool = False  # started from class names: the method is chosen anew by the labels of each run
    linear_start: bool = True  # in batches on a frozen backbone: begin at a linear fit, on its normalised features
    linear_init: int = 0  # epochs of the head alone, before the whole network is trained in plain batches
    linear_lr: float | None = None  # their learning rate, if not that of the training
    targets: Literal["labels", "soft"] = "labels"  # soft: with --tune all, also the frozen recipe's probabilities
    single: bool = option(
        False,
        "With --tune all: keep one network, so that a prediction takes one pass; else the frozen one is combined "
        "with it where that ranks held-out images better.",
        MODEL,
    )
    choose_lr: bool = False  # in batches on a frozen backbone: try smaller rates too, by the held-out images
    crop: Annotated[float, Ge(0.05), Le(1)] = 0.8  # smallest share of the image that a random crop shows
    held_out: Annotated[float, Ge(0), Le(0.9)] = option(
        0.2, "Share of the images held out for validation, in batches.", OPTIMIZATION, EXPERIMENTS, decided_by="0.2"
    )
    group: str | None = option(
        None,
        "Images that belong together, such as those of one patient: folds, splits and intervals never separate "
        "them. A column of the label file, a CSV file of images and groups, FILE:COLUMN, or a regular expression "
        "on the image names.",
        OPTIMIZATION,
        EXPERIMENTS,
    )
    uncertain: str = option(
        "ignore",
        "Train on uncertain labels as ignore, present, absent or soft (targets from 0.55 to 0.85; soft=LOW-HIGH "
        'states others); per class: "Edema=present,*=ignore". They are never evaluated.',
        OPTIMIZATION,
        EXPERIMENTS,
    )
    positives_per_image: Annotated[float, Ge(0)] = option(
        0.0,
        "Present classes of an image, on average: probabilities are made to agree with it.",
        COMMON,
        decided_by="estimated from the labels",
    )
    max_bad: Share = option(0.01, "Stop if more than this share of the images cannot be read.", IMAGES, EXPERIMENTS)
    workers: Count = option(0, "Processes that decode images.", SPEED, WITH_EMBED, command_default=2)
    epochs: Positive = option(
        10, "Passes over the training images.", OPTIMIZATION, EVERY_COMMAND, decided_by="by the number of images"
    )
    batch_size: Positive = option(32, "Images per step.", OPTIMIZATION, EVERY_COMMAND)
    lr: Amount = option(
        1e-3, "Learning rate of the head.", OPTIMIZATION, EVERY_COMMAND, decided_by="chosen by the method"
    )
    backbone_lr: Amount = option(
        0.1, "Learning rate of the backbone, as a fraction of --lr.", OPTIMIZATION, decided_by="0.1"
    )
    optimizer: str = option(
        "adamw", "Optimizer: adamw, adam, sgd, rmsprop, or one of a plugin.", OPTIMIZATION, EXPERIMENTS
    )
    weight_decay: Amount = option(1e-4, "Weight decay.", OPTIMIZATION, decided_by="chosen by the method")
    momentum: Share = 0.9  # of sgd
    schedule: str = option(
        "cosine", "Schedule of the learning rate: cosine, step, plateau, constant, or one of a plugin.", OPTIMIZATION
    )
    step_epochs: Positive = 10  # with schedule=step: between two reductions of the learning rate
    step_factor: Share = 0.1  # of each reduction, with schedule=step or plateau
    warmup: Amount = option(0.0, "Epochs of linear warm-up.", OPTIMIZATION)
    ema: Share = option(
        0.0,
        "Decay of the exponential moving average of the weights, which is evaluated and saved; 0 turns it off.",
        OPTIMIZATION,
        TRAIN_AND_COMPARE,
        decided_by="0",
    )
    precision: Literal["no", "bf16", "fp16"] = option("no", "Mixed precision; no means float32.", SPEED, EVERY_COMMAND)
    clip: Amount = option(0.0, "Largest gradient norm; 0 means no clipping.", OPTIMIZATION, EXPERIMENTS)
    compile: Literal["no", "inductor"] = option(
        "no", "inductor: compile the model by torch.compile, which takes a minute.", SPEED
    )
    deterministic: bool = option(False, "On a GPU: use deterministic algorithms where torch has them. Slower.", SPEED)
    patience: Count = option(
        0,
        "Stop after this many epochs without a better validation metric; 0 means never.",
        OPTIMIZATION,
        TRAIN_AND_COMPARE,
    )
    keep: Literal["best", "last"] = option(
        "best",
        "best: keep the weights of the epoch that ranks the held-out images best; last: those of the last epoch.",
        OPTIMIZATION,
        EXPERIMENTS,
    )
    save_every: Count = option(
        0, "Optimizer steps between checkpoints within an epoch; 0 saves only after each epoch.", SPEED
    )
    seed: int = option(0, "Random seed. The same seed gives the same result.", COMMON)
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        "auto", "Where to compute; auto uses a GPU if there is one.", COMMON, WITH_EMBED
    )
    images: str = ""  # the image folder, for resuming

    def __post_init__(self) -> None:
        values = {name: value.item() if hasattr(value, "item") else value for name, value in vars(self).items()}
        for name, value in check_fields(Config, values).items():  # numbers of NumPy become plain ones
            object.__setattr__(self, name, value)
        object.__setattr__(self, "backbone", full_name(self.backbone))
        if self.tune == "all" and self.backbone.endswith(".onnx"):
            raise UserError(f"{self.backbone} cannot be tuned", "use ‹tune=head›, or a timm model")
        object.__setattr__(self, "group", absolute_group(self.group))
        parse_uncertain(self.uncertain)  # raises for what cannot be read

    @property
    def named(self) -> str:
        """The method with its options: "bce smoothing=0.1"."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.options.items())])

    def as_dict(self) -> dict[str, Any]:
        """The content of config.yaml."""
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Config:
        """The reverse of `as_dict`; content that does not fit is a UserError."""
        try:
            if missing := {each.name for each in dataclasses.fields(cls)}.difference(content):
                raise TypeError(f"it has no {sorted(missing)[0]}")
            return cls(**content)
        except (TypeError, UserError) as error:
            reason, fix = (error.message, error.fix) if isinstance(error, UserError) else (str(error), "train again")
            raise UserError(f"the run's config.yaml does not fit this version ({reason})", fix) from None

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Config:
        """A config from options; None means the default."""
        config = cls(**{name: value for name, value in values.items() if value is not None})
        config.check_names()
        return config

    def check_names(self) -> None:
        """Raise if there is no such optimizer or schedule: for training only, a finished model needs neither."""
        check_name("optimizer", OPTIMIZERS, self.optimizer)
        check_name("schedule", SCHEDULES, self.schedule)

    def views(self, backbone: Backbone) -> dict[str, View]:
        """The plain, weak and strong views of images, at the size that suits the backbone if none is stated."""
        from halflabel.images.views import Varied, make_views

        takes_squares = self.tune == "all" or backbone.needs_squares
        resize = "squash" if self.resize == "keep" and takes_squares else self.resize
        preprocess, size = backbone.preprocess, self.size or backbone.preprocess.size
        how: dict[str, Any] = {"crop": self.crop, "channels": self.channels}
        views = make_views(size, resize, preprocess.interpolation, preprocess.crop_pct, **how)
        if self.tune == "all" and self.fit == "auto":
            views["weak"] = Varied(**vars(views["weak"]))
        return views


# Options that only training in batches uses.
OPTIONS_OF_BATCHES = (
    *("epochs", "lr", "held_out", "batch_size", "optimizer", "weight_decay", "schedule", "warmup", "ema", "clip"),
    *("patience", "save_every", "precision", "begin_from"),
)


@cache
def declared_options() -> dict[str, Option]:
    """Every option of `train` that is a field of Config, by name, in the order of declaration."""
    declared, hints = {}, get_type_hints(Config, include_extras=True)
    for each in dataclasses.fields(Config):
        if (option := each.metadata.get("option")) is not None:
            hint = hints[each.name]
            bounds = getattr(hint, "__metadata__", ())
            declared[each.name] = dataclasses.replace(
                option,
                type=getattr(hint, "__origin__", hint) if bounds else hint,
                minimum=next((bound.ge for bound in bounds if isinstance(bound, Ge)), None),
                maximum=next((bound.le for bound in bounds if isinstance(bound, Le)), None),
                command_default=each.default if option.command_default is None else option.command_default,
            )
    return declared


def parse_option(name: str, text: str) -> Any:
    """The value of an option that is written as a text."""
    return check_fields(Config, {name: text}, as_texts=True)[name]
