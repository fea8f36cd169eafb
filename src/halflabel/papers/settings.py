"""From a cell of a table to training settings, with a line for every deviation from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from halflabel.comparison.bench import Start
from halflabel.features.feature_cache import copies_for
from halflabel.fitting.config import Config
from halflabel.methods.base import WAYS, Recipe, recipe
from halflabel.papers.spec import Cell

# Settings for training a whole network. A head on frozen features needs other steps: where the paper tunes the whole
# network and this run does not, the library's own values are used, and the method's learning rate and weight decay.
_NETWORK_SETTINGS = (
    "optimizer",
    "schedule",
    "momentum",
    "step_epochs",
    "step_factor",
    "backbone_lr",
    "linear_init",
    "linear_lr",
)

# Settings that count epochs.
_EPOCH_SETTINGS = ("linear_init", "patience", "step_epochs", "warmup")


@dataclass(frozen=True)
class Overrides:
    """Settings of the user that replace the paper's; None: as in the paper."""

    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    tune: Literal["head"] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    workers: int = 2


class CellSetup(NamedTuple):
    """How a cell is trained; `differs` concerns all rows of the condition, `row_differs` only this row."""

    config: Config
    pretrained: bool
    options: dict[str, Any]
    lr: float
    weight_decay: float
    differs: tuple[str, ...]
    row_differs: tuple[str, ...] = ()
    start: Start | None = None


def set_up_cell(cell: Cell, overrides: Overrides) -> CellSetup:
    """The settings of one cell with the user's overrides, and a line for every setting that is not the paper's."""
    training, method, declared = cell.condition.training, recipe(cell.method), cell.config
    # Rows whose backbone the paper itself freezes get the library's settings for heads, too: all heads train alike.
    frozen = overrides.tune == "head" and training.config.get("tune") == "all"
    names = ("backbone", "size", "tune", "epochs", "batch_size", "lr")
    effective = {**declared, **{name: value for name in names if (value := getattr(overrides, name)) is not None}}
    if frozen:  # without settings for a network, except what a row itself sets, such as a rate
        dropped = {*_NETWORK_SETTINGS, "weight_decay", *(["lr"] if overrides.lr is None else [])}
        dropped -= set(cell.row.config) - {"linear_init", "linear_lr"}
        effective = {name: value for name, value in effective.items() if name not in dropped}
    before, now = (settings.get("epochs", Config.epochs) for settings in (declared, effective))
    effective = scale_settings(effective, before, now)
    options = scale_options(method, cell.options, before, now, declared="epochs" in declared)
    way = "network" if effective.get("tune") == "all" else "batches"
    options = {name: value for name, value in options.items() if way in method.only_in.get(name, WAYS)}
    config = Config(
        **{"resize": "squash", "tune": "all", **effective},
        weights=overrides.weights,
        names="off",  # the papers had none
        linear_start=False,  # nor a start by L-BFGS
        crop=training.weak_view.get("least", Config.crop),
        held_out=cell.condition.held_out,
        device=overrides.device,
        precision=overrides.precision,
        workers=overrides.workers,
    )
    start = _start(cell, effective, overrides)

    differs = []
    if frozen:
        differs.append(
            "the backbone is frozen and its features are cached; the paper tunes the whole network. Optimizer, "
            "schedule, learning rate and weight decay are the library's for heads"
        )
    for name, value in effective.items():
        if name != "tune" and value != declared.get(name):
            paper = declared.get(name, "the backbone's own" if name == "size" else "an unstated value")
            differs.append(f"{name.replace('_', ' ')} {_shown(value)} instead of {_shown(paper)}")
    if overrides.weights is not None:
        differs.append(f"the backbone's weights are those of {overrides.weights}")
    if overrides.precision != "no":
        differs.append(f"precision {overrides.precision}: the papers do not mention half precision")
    if start is not None and training.initial_model is not None and start.epochs != training.initial_model.epochs:
        differs.append(
            f"the initial model {start.method} has {start.epochs} instead of {training.initial_model.epochs} epochs"
        )
    stated = {name: each.default for name, each in method.options.items()} | cell.options
    changed = [
        f"{name} {_shown(value)} instead of {_shown(stated[name])}"
        for name, value in options.items()
        if value != stated[name]
    ]
    row_differs = [", ".join(changed)] if changed else []
    if frozen and (copies := copies_for(method.make(**cell.options).views)):
        row_differs.insert(0, f"{copies} strong views per image are cached instead of new ones in every epoch")
    return CellSetup(
        config,
        training.backbone_weights == "pretrained" or overrides.weights is not None,
        options,
        effective.get("lr", method.lr),
        effective.get("weight_decay", method.weight_decay),
        (*differs, *training.differs),
        tuple(row_differs),
        start,
    )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _start(cell: Cell, effective: Mapping[str, Any], overrides: Overrides) -> Start | None:
    """The model that rows start from; its number of epochs is scaled with that of the rows."""
    training = cell.condition.training
    if training.initial_model is None:
        return None
    method, epochs = recipe(training.initial_model.method), training.initial_model.epochs
    if overrides.epochs is not None:
        epochs = max(round(epochs * overrides.epochs / training.config.get("epochs", Config.epochs)), 1)
    lr, weight_decay = effective.get("lr", method.lr), effective.get("weight_decay", method.weight_decay)
    return Start(method.name, (), lr, weight_decay, epochs, training.initial_model.labelled_only)


def scale_settings(settings: Mapping[str, Any], before: int, now: int) -> dict[str, Any]:
    """Scale the settings that count epochs from `before` to `now` epochs of training.

    >>> scale_settings({"step_epochs": 10, "lr": 0.1}, 20, 8)
    {'step_epochs': 4, 'lr': 0.1}
    """
    scaled = dict(settings)
    for name in _EPOCH_SETTINGS:
        if before != now and settings.get(name, 0) > 0:
            value = settings[name] * now / before
            scaled[name] = value if name == "warmup" else max(round(value), 1)
    return scaled


def scale_options(
    method: str | Recipe, options: Mapping[str, Any], before: int, now: int, *, declared: bool = True
) -> dict[str, Any]:
    """Scale the options of a method that count epochs: the given options, plus those defaults that change.

    Where the table does not state its training length (declared=False), only what would begin too late is scaled.

    >>> scale_options("plcl", {"relabel_at": "10,15", "theta": 0.3}, 20, 4)
    {'theta': 0.3, 'relabel_at': '2,3'}
    """
    if before == now or not (declared or now < before):
        return dict(options)
    of_method = recipe(method)
    unscaled = {name: option.default for name, option in of_method.options.items()} | dict(options)
    scaled = dict(unscaled)
    for name, kind in of_method.counting_epochs().items():
        value = unscaled[name]
        if kind == "list" and value:
            epochs = {max(round(int(epoch) * now / before), 2) for epoch in value.split(",")}
            scaled[name] = ",".join(map(str, sorted(epochs)))
        elif kind == "per" and declared:
            scaled[name] = value * before / now
        # 0 and negative values have another meaning: immediately, never, to the end.
        elif (kind in ("after", "from") or (kind == "duration" and declared)) and value > 0:
            # What depends on a trained model cannot begin with the first epoch.
            least = min(value, 2) if kind == "from" else 1
            scaled[name] = value if kind == "from" and value == 1 else max(round(value * now / before), least)
    return {
        name: value
        for name, value in scaled.items()
        if name in options or (value != unscaled[name] and of_method.blocking(name, scaled) is None)
    }
