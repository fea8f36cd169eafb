"""Read everything that the page of a study shows from its folder, without folder names of this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from halflabel.comparison.learning_curve import Backtest
from halflabel.comparison.result import Interval
from halflabel.comparison.study_result import Gap, Growth, Point, Study
from halflabel.report.layout import nan_for_null, read_experiment
from halflabel.runs.redact import shown_command, shown_name, without_folders
from halflabel.system.validate import check_fields

T = TypeVar("T", Point, Gap)


@dataclass(frozen=True)
class StudyFacts:
    """One study; `commands` hold no folder names."""

    folder: Path
    config: dict[str, Any]
    result: Study | Growth
    commands: tuple[str, ...]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(point.strategy for point in self.result.points))

    @property
    def seeds(self) -> int:
        """The smallest number of seeds of a point."""
        return min(point.seeds for point in self.result.points)

    def points_of(self, strategy: str) -> list[Point]:
        """Return the points of a strategy, from few labels to many."""
        return sorted((p for p in self.result.points if p.strategy == strategy), key=lambda point: point.share)

    def labels(self, strategy: str, share: float) -> int | None:
        """Return the number of labels known to training at a point; None where no run of it is finished."""
        return next((p.labels for p in self.points_of(strategy) if math.isclose(p.share, share)), None)


def read_study(folder: Path) -> StudyFacts:
    """Read the folder that `halflabel study` wrote."""
    return read_experiment(folder, "study", "study", lambda *parts: _facts(folder, *parts))


def _facts(folder: Path, config: dict[str, Any], content: Mapping[str, Any]) -> StudyFacts:
    if "curve" in content:
        result: Study | Growth = _growth(content)
    else:
        result = Study(**_shared(content), conclusions=_sentences(content, "conclusions"))
    commands = tuple(shown_command(list(map(str, words))) for words in content.get("commands", ()))
    return StudyFacts(folder, config, result, commands)


def _growth(content: Mapping[str, Any]) -> Growth:
    back = content["backtest"]
    return Growth(
        **_shared(content),
        law=_numbers(content["law"], 3),
        curve=tuple(_numbers(values, 4) for values in content["curve"]),
        gain=Interval(*_numbers(content["gain"], 3)),
        backtest=None if back is None else Backtest(Interval(*_numbers(back[0], 3)), float(back[1])),
        ahead=tuple(_numbers(values, 4) for values in content["ahead"]),
        worth=float(content["worth"]),
        advice=_sentences(content, "advice")[0],
        control=_sentences(content, "control")[0],
    )


def _shared(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that both kinds of study have."""
    return {
        "method": shown_name(str(content["method"])),
        "points": tuple(_record(Point, point) for point in content["points"]),
        "gaps": tuple(_record(Gap, gap) for gap in content["gaps"]),
        "steps": tuple(_record(Gap, gap) for gap in content["steps"]),
        "protocol": _sentences(content, "protocol"),
        "failures": _sentences(content, "failures"),
        "left_out": int(content["left_out"]),
    }


def _sentences(content: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return one or several sentences without folder names."""
    method, text = str(content["method"]), content[name]
    lines = [text] if isinstance(text, str) else text
    return tuple(without_folders(str(line).replace(method, shown_name(method))) for line in lines)


def _record(kind: type[T], content: Mapping[str, Any]) -> T:
    """Build a point or a difference from JSON."""
    values = nan_for_null(kind, content)
    if "per_seed" in values:
        values["per_seed"] = _numbers(values["per_seed"])
    check_fields(kind, {name: value for name, value in values.items() if content[name] is not None})
    return kind(**values)


def _numbers(values: Any, length: int | None = None) -> Any:
    """Convert a JSON list of numbers; null stands for a number that is not finite."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.40} is not a list of numbers")
    numbers = tuple(math.nan if value is None else float(value) for value in values)
    if length is not None and len(numbers) != length:
        raise ValueError(f"{len(numbers)} numbers where {length} are expected")
    return numbers
