"""The HTML page of a study: how to spend labels, or whether to get more, and how certain that is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from halflabel.comparison.conclusions import MEANING, points_below_chart, verdict
from halflabel.comparison.result import Interval
from halflabel.comparison.study_result import Gap, Growth, Point, Study
from halflabel.report import svg
from halflabel.report.layout import (
    ENOUGH_SEEDS,
    cell,
    cell_with_note,
    comparison_footer,
    method_summary,
    missing_runs,
    name_cell,
    scroll_table,
    section,
    section_links,
    share_chart,
    signed_interval,
    signed_points,
    training_summary,
)
from halflabel.report.study_facts import StudyFacts, read_study
from halflabel.report.svg import figure
from halflabel.system.format import counted, points, shorten
from halflabel.system.html import Html, count, document, el

_LINKS = {
    "question": "Question",
    "curves": "Curves",
    "points": "Table",
    "differences": "Differences",
    "cost": "Cost",
    "protocol": "Protocol",
    "missing": "Missing",
    "commands": "Commands",
}
_GROWTH_MEANING = {
    "whole images": "a part of the images, with all their known labels",
    "random labels": "as many labels, drawn at random over all images: the control",
}
_IS_WORTH_IT = {"yes": "yes", "no": "no", "open": "≈"}


def build_study(folder: Path) -> str:
    """Return the page of a study as HTML text. It holds no folder names of this machine."""
    facts = read_study(folder)
    parts = (_question, _curves, _points, _differences, _cost, _protocol, _missing, _commands)
    shown = [part for build in parts if (part := build(facts)) is not None]
    kind = "learning curve" if isinstance(facts.result, Growth) else "annotation study"
    title = f"{shorten(facts.folder.resolve().name, 60)} · {kind}"
    header = el("header", el("h1", title), *_finding(facts), el("p", _subtitle(facts), class_="muted"))
    footer = comparison_footer(facts.config, "the study was made", ("entry", "AP", "mAP", "95 % interval", "epoch"))
    return document(title, [header, section_links(_LINKS, shown), el("main", *shown), footer])


def _subtitle(facts: StudyFacts) -> str:
    point_count, most = len(facts.result.points), max(len(point.per_seed) for point in facts.result.points)
    seeds = f"up to {most} seeds" if most > 1 else "1 seed"
    method = shorten(facts.result.method, 60)
    return f"{method}, {count(point_count)} sets of labels, {seeds}; {training_summary(facts.config)}"


def _question(facts: StudyFacts) -> Html:
    result = facts.result
    if isinstance(result, Growth):
        question = "Is it worth labelling more images like these?"
        design = (
            "The model is trained on growing parts of the labels, and tested on the same images each time. "
            "The learning curve is extrapolated to twice as many labels of the same kind."
        )
        meaning = _GROWTH_MEANING
    else:
        question = "With a fixed budget of labels, which labels are best?"
        design = (
            "Some labels of every image, all labels of some images, or labels that are cheaper and partly wrong: "
            "labels of fully labelled images are removed, or corrupted, in each of these ways, the model is trained "
            "on the rest, and tested on the same images each time."
        )
        meaning = MEANING
    strategies = [el("div", el("dt", shorten(name, 40)), el("dd", meaning.get(name, ""))) for name in facts.strategies]
    summary = method_summary(result.method.partition(":")[0])
    return section(
        "question",
        "The question",
        el("p", el("b", question)),
        el("p", design),
        el("dl", *strategies, class_="words"),
        el("p", el("b", shorten(result.method, 60)), f": {summary}", class_="muted") if summary else None,
    )


def _finding(facts: StudyFacts) -> list[Html]:
    """Return the conclusions that the intervals support, in the sentences of the study."""
    result = facts.result
    if isinstance(result, Growth):
        sentences = [result.advice, result.control]
        caution = (
            "The interval assumes that the fitted power law holds, and that new labels are like the present ones: "
            "other images, or another way of labelling, may give more or less."
        )
    else:
        sentences = list(result.conclusions)
        caution = (
            "A difference is significant where its 95 % interval does not include 0; where it does, there may still be "
            f"a difference. {counted(len(result.gaps), 'difference was', 'differences were')} tested, and of twenty "
            "that do not exist, about one would seem significant."
        )
    spread = (
        "hardly known, and intervals may be far off" if facts.seeds > 1 else "unknown, and intervals are too narrow"
    )
    few = (
        f"Based on {counted(facts.seeds, 'seed')}: the spread over seeds is {spread}. "
        f"Use --seeds {ENOUGH_SEEDS} or more."
    )
    shown = [line for line in sentences if line] or ["Nothing was compared."]
    return [
        *(el("p", line, class_="found") for line in shown),
        *([el("p", few, class_="warn")] if facts.seeds < ENOUGH_SEEDS else []),
        el("p", caution, class_="muted"),
    ]


def _curves(facts: StudyFacts) -> Html | None:
    """Draw mAP against the share of clean labels; for a learning curve also the fitted law up to twice the labels."""
    result, grown = facts.result, isinstance(facts.result, Growth)
    off_chart = [] if grown else points_below_chart(result.points)
    lines = {}
    for name in facts.strategies:
        line = [point for point in facts.points_of(name) if math.isfinite(point.mAP) and point not in off_chart]
        if line:
            lines[name] = np.array([(round(100 * point.share, 2), point.mAP, point.low, point.high) for point in line])
    if not lines:
        return None
    # The share of "noisy+" follows from the data; it is not a round number to put a tick at.
    ticks = sorted({round(100 * point.share, 2) for point in result.points if point.strategy != "noisy+"})
    fit: list[np.ndarray] = []
    if isinstance(result, Growth) and result.curve:
        fit = [np.array(part) for part in zip(*result.curve, strict=True)]
        fit[0] = 100 * fit[0]
        ticks.append(200.0)
    note = "; dashed: the fitted power law, shaded: its 95 % interval" if fit else ""
    if off_chart:
        note += "; below the chart: " + ", ".join(
            f"{shorten(point.strategy, 30)} {_percent(point.share)}: {points(point.mAP)}" for point in off_chart
        )
    chart = share_chart(
        "What more labels give" if grown else "What labels give, by strategy",
        lines,
        "% of all labels" if grown else "% of labels that are known and correct",
        note,
        ticks=ticks,
        fit=fit,
        mark=(100.0, "all labels") if fit else None,
    )
    return section(
        "curves",
        "The curves",
        el("div", chart, class_="grid two"),
        on="Test mAP, mean over seeds; intervals from images and seeds together.",
    )


def _points(facts: StudyFacts) -> Html:
    rows = [
        el(
            "tr",
            name_cell(point.strategy),
            cell(point.share, _percent(point.share)),
            cell_with_note(point.mAP, points(point.mAP), _interval(point)),
            cell(point.labels, count(point.labels)),
            cell(point.seeds, _seed_count(point)),
            cell(max(point.per_seed, default=math.nan), " · ".join(map(points, point.per_seed[:12]))),
        )
        for point in facts.result.points
    ]
    titles = ["labels", "clean", "mAP", "known to training", "seeds", "mAP of each"]
    notes = (
        "Clean: the share of labels that are known and correct. Known to training: number of labels, correct or wrong, "
        "with the first seed. Small numbers are 95 % intervals. Seeds: those that all points have finished, of which "
        "mAP is the mean; + further seeds, which are not used. A click on a title sorts."
    )
    table = scroll_table(titles, rows, "Test mAP of each set of labels", sortable=True)
    return section("points", "The table", el("p", notes, class_="muted"), table, on="Test mAP in points of 100.")


def _differences(facts: StudyFacts) -> Html | None:
    """Show the paired differences between strategies, as charts and in a table."""
    gaps = [gap for gap in facts.result.gaps if math.isfinite(gap.difference)]
    groups: dict[str, list[Gap]] = {}
    for gap in gaps:
        # Every share is compared with the noisy labels; otherwise both sides have the same share.
        wrong = (
            "" if gap.share == gap.other_share and gap.other != "noisy" else f", {_percent(1 - gap.other_share)} wrong"
        )
        groups.setdefault(f"{shorten(gap.strategy, 30)} less {shorten(gap.other, 30)}{wrong}", []).append(gap)
    if not groups:
        return None
    charts = []
    for title, group in groups.items():
        names = [_percent(gap.share) for gap in group]
        value, low, high = (np.array([getattr(gap, key) for gap in group]) for key in ("difference", "low", "high"))
        alt = ", ".join(f"{signed_points(gap.difference)} at {name}" for name, gap in zip(names, group, strict=True))
        chart = svg.interval_chart(names, value, low, high, alt=f"{title}: {alt}", reference=0.0, differences=True)
        charts.append(figure(chart, title))
    notes = (
        "Right of the line the first is better. Where the interval reaches it, the difference is not significant, "
        "which does not mean that both are equally good."
    )
    return section(
        "differences",
        "The differences",
        el("p", notes, class_="muted"),
        el("div", *charts, class_="grid"),
        on="Points of mAP, paired by image and by seed, 95 % intervals; percentages are shares of clean labels.",
    )


def _cost(facts: StudyFacts) -> Html | None:
    """Show the gain of labels so far, and the cost and expected gain of more labels."""
    result = facts.result
    parts: list[object] = []
    if isinstance(result, Growth):
        parts += _expected_gain(facts, result)
    rows = []
    for gap in result.steps:
        less, more = (facts.labels(gap.strategy, share) for share in (gap.other_share, gap.share))
        step = f"{100 * gap.other_share:.3g} → {_percent(gap.share)}"
        if less is not None and more is not None and math.isfinite(gap.difference):
            rows.append(
                el(
                    "tr",
                    name_cell(gap.strategy, 30),
                    cell_with_note(gap.share, step, f"{count(more - less)} more labels"),
                    _gain(gap.difference, gap),
                    _gain_per_1000(gap.difference, more - less),
                )
            )
    if rows:
        titles = ["labels", "from → to", "gain in mAP", "per 1000 labels"]
        parts += [el("h3", "Gain so far"), scroll_table(titles, rows, "Gain of each step to more labels")]
    if isinstance(result, Study):
        hint = "More labels than these images have were not tried here. For the gain of twice as many images: "
        parts.append(el("p", hint, el("code", "halflabel study LABELS IMAGES --grow"), "."))
    if not parts:
        return None
    return section(
        "cost",
        "What more labels cost",
        *parts,
        on="Counted in labels: one class in one image, labelled present or absent.",
    )


def _expected_gain(facts: StudyFacts, result: Growth) -> list[object]:
    now = facts.labels("whole images", 1.0)
    if now is None or not math.isfinite(result.gain.mean):
        return [el("p", "Too few runs are finished to estimate the gain of more labels.", class_="none")]
    rows = []
    for times, *gain in result.ahead:
        expected, more = Interval(*gain), round((times - 1) * now)
        rows.append(
            el(
                "tr",
                name_cell(f"{_percent(times - 1)} more"),
                cell(more, count(more)),
                _gain(expected.mean, expected),
                _gain_per_1000(expected.mean, more),
                el("td", _IS_WORTH_IT[verdict(expected, result.worth)]),
            )
        )
    titles = ["labels", "number", "expected gain", "per 1000 labels", "worth it?"]
    notes = (
        f"Training knows {count(now)} labels now; twice as many are {count(now)} more, of similar images labelled in "
        f"the same way. Worth it: {result.worth:g} point{'s' * (result.worth != 1)} of mAP or more, as set with "
        "--worth; ≈ where the interval includes that number, so that it is uncertain."
    )
    return [el("p", notes), scroll_table(titles, rows, "Expected gain of more labels")]


def _protocol(facts: StudyFacts) -> Html:
    lines = [el("li", sentence) for sentence in facts.result.protocol]
    return section("protocol", "How it was measured", el("ul", *lines, class_="notes"))


def _missing(facts: StudyFacts) -> Html | None:
    failed = [el("li", shorten(line, 400)) for line in facts.result.failures]
    return missing_runs(failed, facts.result.left_out)


def _commands(facts: StudyFacts) -> Html:
    commands = [el("p", el("code", command)) for command in facts.commands]
    if not commands:
        commands = [el("p", "The study was made from Python, not by a command.")]
    page = f"halflabel report {shorten(facts.folder.resolve().name, 60)}"
    return section(
        "commands",
        "The commands",
        *commands,
        el("p", el("code", page)),
        on="The commands that made the study and this page, without folder names.",
    )


def _interval(point: Point) -> str:
    return f"{points(point.low)} – {points(point.high)}"


def _gain(mean: float, interval: Gap | Interval) -> Html:
    """Return the cell of a difference of mAP with its interval."""
    return cell_with_note(mean, signed_points(mean), signed_interval(interval.low, interval.high))


def _seed_count(point: Point) -> str:
    further = len(point.per_seed) - point.seeds
    return f"{point.seeds} + {further}" if further > 0 else str(point.seeds)


def _gain_per_1000(gain: float, labels: int) -> Html:
    value = 1000 * gain / labels if labels > 0 else math.nan
    return cell(value, signed_points(value))


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\u202f%"
