"""How labels are best spent, in pictures and in sentences that say no more than the intervals do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from halflabel.papers.figures.canvas import BLUE, GREY, ORANGE, literal, save_figure
from halflabel.system.format import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halflabel.experiments.learning_curve import Extrapolation
    from halflabel.experiments.result import Interval
    from halflabel.experiments.study import Gap, Growth, Point, Study

__all__ = ["MEANING", "advise", "conclude", "describe_control", "draw_growth", "draw_study", "out_of_sight", "verdict"]

_MARKS = {"partial": ("o", BLUE), "dense": ("s", ORANGE), "noisy": ("^", GREY), "noisy+": ("D", "black")}
_ASIDE: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "color": "#6b7280"}
MEANING = {
    "partial": "some labels of every image",
    "dense": "all labels of some images",
    "noisy": "all labels, some wrong",
    "noisy+": "one positive per image, all else negative",
}


def draw_study(found: Study, path: Path) -> None:
    """Test mAP against the share of clean labels, one line per strategy, with 95 % intervals."""
    figure, axis = _axis()
    low = out_of_sight(found.points)
    names = list(dict.fromkeys(point.strategy for point in found.points))
    for place, strategy in enumerate(names):
        mark, colour = _MARKS[strategy]
        mine = [point for point in found.points if point.strategy == strategy and point not in low]
        named = f"{strategy}: {MEANING[strategy]}"
        _line(axis, mine, named, mark, colour, shift=place - (len(names) - 1) / 2)
    _finish(axis, sorted({point.share for point in found.points if point.strategy != "noisy+"}))
    below = [f"{point.strategy} {100 * point.share:.3g} %: {points(point.mAP)}" for point in low]
    note = f"\nbelow the picture: {', '.join(below)}" if below else ""
    axis.set_xlabel(f"share of the labels that are there and right{note}")
    axis.set_title(
        f"{literal(found.method)}: the same number of clean labels, spent in several ways", fontsize="medium"
    )
    save_figure(figure, path)


def out_of_sight(points: Sequence[Point]) -> list[Point]:
    """Points to name, not to draw: labels that are half wrong teach nothing, and beside them all others look alike."""
    others = [point for point in points if point.strategy != "noisy"]
    low = min((point.low for point in others), default=0.0)
    floor = low - 0.1 * (max((point.high for point in others), default=low) - low)
    return [point for point in points if point.mAP < floor]


def draw_growth(found: Growth, path: Path) -> None:
    """The learning curve, its control, the fitted law and what twice the labels are expected to give."""
    figure, axis = _axis()
    share, law, low, high = np.array(found.curve).T
    axis.fill_between(share, 100 * low, 100 * high, color=BLUE, alpha=0.15, lw=0)
    axis.plot(share, 100 * law, color=BLUE, lw=1, ls="--", label="power law fitted to whole images, 95 % interval")
    names = list(dict.fromkeys(point.strategy for point in found.points))
    for place, (name, mark, colour) in enumerate(zip(names, "os", (BLUE, GREY), strict=False)):
        mine = [point for point in found.points if point.strategy == name]
        _line(axis, mine, name, mark, colour, joined=False, shift=place - (len(names) - 1) / 2)
    axis.axvline(1.0, color=GREY, lw=0.8)
    axis.annotate("all labels there are", (1.0, 0.02), xycoords=("data", "axes fraction"), fontsize="small", **_ASIDE)
    _finish(axis, [*sorted({point.share for point in found.points}), 2.0])
    axis.set_xlabel("share of the labels there are (200 %: twice as many)")
    axis.set_title(_headline(found), fontsize="medium")
    save_figure(figure, path)


def _headline(found: Growth) -> str:
    """What the picture says, and where its own test contradicts it, that too."""
    said = found.advice.partition(". ")[0].partition(";")[0].partition(": ")[0]
    back = found.backtest
    if back is None or back.held:
        return said
    return (
        f"{said}\nWith care: the last doubling gave {_points(back.measured)}, where this fit foretold "
        f"{_between(back.foretold)}"
    )


def _axis() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    return figure, figure.subplots()


def _line(
    axis: Any, points: Sequence[Point], name: str, mark: str, colour: str, *, joined: bool = True, shift: float = 0
) -> None:
    """Values with their intervals; `shift` moves them a little aside, so that equal ones do not hide each other."""
    line = sorted(points, key=lambda point: point.share)
    value, low, high = 100 * np.array([[point.mAP, point.low, point.high] for point in line]).reshape(-1, 3).T
    errors = np.maximum([value - low, high - value], 0)
    style = "-" if joined else "none"
    shares = [point.share * 1.025**shift for point in line]
    axis.errorbar(shares, value, yerr=errors, label=name, color=colour, marker=mark, ls=style, ms=5, capsize=2)


def _finish(axis: Any, shares: Sequence[float]) -> None:
    axis.set_xscale("log")
    axis.set_xticks(shares, [f"{100 * share:.3g} %" for share in shares])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.set_ylabel("test mAP in points (of 100), 95 % interval")
    axis.legend(fontsize="small")


def conclude(gaps: Sequence[Gap]) -> list[str]:
    """Only what an interval without 0 supports."""
    said = []
    for other in ("dense", "noisy"):
        same = [gap for gap in gaps if gap.other == other and gap.share == gap.other_share]
        if not same:
            continue
        parts = []
        for kind, word in (("better", "higher"), ("worse", "lower")):
            if told := [gap for gap in same if getattr(gap, kind)]:
                parts.append(f"a {word} mAP than {other} ones with {_list(told)}")
        open_ = [f"{100 * gap.share:g} %" for gap in same if not (gap.better or gap.worse)]
        text = f"partial labels give {' and '.join(parts)}" if parts else ""
        unsure = (
            f"no difference between partial and {other} labels can be told with {', '.join(open_)}" if open_ else ""
        )
        said.append("With the same number of clean labels, " + "; ".join(filter(None, (text, unsure))) + ".")
    for other, name in (("noisy", "all labels of which {:.3g} % are wrong"), ("noisy+", "noisy+ ({:.3g} % wrong)")):
        for at in sorted({gap.other_share for gap in gaps if gap.other == other}, reverse=True):
            mine = [gap for gap in gaps if gap.other == other and gap.other_share == at]
            wrong = name.format(100 * (1 - at))
            if told := [gap for gap in mine if gap.better]:
                least = min(told, key=lambda gap: gap.share)
                said.append(f"{_percent(least.share)} of the labels, clean, beat {wrong}: {_difference(least)}.")
                break  # the cleanest of the noisy ones says most
            if other == "noisy+":
                worse = [gap for gap in mine if gap.worse]
                said.append(
                    f"Partial labels give a lower mAP than {wrong} with {_list(worse)}."
                    if worse
                    else f"No share that was tried is told from {wrong}."
                )
    return said


def _list(gaps: Sequence[Gap]) -> str:
    return ", ".join(f"{_percent(gap.share)} ({_difference(gap)})" for gap in gaps)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _difference(gap: Gap) -> str:
    return f"{_points(gap.difference)} points of mAP, {_points(gap.low)} to {_points(gap.high)}"


def _points(value: float) -> str:
    """A difference of mAP."""
    return points(value, 2, signed=True)


def advise(law: Extrapolation, worth: float) -> str:
    """What twice the labels are expected to give, and what that means for someone who wants `worth` points."""
    gain, backtest = law.gain, law.backtest
    said = f"Doubling the labels is expected to give {_between(gain)} points of mAP"
    said += {
        "no": f": less than the {worth:g} that would make it worth it. Stop labelling more of the same.",
        "yes": f": at least the {worth:g} that make it worth it. Go on labelling.",
        "open": f"; whether that is the {worth:g} that would make it worth it cannot be told.",
    }[verdict(gain, worth)]
    if backtest is not None:
        said += " Tested on itself: " if backtest.held else " With care: "
        said += (
            f"from half of the labels the same fit foretold {_between(backtest.foretold)} for the last doubling, which "
            f"gave {_points(backtest.measured)}."
        )
    return said


def verdict(gain: Interval, worth: float) -> Literal["yes", "no", "open"]:
    """Whether a gain of mAP is the `worth` points that someone wants, as far as its interval tells."""
    return "no" if 100 * gain.high < worth else "yes" if 100 * gain.low >= worth else "open"


def _between(value: Interval) -> str:
    return f"{_points(value.mean)} ({_points(value.low)} to {_points(value.high)})"


def describe_control(gaps: Sequence[Gap]) -> str:
    """What the control says: whole images against labels drawn at random over all images; nothing without gaps."""
    if not gaps:
        return ""
    said = "Control: as many labels drawn at random over all images, instead of whole images."
    if worse := [gap for gap in gaps if gap.worse]:
        shown = ", ".join(f"{_percent(gap.share)} ({_points(gap.difference)})" for gap in worse)
        said += f" Whole images do worse at {shown}: as many labels spread over all images do better."
    if better := [gap for gap in gaps if gap.better]:
        shown = ", ".join(f"{_percent(gap.share)} ({_points(gap.difference)})" for gap in better)
        said += f" Whole images do better at {shown}."
    return said if worse or better else f"{said} The two cannot be told apart."
