"""What the folder of a study says, gathered for its page; folders of this machine stay out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from halflabel.errors import UserError
from halflabel.experiments.learning_curve import Backtest
from halflabel.experiments.result import Interval
from halflabel.experiments.study import Gap, Growth, Point, Study
from halflabel.runs.redact import shown_command, shown_name, without_folders
from halflabel.system.files import check_fields

__all__ = ["ToldStudy", "read_study"]

T = TypeVar("T", Point, Gap)


@dataclass(frozen=True)
class ToldStudy:
    """What the folder of a study says; `commands` as they may be passed on."""

    folder: Path
    config: dict[str, Any]
    found: Study | Growth
    commands: tuple[str, ...]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(point.strategy for point in self.found.points))

    @property
    def seeds(self) -> int:
        """The fewest seeds that a point is made of."""
        return min(point.seeds for point in self.found.points)

    def of(self, strategy: str) -> list[Point]:
        """The points of a strategy, from few labels to many."""
        return sorted((p for p in self.found.points if p.strategy == strategy), key=lambda point: point.share)

    def labels(self, strategy: str, share: float) -> int | None:
        """How many labels training knew there; None where nothing is finished."""
        return next((p.labels for p in self.of(strategy) if math.isclose(p.share, share)), None)


def read_study(folder: Path) -> ToldStudy:
    """Read what `halflabel study` left in a folder."""
    path, again = folder / "study.json", "run the same `halflabel study` command again: it goes on"
    if not path.exists():
        raise UserError(f"{folder} has no study.json: the study was stopped before its end", again)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = json.loads(path.read_text(encoding="utf-8"))
        told = ToldStudy(
            folder=folder,
            config={key: value for key, value in config.items() if key != "what"},
            found=_growth(found) if "curve" in found else _study(found),
            commands=tuple(shown_command(list(map(str, words))) for words in found.get("commands", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})", again) from None
    if not told.found.points:
        raise UserError(f"{folder} holds not one finished run", again)
    return told


def _study(found: Mapping[str, Any]) -> Study:
    return Study(**_shared(found), conclusions=_sentences(found, "conclusions"))


def _growth(found: Mapping[str, Any]) -> Growth:
    back = found["backtest"]
    return Growth(
        **_shared(found),
        law=_numbers(found["law"], 3),
        curve=tuple(_numbers(one, 4) for one in found["curve"]),
        gain=Interval(*_numbers(found["gain"], 3)),
        backtest=None if back is None else Backtest(Interval(*_numbers(back[0], 3)), float(back[1])),
        ahead=tuple(_numbers(one, 4) for one in found.get("ahead", ())),  # an earlier version has none
        worth=float(found["worth"]),
        advice=_sentences(found, "advice")[0],
        control=_sentences(found, "control")[0],
    )


def _shared(found: Mapping[str, Any]) -> dict[str, Any]:
    """What both kinds of study have."""
    return {
        "method": shown_name(str(found["method"])),
        "points": tuple(_record(Point, one) for one in found["points"]),
        "gaps": tuple(_record(Gap, one) for one in found["gaps"]),
        "steps": tuple(_record(Gap, one) for one in found.get("steps", ())),  # an earlier version has none
        "protocol": _sentences(found, "protocol"),
        "failures": _sentences(found, "failures"),
        "left_out": int(found["left_out"]),
    }


def _sentences(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A sentence or several, in which the method is called as it may be shown, and paths have lost their folders."""
    method, said = str(found["method"]), found[name]
    lines = [said] if isinstance(said, str) else said
    return tuple(without_folders(str(line).replace(method, shown_name(method))) for line in lines)


def _record(kind: type[T], found: Mapping[str, Any]) -> T:
    """A point or a difference again; what JSON cannot hold was written as null."""
    numbers = {field.name for field in fields(kind) if field.type == "float"}
    values: dict[str, Any] = {
        name: math.nan if value is None and name in numbers else value for name, value in found.items()
    }
    if "per_seed" in values:
        values["per_seed"] = _numbers(values["per_seed"])
    check_fields(kind, {name: value for name, value in values.items() if found[name] is not None})
    return kind(**values)


def _numbers(values: Any, many: int | None = None) -> Any:
    """A list of numbers; null stands for what is not finite."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.40} is no list of numbers")
    found = tuple(math.nan if value is None else float(value) for value in values)
    if many is not None and len(found) != many:
        raise ValueError(f"{len(found)} numbers where {many} are expected")
    return found
