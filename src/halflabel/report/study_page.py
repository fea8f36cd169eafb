"""One HTML file that shows a study: how to spend labels, or whether to get more, and how sure that is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from halflabel.experiments.conclusions import MEANING, out_of_sight, verdict
from halflabel.experiments.result import Interval
from halflabel.experiments.study import Gap, Growth, Point, Study
from halflabel.report import svg as charts
from halflabel.report.layout import cards, cell, missing, scrolled, section, seed_spread, signed, two
from halflabel.report.run_page import Report, closing, contents, method_summary, trained_how, write_page
from halflabel.report.study_facts import ToldStudy, read_study
from halflabel.report.svg import Series, figure
from halflabel.system.format import points
from halflabel.system.html import Html, count, document, el, short

__all__ = ["build_study", "write_study"]

ENOUGH = 3  # seeds from which on their spread is known at all
_TITLES = {
    "question": "Question",
    "finding": "Finding",
    "curves": "Curves",
    "points": "Table",
    "differences": "Differences",
    "seeds": "Seeds",
    "cost": "Cost",
    "protocol": "Protocol",
    "missing": "Missing",
    "commands": "Commands",
}
_GROWN = {
    "whole images": "a part of the images, with all that is known of them",
    "random labels": "as many labels, drawn at random over all images: the control",
}
_WORTH = {"yes": "yes", "no": "no", "open": "≈"}
_ADVICE = {"yes": "go on", "no": "stop", "open": "open"}


def write_study(folder: Path, out: Path | None = None) -> Report:
    """Write the page of a study, by default as report.html in its folder."""
    return write_page(out if out is not None else folder / "report.html", lambda: build_study(folder))


def build_study(folder: Path) -> str:
    """The page of a study as text. Folders of this machine are not written into it."""
    told = read_study(folder)
    failed = [el("li", short(line, 400)) for line in told.found.failures]
    parts = [
        _question(told),
        _finding(told),
        _curves(told),
        _points(told),
        _differences(told),
        _seeds(told),
        _cost(told),
        _protocol(told),
        missing(failed, told.found.left_out),
        _commands(told),
    ]
    there = [part for part in parts if part is not None]
    kind = "learning curve" if isinstance(told.found, Growth) else "annotation study"
    title = f"{short(told.folder.resolve().name, 60)} · {kind}"
    top = el("header", el("h1", title), el("p", _subtitle(told), class_="said"), _cards(told))
    foot = closing(told.config, "the study was made", ("entry", "AP", "mAP", "95 % interval", "epoch"))
    return document(title, [top, contents(_TITLES, there), el("main", *there), foot])


def _subtitle(told: ToldStudy) -> str:
    places, most = len(told.found.points), max(len(point.per_seed) for point in told.found.points)
    seeds = f"up to {most} seeds" if most > 1 else "1 seed"
    return f"{short(told.found.method, 60)}, {count(places)} sets of labels, {seeds}; {trained_how(told.config)}"


def _cards(told: ToldStudy) -> Html:
    found = told.found
    shown: list[tuple[str, str, str]] = []
    every = next((point for point in found.points if point.share == 1), None)
    if every is not None:
        note = f"{_between(every)}; {count(every.labels)} labels"
        shown.append(("mAP with all labels there are", points(every.mAP), note))
    if isinstance(found, Growth):
        if math.isfinite(found.gain.mean):
            note = f"{signed(found.gain.low)} to {signed(found.gain.high)}: points of mAP that are expected"
            shown.append(("from twice the labels", signed(found.gain.mean), note))
            wanted = f"for those who want {found.worth:g} point{'s' * (found.worth != 1)} of mAP for them"
            shown.append(("more of the same labels?", _ADVICE[verdict(found.gain, found.worth)], wanted))
        return cards(shown)
    for other in ("dense", "noisy", "noisy+"):
        gaps = [gap for gap in found.gaps if gap.other == other]
        same = [gap for gap in gaps if other == "noisy+" or gap.share == gap.other_share]
        if same:
            better, worse = (sum(getattr(gap, kind) for gap in same) for kind in ("better", "worse"))
            unsure = len(same) - better - worse
            note = f"of the shares that were tried; worse at {worse}, and at {unsure} it cannot be told"
            shown.append((f"partial does better than {other} at", f"{better} of {len(same)}", note))
    return cards(shown)


def _question(told: ToldStudy) -> Html:
    found = told.found
    if isinstance(found, Growth):
        asked = "Is it worth labelling more images like these?"
        how = (
            "The model is trained on growing parts of the labels there are, and judged on the same images each time. "
            "The curve of that is continued to twice as many labels, more of the same kind."
        )
        meaning = _GROWN
    else:
        asked = "A number of labels is to be paid for. In which way are they best spent?"
        how = (
            "Some labels of every image, all labels of some images, or labels that are cheaper and partly wrong: "
            "labels are taken away from fully labelled images, or spoiled, in each of these ways, the model is trained "
            "on what is left, and judged on the same images each time."
        )
        meaning = MEANING
    spent = [el("div", el("dt", short(name, 40)), el("dd", meaning.get(name, ""))) for name in told.strategies]
    does = method_summary(found.method.partition(":")[0])
    return section(
        "question",
        "The question",
        el("p", el("b", asked)),
        el("p", how),
        el("dl", *spent, class_="words"),
        el("p", el("b", short(found.method, 60)), f": {does}", class_="said") if does else None,
    )


def _finding(told: ToldStudy) -> Html:
    """What the intervals support, in the sentences of the study itself."""
    found = told.found
    if isinstance(found, Growth):
        said = [found.advice, found.control]
        sure = (
            "The interval takes the fitted law as true, and new labels to be like those there are: other images, or "
            "another way to label, may give more or less."
        )
    else:
        said = list(found.conclusions)
        sure = (
            "A difference is called one where its 95 % interval is all on one side of 0, and nothing is said of the "
            f"others: that it cannot be told is not to say that there is none. {count(len(found.gaps))} differences "
            "were looked at, and of twenty where there is none, one would look like one."
        )
    few = (
        f"Made of {told.seeds} seed{'s' * (told.seeds > 1)}: with fewer than {ENOUGH} the spread over seeds is hardly "
        "known, and intervals say less than they seem to. Use --seeds 3 or more."
    )
    first, *rest = [line for line in said if line] or ["Nothing was compared."]
    return section(
        "finding",
        "The finding",
        el("p", el("b", first)),
        *(el("p", line) for line in rest),
        el("p", few, class_="warn") if told.seeds < ENOUGH else None,
        el("p", sure, class_="said"),
        on="Differences of mAP in points of 100, with 95 % intervals.",
    )


def _curves(told: ToldStudy) -> Html | None:
    """mAP against the share of clean labels; for a learning curve the law, and what it says of more labels."""
    found, grown = told.found, isinstance(told.found, Growth)
    low = [] if grown else out_of_sight(found.points)
    series, least, most = [], [], []
    for shade, name in enumerate(told.strategies, start=1):
        line = [point for point in told.of(name) if math.isfinite(point.mAP) and point not in low]
        if line:
            at = np.array([round(100 * point.share, 2) for point in line])
            series.append(Series(short(name, 30), at, np.array([point.mAP for point in line]), 1 + (shade - 1) % 6))
            least.append(np.array([_finite(point.low, point.mAP) for point in line]))
            most.append(np.array([_finite(point.high, point.mAP) for point in line]))
    if not series:
        return None
    # "noisy+" has a share of its own that nobody chose.
    ticks = sorted({round(100 * point.share, 2) for point in found.points if point.strategy != "noisy+"})
    law: list[np.ndarray] = []
    if isinstance(found, Growth) and found.curve:
        law = [np.array(part) for part in zip(*found.curve, strict=True)]
        law[0] = 100 * law[0]
        ticks.append(200.0)
    alt = "Test mAP by share of the labels: " + "; ".join(
        f"{line.name} {', '.join(f'{points(b)} at {a:g} %' for a, b in zip(line.x, line.y, strict=True))}"
        for line in series
    )
    note = "with 95 % intervals; the share is logarithmic"
    if law:
        alt += f"; the fitted law reaches {points(float(law[1][-1]))} with twice the labels"
        note += "; dashed: the fitted power law, shaded: its 95 % interval"
    if low:
        note += "; below the picture: " + ", ".join(f"{_named(point)}: {points(point.mAP)}" for point in low)
    drawn = charts.trend(
        series,
        least,
        most,
        alt=alt,
        x_label="% of the labels there are" if grown else "% of the labels that are there and right",
        y_label="test mAP",
        ticks=ticks,
        law=law,
        mark=(100.0, "all labels") if law else None,
    )
    legend = [(f"f{line.shade}", line.name) for line in series]
    title = "What more labels give" if grown else "What labels give, by how they are spent"
    return section(
        "curves",
        "The curves",
        el("div", figure(drawn, title, note, legend), class_="grid two"),
        on="Test mAP, mean over seeds; intervals from images and seeds together.",
    )


def _points(told: ToldStudy) -> Html:
    rows = [
        el(
            "tr",
            el("th", short(point.strategy, 40), scope="row", class_="name", title=short(point.strategy, 200)),
            cell(point.share, _percent(point.share)),
            two(point.mAP, points(point.mAP), _between(point)),
            cell(point.labels, count(point.labels)),
            cell(point.seeds, _seeds_of(point)),
            cell(max(point.per_seed, default=math.nan), " · ".join(map(points, point.per_seed[:12]))),
        )
        for point in told.found.points
    ]
    titles = ["labels", "clean", "mAP", "known to training", "seeds", "mAP of each"]
    said = (
        "Clean: the share of the labels that are there and right. Known to training: as many labels, right or wrong, "
        "with the first seed. Small numbers are 95 % intervals. Seeds: those that all points have finished, of which "
        "mAP is the mean; + further ones, which count for nothing. A click on a title sorts."
    )
    table = scrolled(titles, rows, "Test mAP of each set of labels", sortable=True)
    return section("points", "The table", el("p", said, class_="said"), table, on="Test mAP in points of 100.")


def _differences(told: ToldStudy) -> Html | None:
    """What was compared with what, paired, as pictures and in numbers."""
    gaps = [gap for gap in told.found.gaps if math.isfinite(gap.difference)]
    groups: dict[str, list[Gap]] = {}
    for gap in gaps:
        # Labels that are partly wrong are what every share is held against; else the shares are the same.
        wrong = (
            "" if gap.share == gap.other_share and gap.other != "noisy" else f", {_percent(1 - gap.other_share)} wrong"
        )
        groups.setdefault(f"{short(gap.strategy, 30)} less {short(gap.other, 30)}{wrong}", []).append(gap)
    if not groups:
        return None
    drawn, rows = [], []
    for title, group in groups.items():
        names = [_percent(gap.share) for gap in group]
        value, low, high = (np.array([getattr(gap, key) for gap in group]) for key in ("difference", "low", "high"))
        alt = ", ".join(f"{signed(gap.difference)} at {name}" for name, gap in zip(names, group, strict=True))
        span = charts.around(value, low, high, np.zeros(1))
        chart = charts.intervals(names, value, low, high, alt=f"{title}: {alt}", mean=0.0, span=span, differences=True)
        drawn.append(figure(chart, title))
        rows += [
            el(
                "tr",
                el("th", f"{short(gap.strategy, 30)} {_percent(gap.share)}", scope="row", class_="name"),
                el("td", f"{short(gap.other, 30)} {_percent(gap.other_share)}", class_="name"),
                two(gap.difference, signed(gap.difference) + ("" if gap.better or gap.worse else " ≈"), _reach(gap)),
            )
            for gap in group
        ]
    said = (
        "Right of the line the first does better. ≈ marks an interval that reaches 0: which does better cannot be "
        "told, which is not to say that they are alike."
    )
    return section(
        "differences",
        "The differences",
        el("p", said, class_="said"),
        el("div", *drawn, class_="grid"),
        scrolled(["labels", "against", "difference"], rows, "Paired differences of mAP", names=2),
        on="Points of mAP, paired by image and by seed, 95 % intervals; percentages are shares of clean labels.",
    )


def _seeds(told: ToldStudy) -> Html | None:
    drawn = []
    for name in told.strategies:
        line = [point for point in told.of(name) if len(point.per_seed) > 1 and np.isfinite(point.per_seed).all()]
        if line:
            names = [_percent(point.share) for point in line]
            drawn.append(seed_spread(names, [np.array(point.per_seed) for point in line], short(name, 30)))
    if not drawn:
        return None
    return section(
        "seeds",
        "How much is chance",
        el("p", "A seed decides which labels are left, which of them are wrong, and how the head starts."),
        el("div", *drawn, class_="grid"),
        on="Test mAP of single runs.",
    )


def _cost(told: ToldStudy) -> Html | None:
    """What labels have brought so far, and what more of them would cost and are expected to bring."""
    found = told.found
    parts: list[object] = []
    if isinstance(found, Growth):
        parts += _ahead(told, found)
    rows = []
    for gap in found.steps:
        less, more = (told.labels(gap.strategy, share) for share in (gap.other_share, gap.share))
        if less is not None and more is not None and math.isfinite(gap.difference):
            rows.append(
                el(
                    "tr",
                    el("th", short(gap.strategy, 30), scope="row", class_="name"),
                    two(
                        gap.share,
                        f"{100 * gap.other_share:.3g} → {_percent(gap.share)}",
                        f"{count(more - less)} more labels",
                    ),
                    two(gap.difference, signed(gap.difference), _reach(gap)),
                    _rate(gap.difference, more - less),
                )
            )
    if rows:
        titles = ["labels", "from → to", "gain in mAP", "per 1000 labels"]
        parts += [el("h3", "What labels have brought"), scrolled(titles, rows, "Gain of each step to more labels")]
    if isinstance(found, Study):
        said = "More labels than these images have were not tried here. What twice as many images would bring: "
        parts.append(el("p", said, el("code", "halflabel study LABELS IMAGES --grow"), "."))
    if not parts:
        return None
    return section(
        "cost",
        "What it costs to go on",
        *parts,
        on="Counted in labels: one class in one image, said to be present or absent.",
    )


def _ahead(told: ToldStudy, found: Growth) -> list[object]:
    now = told.labels("whole images", 1.0)
    if now is None or not math.isfinite(found.gain.mean):
        return [el("p", "Too few runs are finished to say what more labels would bring.", class_="none")]
    ahead = found.ahead or ((2.0, *found.gain),)
    rows = []
    for times, *gain in ahead:
        told_of, more = Interval(*gain), round((times - 1) * now)
        rows.append(
            el(
                "tr",
                el("th", f"{_percent(times - 1)} more", scope="row", class_="name"),
                cell(more, count(more)),
                two(told_of.mean, signed(told_of.mean), _reach(told_of)),
                _rate(told_of.mean, more),
                el("td", _WORTH[verdict(told_of, found.worth)]),
            )
        )
    titles = ["labels", "number", "expected gain", "per 1000 labels", "worth it?"]
    said = (
        f"Training knows {count(now)} labels now; twice as many are {count(now)} more, of images like these labelled "
        f"like these. Worth it: {found.worth:g} point{'s' * (found.worth != 1)} of mAP or more, as asked for with "
        "--worth; ≈ where the interval holds less and more than that, so that it cannot be told."
    )
    return [el("p", said), scrolled(titles, rows, "Expected gain of more labels")]


def _protocol(told: ToldStudy) -> Html:
    lines = [el("li", sentence) for sentence in told.found.protocol]
    return section("protocol", "How it was judged", el("ul", *lines, class_="notes"))


def _commands(told: ToldStudy) -> Html:
    made = [el("p", el("code", command)) for command in told.commands]
    if not made:
        made = [el("p", "The folder does not say by which command: Python, or an earlier version, has made it.")]
    page = f"halflabel report {short(told.folder.resolve().name, 60)}"
    return section(
        "commands",
        "The commands",
        *made,
        el("p", el("code", page)),
        on="What made the study, and this page. Folders are left out: of paths the last part alone is here.",
    )


def _named(point: Point) -> str:
    return f"{short(point.strategy, 30)} {_percent(point.share)}"


def _between(point: Point) -> str:
    return f"{points(point.low)} – {points(point.high)}"


def _reach(value: Gap | Interval) -> str:
    return f"{signed(value.low)} to {signed(value.high)}"


def _seeds_of(point: Point) -> str:
    further = len(point.per_seed) - point.seeds
    return f"{point.seeds} + {further}" if further > 0 else str(point.seeds)


def _rate(gain: float, labels: int) -> Html:
    value = 1000 * gain / labels if labels > 0 else math.nan
    return cell(value, signed(value))


def _finite(value: float, other: float) -> float:
    return value if math.isfinite(value) else other


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\u202f%"
