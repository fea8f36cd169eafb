"""From a declared cell to what the library trains, and in words every way in which that is not the paper's setting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from halflabel.experiment import Config
from halflabel.method import recipe
from halflabel.reproduce.protocol import Cell
from halflabel.train import Settings

__all__ = ["Changes", "Setup", "set_up"]

# A head on frozen features needs other steps than a whole network: where the paper tunes all and this run does not,
# these are the library's own, and so are the method's learning rate and weight decay.
_OF_THE_NETWORK = ("optimizer", "schedule", "momentum", "step_epochs", "step_factor", "backbone_lr")
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
    device: str = "auto"
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
            "the backbone is frozen and its features are cached, where the paper tunes the whole network: no "
            "augmentation, and optimizer, schedule, rate and weight decay are those of the library for heads"
        )
        if how.linear_init:
            said.append(
                f"{cell.row.name}: on a frozen backbone there is no linear init, the head alone is trained anyway"
            )
    for name in ("backbone", "size", "epochs", "batch_size", "lr"):
        if found.get(name) != declared.get(name) and not (frozen and name == "lr" and changes.lr is None):
            said.append(f"{name.replace('_', ' ')} {found[name]} instead of {_printed(declared.get(name))}")
    if changes.weights is not None:
        said.append(f"the backbone's weights are those of {changes.weights}")
    pretrained = training.start == "pretrained"
    if pretrained and changes.weights is None and found["backbone"] in _UNTRAINED:
        said.append(f"the backbone {found['backbone']} is not pre-trained")
    if changes.precision != "no":
        said.append(f"precision {changes.precision}: the papers do not speak of half precision")
    options, scaled = _scaled(cell.options, declared.get("epochs"), found.get("epochs"))
    said += scaled
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
        crop=training.weak.get("least", Config.crop),
        held_out=cell.condition.held_out,
        hold=changes.hold,
        workers=changes.workers,
        settings=settings,
    )
    if training.weak.get("flip", 0.5) != 0.5:
        said.append("images are mirrored half of the time")
    said += training.differs
    rate = found.get("lr", how.lr)
    return Setup(config, pretrained, options, rate, found.get("weight_decay", how.weight_decay), tuple(said))


def _printed(value: Any) -> str:
    return "the backbone's own" if value is None else str(value)


def _scaled(given: dict[str, Any], before: int | None, now: int | None) -> tuple[dict[str, Any], list[str]]:
    """Options that name epochs, moved in proportion where training has another length.

    >>> _scaled({"relabel_at": "10,15", "theta": 0.3}, 20, 4)[0]
    {'relabel_at': '2,3', 'theta': 0.3}
    """
    options = dict(given)
    if before and now and before != now:
        for name in ("apl_from", "warm"):
            if name in options:
                options[name] = max(round(options[name] * now / before), 1)
        if options.get("relabel_at"):
            # Not before the second epoch: a model that has learned nothing has nothing to say.
            epochs = {max(round(int(epoch) * now / before), 2) for epoch in options["relabel_at"].split(",")}
            options["relabel_at"] = ",".join(map(str, sorted(epochs)))
    names = {name: (given[name], options[name]) for name in given if given[name] != options[name]}
    return options, [
        f"{name} {new} instead of {old}, as training has {now} epochs" for name, (old, new) in names.items()
    ]
