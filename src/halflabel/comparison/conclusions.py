"""The conclusions of comparisons and studies, in sentences that claim no more than their intervals support."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from halflabel.system.format import points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halflabel.comparison.result import Gap, Growth, Interval, Row

MEANING = {
    "partial": "some labels of every image",
    "dense": "all labels of some images",
    "noisy": "all labels, some wrong",
    "noisy+": "one positive per image, all else negative",
}


def conclude(gaps: Sequence[Gap]) -> list[str]:
    """Return conclusions for which the interval excludes 0."""
    sentences = []
    for other in ("dense", "noisy"):
        same = [gap for gap in gaps if gap.other == other and gap.share == gap.other_share]
        if not same:
            continue
        parts = []
        for kind, word in (("better", "higher"), ("worse", "lower")):
            if significant := [gap for gap in same if getattr(gap, kind)]:
                parts.append(f"a {word} mAP than {other} ones with {_list(significant)}")
        undecided = [f"{100 * gap.share:g} %" for gap in same if not (gap.better or gap.worse)]
        text = f"partial labels give {' and '.join(parts)}" if parts else ""
        unsure = (
            f"no difference between partial and {other} labels is significant with {', '.join(undecided)}"
            if undecided
            else ""
        )
        sentences.append("With the same number of clean labels, " + "; ".join(filter(None, (text, unsure))) + ".")
    for other, name in (("noisy", "all labels of which {:.3g} % are wrong"), ("noisy+", "noisy+ ({:.3g} % wrong)")):
        for share in sorted({gap.other_share for gap in gaps if gap.other == other}, reverse=True):
            compared = [gap for gap in gaps if gap.other == other and gap.other_share == share]
            wrong = name.format(100 * (1 - share))
            if better := [gap for gap in compared if gap.better]:
                least = min(better, key=lambda gap: gap.share)
                sentences.append(f"{_percent(least.share)} of the labels, clean, beat {wrong}: {_difference(least)}.")
                break  # the cleanest noisy labels are the strongest comparison
            if other == "noisy+":
                worse = [gap for gap in compared if gap.worse]
                sentences.append(
                    f"Partial labels give a lower mAP than {wrong} with {_list(worse)}."
                    if worse
                    else f"No share differs significantly from {wrong}."
                )
    return sentences


def _list(gaps: Sequence[Gap]) -> str:
    return ", ".join(f"{_percent(gap.share)} ({_difference(gap)})" for gap in gaps)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _difference(gap: Gap) -> str:
    return f"{_points(gap.difference)} points of mAP, {_points(gap.low)} to {_points(gap.high)}"


def _points(value: float) -> str:
    """Format a difference of mAP."""
    return points(value, 2, signed=True)


def conclude_growth(law: Growth) -> str:
    """Return the expected gain of twice the labels, and whether it is worth it."""
    gain, backtest, worth = law.gain, law.backtest, law.worth
    if math.isnan(gain.mean):
        return "Too few runs are finished for a curve: give it more time."
    advice = f"Doubling the labels is expected to give {_between(gain)} points of mAP"
    advice += {
        "no": f": less than the {worth:g} that would make it worth it. Stop labelling more of the same.",
        "yes": f": at least the {worth:g} that make it worth it. Continue labelling.",
        "open": f"; whether it reaches the {worth:g} that would make it worth it is uncertain.",
    }[verdict(gain, worth)]
    if backtest is not None:
        advice += " Backtest: " if backtest.held else " Caution, the backtest failed: "
        advice += (
            f"from half of the labels the same fit predicted {_between(backtest.foretold)} for the last doubling, "
            f"which gave {_points(backtest.measured)}."
        )
    return advice


def verdict(gain: Interval, worth: float) -> Literal["yes", "no", "open"]:
    """Return whether a gain of mAP reaches `worth` points, by its interval."""
    return "no" if 100 * gain.high < worth else "yes" if 100 * gain.low >= worth else "open"


def _between(value: Interval) -> str:
    return f"{_points(value.mean)} ({_points(value.low)} to {_points(value.high)})"


def describe_control(gaps: Sequence[Gap]) -> str:
    """Compare whole images with as many labels drawn at random over all images; "" without gaps."""
    if not gaps:
        return ""
    text = "Control: as many labels drawn at random over all images, instead of whole images."
    sentences = (
        ("worse", " Whole images are worse at {}: as many labels spread over all images are better."),
        ("better", " Whole images are better at {}."),
    )
    differing = ""
    for kind, sentence in sentences:
        if significant := [gap for gap in gaps if getattr(gap, kind)]:
            shown = ", ".join(f"{_percent(gap.share)} ({_points(gap.difference)})" for gap in significant)
            differing += sentence.format(shown)
    return text + (differing or " There is no significant difference.")


def conclude_comparison(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return for each set of labels which method is best, by how much, and whether that may be chance."""
    oracle = next((row for row in rows if row.role == "oracle"), None)
    ranked: dict[str, list[Row]] = {}
    for row in rows:
        if row.role != "oracle":
            ranked.setdefault(row.labels, []).append(row)
    return tuple(
        f"Labels {labels}: {_best_method(methods)}{_references(methods, oracle)}" for labels, methods in ranked.items()
    )


def _best_method(rows: Sequence[Row]) -> str:
    """Return a sentence on the best of the rows, which are ordered."""
    best = rows[0]
    others = [row for row in rows[1:] if not math.isnan(row.behind)]
    if not others:
        return f"{best.method} has mAP {points(best.mAP)}; no other method was compared."
    second = others[0]
    naive = f" ({second.reference})" if second.reference else ""
    lead = f"{points(-second.behind, 2)} points of mAP ahead of {second.method}{naive} {_lead_interval(second)}"
    if second.behind_high < 0:
        return f"{best.method} is best, mAP {points(best.mAP)}, {lead}: hardly chance."
    close = [row.method for row in others[1:] if row.behind_high >= 0]
    further = f", as may be that over {', '.join(close)}" if close else ""
    seeds = "more seeds" if best.seeds < 5 else "more test images"
    return (
        f"{best.method} has the highest mAP, {points(best.mAP)}, {lead}: the lead may be chance{further}; "
        f"{seeds} would tell."
    )


def _references(rows: Sequence[Row], oracle: Row | None) -> str:
    """Return sentences on the naive reading and on full labels, where these were trained."""
    naive = next((row for row in rows if row.role == "naive"), None)
    text = ""
    if naive is not None and naive not in rows[:2] and not math.isnan(naive.behind):
        text += (
            f" The naive reading, {naive.reference}, has {points(naive.mAP)}: {points(-naive.behind, 2)} points less "
            f"{_lead_interval(naive)}."
        )
    if oracle is not None:
        text += f" With {oracle.reference}, {oracle.method} has {points(oracle.mAP)}."
    return text


def _lead_interval(row: Row) -> str:
    """The interval of the lead of the best method over this one."""
    return f"(95 %: {points(-row.behind_high, 2, signed=True)} to {points(-row.behind_low, 2, signed=True)})"
