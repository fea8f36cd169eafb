"""What is counted in epochs, moved in proportion where training has another length than the table's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["moved_options", "moved_settings"]

# Settings and fields of the configuration, of which those that a table gives are moved.
_SETTINGS = ("linear_init", "patience", "step_epochs", "warmup")
# Options of methods. So many epochs come before something begins,
_BEFORE = ("apl_from", "prior_epochs", "start", "warm")
# or it begins with this one, counted from 1;
_WITH = ("cr_from", "start_epoch")
# it lasts, or comes back after, so many;
_LASTING = ("apl_to", "every", "span")
# and what changes by so much in each. `relabel_at` lists epochs, as in 10,15.
_PER_EPOCH = ("theta_fall",)


def moved_settings(found: Mapping[str, Any], before: int, now: int) -> tuple[dict[str, Any], list[str]]:
    """The settings with what they count in epochs in proportion, and a sentence for each that is another or cannot be.

    >>> moved_settings({"step_epochs": 10, "lr": 0.1}, 20, 8)
    ({'step_epochs': 4, 'lr': 0.1}, ['step epochs 4 instead of 10, as training has 8 epochs'])
    >>> moved_settings({"patience": 1}, 10, 5)[1]
    ['patience stays 1, the least, though training has 5 epochs instead of 10']
    """
    moved, stays = dict(found), list[str]()
    for name in _SETTINGS:
        value = found.get(name, 0)
        if before != now and value > 0:
            share = value * now / before
            moved[name] = share if name == "warmup" else max(round(share), 1)
            stays += [name] if value == moved[name] > max(round(share), 0) else []
    return moved, _said(found, moved, stays, before, now)


def moved_options(
    given: Mapping[str, Any], own: Mapping[str, Any], before: int, now: int, *, declared: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """The same of a method's options: those that the table gives, and of its `own` defaults those that are moved.

    Where the table does not say how long it trains (declared=False), epochs that it names are no share of that length.
    Then only what would begin too late is moved, and only where training is shorter.

    >>> moved_options({"relabel_at": "10,15", "theta": 0.3}, {}, 20, 4)[0]
    {'relabel_at': '2,3', 'theta': 0.3}
    >>> moved_options({}, {"warm": 5, "every": 5, "theta_fall": 0.025}, 20, 40)[0]
    {'warm': 10, 'every': 10, 'theta_fall': 0.0125}
    >>> moved_options({}, {"start": 5, "every": 20}, 20, 4, declared=False)
    ({'start': 1}, ['start 1 instead of 5, as training has 4 epochs'])
    >>> moved_options({}, {"start": 5, "every": 20}, 20, 40, declared=False)
    ({}, [])
    """
    if before == now or not (declared or now < before):
        return dict(given), []
    was = {**own, **given}
    moved, stays = dict(was), list[str]()
    for name in [*_BEFORE, *_WITH, *(_LASTING if declared else ())]:
        # 0 and less stand for something else: at once, never, to the end.
        if (value := was.get(name, 0)) > 0:
            # Nothing that waits for a model begins with the first epoch: it has learned nothing.
            least = min(value, 2) if name in _WITH else 1
            share = round(value * now / before)
            moved[name] = value if name in _WITH and value == 1 else max(share, least)
            stays += [name] if value == moved[name] > max(share, 0) else []
    for name in _PER_EPOCH if declared else ():
        if name in was:
            moved[name] = was[name] * before / now
    if was.get("relabel_at"):
        epochs = {max(round(int(epoch) * now / before), 2) for epoch in was["relabel_at"].split(",")}
        moved["relabel_at"] = ",".join(map(str, sorted(epochs)))
    options = {name: value for name, value in moved.items() if name in given or value != was[name]}
    return options, _said(was, moved, stays, before, now)


def _said(was: Mapping[str, Any], moved: Mapping[str, Any], stays: list[str], before: int, now: int) -> list[str]:
    length = f"training has {now} epoch{'s' if now > 1 else ''}"
    said = [
        f"{_named(name)} {_number(value)} instead of {_number(was[name])}, as {length}"
        for name, value in moved.items()
        if value != was[name]
    ]
    return said + [
        f"{_named(name)} stays {was[name]}, the least, though {length} instead of {before}" for name in stays
    ]


def _named(name: str) -> str:
    """Settings in words; options by the name that they are given by."""
    return name.replace("_", " ") if name in _SETTINGS else name


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
