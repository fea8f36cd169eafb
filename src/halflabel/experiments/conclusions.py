"""The conclusions of a study in sentences that claim no more than the confidence intervals support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from halflabel.system.format import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halflabel.experiments.learning_curve import Extrapolation
    from halflabel.experiments.result import Interval
    from halflabel.experiments.study import Gap, Point

__all__ = ["MEANING", "advise", "conclude", "describe_control", "out_of_sight", "verdict"]

MEANING = {
    "partial": "some labels of every image",
    "dense": "all labels of some images",
    "noisy": "all labels, some wrong",
    "noisy+": "one positive per image, all else negative",
}


def out_of_sight(points: Sequence[Point]) -> list[Point]:
    """Points to name, not to draw: labels that are half wrong teach nothing, and beside them all others look alike."""
    others = [point for point in points if point.strategy != "noisy"]
    low = min((point.low for point in others), default=0.0)
    floor = low - 0.1 * (max((point.high for point in others), default=low) - low)
    return [point for point in points if point.mAP < floor]


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
