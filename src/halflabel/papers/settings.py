"""From a declared cell to what the library trains, and in words every way in which that is not the paper's setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from halflabel.experiments.shared_start import Start
from halflabel.methods.base import recipe
from halflabel.models.feature_cache import copies_for
from halflabel.papers.lengths import moved_options, moved_settings
from halflabel.papers.spec import Cell
from halflabel.training.config import STRONG_VIEW_FIELDS, Config, Settings

__all__ = ["Changes", "Setup", "set_up"]

# A head on frozen features needs other steps than a whole network: where the paper tunes all and this run does not,
# these are the library's own, and so are the method's learning rate and weight decay.
_OF_THE_NETWORK = (
    "optimizer",
    "schedule",
    "momentum",
    "step_epochs",
    "step_factor",
    "backbone_lr",
    "linear_init",
    "linear_lr",
)
_UNTRAINED = ("tiny",)


@dataclass(frozen=True)
class Changes:
    """What the user wants otherwise than the paper has it; None: as the paper."""

    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    tune: Literal["head"] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    hold: Literal["files", "device"] = "files"
    workers: int = 2


class Setup(NamedTuple):
    """How a cell is trained: all that its data set's bench needs, the method's own part, and what is not as printed."""

    config: Config
    pretrained: bool
    options: dict[str, Any]
    lr: float
    weight_decay: float
    differs: tuple[str, ...]
    start: Start | None = None


def set_up(cell: Cell, changes: Changes) -> Setup:
    """The settings of one cell with the user's changes, and a sentence for every one that is not the paper's."""
    training, how = cell.condition.training, recipe(cell.method)
    declared = {**cell.config, **cell.settings}
    wanted = {name: getattr(changes, name) for name in ("backbone", "size", "tune", "epochs", "batch_size", "lr")}
    found = {**declared, **{name: value for name, value in wanted.items() if value is not None}}
    said: list[str] = []
    # Also the rows that the paper itself does not fine-tune: one head is to be trained as another.
    frozen = changes.tune == "head" and training.config.get("tune") == "all"
    if frozen:
        for name in _OF_THE_NETWORK:
            found.pop(name, None)
        if changes.lr is None:
            found.pop("lr", None)
        found.pop("weight_decay", None)
        said.append(
            "the backbone is frozen and its features are cached, where the paper tunes the whole network: weak views "
            "are the images as they are, and optimizer, schedule, rate and weight decay those of the library for heads"
        )
        if copies := copies_for(how.make(**cell.options).views, Config.copies):
            said.append(f"{cell.row.name}: strong views are {copies} per image, cached too, in place of ever new ones")
        if how.linear_init:
            said.append(
                f"{cell.row.name}: on a frozen backbone there is no linear init, the head alone is trained anyway"
            )
    for name in ("backbone", "size", "epochs", "batch_size", "lr"):
        if found.get(name) != declared.get(name) and not (frozen and name == "lr" and changes.lr is None):
            said.append(f"{name.replace('_', ' ')} {found[name]} instead of {_printed(name, declared.get(name))}")
    if changes.weights is not None:
        said.append(f"the backbone's weights are those of {changes.weights}")
    pretrained = training.start == "pretrained"
    if pretrained and changes.weights is None and found["backbone"] in _UNTRAINED:
        said.append(f"the backbone {found['backbone']} is not pre-trained")
    if changes.precision != "no":
        said.append(f"precision {changes.precision}: the papers do not speak of half precision")
    own = {name: parameter.default for name, parameter in how.options.items()}
    before, now = (settings.get("epochs", Settings.epochs) for settings in (declared, found))
    options, moved = moved_options(cell.options, own, before, now, declared="epochs" in declared)
    found, others = moved_settings(found, before, now)
    said += [*others, *moved]
    kept = {field.name for field in fields(Settings)}
    settings = Settings(
        **{name: value for name, value in found.items() if name in kept},
        device=changes.device,
        precision=changes.precision,
    )
    if cell.condition.select == "last epoch" and settings.schedule == "plateau":
        said.append("the rate stays as it is: nothing is validated that could lower it")
    config = Config(
        backbone=found["backbone"],
        weights=changes.weights,
        size=found.get("size"),
        resize=found.get("resize", "squash"),
        tune=found.get("tune", "all"),
        linear_init=found.get("linear_init", 0),
        linear_lr=found.get("linear_lr"),
        crop=training.weak.get("least", Config.crop),
        **{name: found[name] for name in STRONG_VIEW_FIELDS if name in found},
        held_out=cell.condition.held_out,
        hold=changes.hold,
        workers=changes.workers,
        settings=settings,
    )
    if training.weak.get("flip", 0.5) != 0.5:
        said.append("images are mirrored half of the time")
    said += training.differs
    rate = found.get("lr", how.lr)
    decay = found.get("weight_decay", how.weight_decay)
    start, longer = _start(cell, found, changes)
    return Setup(config, pretrained, options, rate, decay, (*said, *longer), start)


def _start(cell: Cell, found: Mapping[str, Any], changes: Changes) -> tuple[Start | None, list[str]]:
    """What rows begin with, its epochs in proportion to those of the rows; with the rate that its own row has."""
    training = cell.condition.training
    if training.begin is None:
        return None, []
    how = recipe(training.begin.method)
    usual = training.settings.get("epochs", Settings.epochs)
    epochs = training.begin.epochs
    if changes.epochs is not None:
        epochs = max(round(epochs * changes.epochs / usual), 1)
    length = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    moved = [f"the {how.name} model that rows begin with has {length} instead of {training.begin.epochs}"]
    rate, decay = found.get("lr", how.lr), found.get("weight_decay", how.weight_decay)
    start = Start(how.name, (), rate, decay, epochs, training.begin.labelled_only)
    return start, moved if epochs != training.begin.epochs else []


def _printed(name: str, value: Any) -> str:
    """
    >>> _printed("epochs", 20), _printed("size", None), _printed("epochs", None)
    ('20', "the backbone's own", 'what the paper leaves open')
    """
    if value is None:
        return "the backbone's own" if name == "size" else "what the paper leaves open"
    return str(value)
