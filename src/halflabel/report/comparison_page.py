"""One HTML file that shows a comparison: who does best with how many labels, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from halflabel.experiments.result import Row
from halflabel.report import svg as charts
from halflabel.report.comparison_facts import ClassGap, Told, class_gaps, read_comparison
from halflabel.report.layout import (
    FEW,
    cards,
    cell,
    left_out,
    listed,
    missing,
    scrolled,
    section,
    seed_spread,
    signed,
    two,
)
from halflabel.report.run_page import Report, closing, contents, method_summary, trained_how, write_page
from halflabel.report.svg import Series, figure
from halflabel.system.format import points
from halflabel.system.html import Html, count, document, el, join, percent, short

__all__ = ["build_comparison", "write_comparison"]

PANELS = 6  # ways of hiding labels that are drawn
LINES = 6  # methods whose curves are drawn, one colour each
NAMED = 24  # methods with a line of their own in a chart
GAPS = 8  # classes shown on each side
ENOUGH = 3  # seeds from which on their spread is known at all
FEW_SEEDS = f"With fewer than {ENOUGH} seeds such an interval says most about the seeds: more of them narrow it."
_TITLES = {
    "judged": "Judged",
    "methods": "Methods",
    "missing": "Missing",
    "shares": "Labels",
    "seeds": "Seeds",
    "cost": "Cost",
    "classes": "Classes",
}


def write_comparison(folder: Path, out: Path | None = None) -> Report:
    """Write the page of a comparison, by default as report.html in its folder."""
    return write_page(out if out is not None else folder / "report.html", lambda: build_comparison(folder))


def build_comparison(folder: Path) -> str:
    """The page of a comparison as text. Folders of this machine are not written into it."""
    told = read_comparison(folder)
    parts = [
        _judged(told),
        _methods(told),
        _missing(told),
        _shares(told),
        _seeds(told),
        _cost(told),
        _classes(told),
    ]
    there = [part for part in parts if part is not None]
    title = f"{short(told.folder.resolve().name, 60)} · comparison"
    top = el(
        "header",
        el("h1", title),
        el("p", _subtitle(told), class_="said"),
        el("p", el("b", told.caution), class_="warn", role="note") if told.caution else None,
        _cards(told),
    )
    foot = closing(told.config, "the methods were compared", ("entry", "AP", "mAP", "95 % interval", "epoch"))
    return document(title, [top, contents(_TITLES, there), el("main", *there), foot])


def _subtitle(told: Told) -> str:
    methods = len({row.method for row in told.rows})
    return (
        f"{count(methods)} methods, {count(len(told.panels))} sets of labels, up to "
        f"{max(row.seeds for row in told.rows)} seeds; {trained_how(told.config)}"
    )


def _cards(told: Told) -> Html:
    """The best method of each set of labels, and how many cannot be told from it."""
    shown = []
    for rows in told.panels[:PANELS]:
        best, near = rows[0], sum(_near(row) for row in rows[1:])
        note = f"mAP {points(best.mAP)} ({points(best.mAP_low)} – {points(best.mAP_high)})"
        note += f"; cannot be told from it: {near} of {len(rows) - 1} others" if len(rows) > 1 else "; the only method"
        note += f" ({best.seeds} seed{'s' * (best.seeds > 1)})" if near and best.seeds < ENOUGH else ""
        title = f"best with labels: {short(best.labels, 30)}"
        shown.append((title, short(best.method, 22), note))
    return cards(shown)


def _near(row: Row) -> bool:
    """Whether the paired interval of its difference to the best reaches 0."""
    return math.isnan(row.behind_high) or row.behind_high >= 0


def _of_seeds(rows: Sequence[Row]) -> str:
    """What to add where few seeds make the intervals of differences."""
    return f". {FEW_SEEDS}" if any(row.seeds < ENOUGH and _near(row) for row in rows[1:]) else ""


def _judged(told: Told) -> Html:
    """The protocol in words, what chose epochs and settings, and why these methods."""
    chosen = {
        "hidden truth": "on the HIDDEN TRUTH of the validation images, which nobody has outside of a comparison",
        "known labels": "on the labels left known of the validation images",
        "known positives": "on the positives left known of the validation images, unknown counted as absent",
    }
    kinds = dict.fromkeys(row.selected_on for row in told.rows)
    where = {
        kind: ", ".join(dict.fromkeys(row.labels for row in told.rows if row.selected_on == kind)) for kind in kinds
    }
    how = "; ".join(chosen.get(kind, kind) + (f" (labels: {where[kind]})" if len(kinds) > 1 else "") for kind in kinds)
    why = [el("li", el("b", short(name, 60)), f": {reason}") for name, reason in told.chosen_by.items()]
    return section(
        "judged",
        "How it was judged",
        el("p", el("b", "Epochs and hyper-parameters were chosen "), how, ".", class_="warn" if told.caution else None),
        el("ul", *(el("li", _shouted(sentence)) for sentence in told.protocol), class_="notes"),
        join([el("h3", "Why these methods"), el("ul", *why, class_="notes")]) if why else None,
    )


def _shouted(sentence: str) -> Html:
    loud = sentence.startswith("CHOSEN ON HIDDEN TRUTH")
    return el("strong", sentence, class_="warn") if loud else join([sentence])


def _on(told: Told, what: str) -> str:
    return f"{what} {told.caution}".strip()


def _methods(told: Told) -> Html:
    """The table of each set of labels, with the mAP and the differences to the best drawn beside it."""
    content: list[object] = []
    for rows in told.panels:
        known = percent(rows[0].known, 1) if math.isfinite(rows[0].known) else "—"
        content.append(
            el("h3", f"Labels: {short(rows[0].labels, 60)} ", el("span", f"({known} of entries known)", class_="said"))
        )
        content.append(_table(told, rows))
    charts_ = []
    for rows in told.panels[:PANELS]:
        shown = rows[:NAMED]
        names = [row.method for row in shown]
        value, low, high = (np.array([getattr(row, key) for row in shown]) for key in ("mAP", "mAP_low", "mAP_high"))
        alt = f"Test mAP with labels {rows[0].labels}: {listed(names)}, from {points(value[0])} to {points(value[-1])}"
        drawn = charts.intervals(names, value, low, high, alt=alt, mean=value[0], span=charts.around(value, low, high))
        charts_.append(
            figure(drawn, f"mAP, labels: {short(rows[0].labels, 30)}", "with 95 % intervals; the line is at the best")
        )
        if len(shown) > 1:
            value, low, high = (
                np.array([getattr(row, key) for row in shown[1:]]) for key in ("behind", "behind_low", "behind_high")
            )
            if np.isfinite(value).any():
                alt = f"Paired differences to {names[0]} with labels {rows[0].labels}: {listed(names[1:])}"
                span = charts.around(value, low, high, np.zeros(1))
                finite = np.isfinite(value)
                kept = [name for name, is_finite in zip(names[1:], finite, strict=True) if is_finite]
                of = (value[finite], low[finite], high[finite])
                drawn = charts.intervals(kept, *of, alt=alt, mean=0.0, span=span, differences=True)
                note = "paired by image and seed; an interval that reaches the line: cannot be told from the best"
                note += _of_seeds(rows)
                charts_.append(
                    figure(drawn, f"Difference to {short(names[0], 24)}, labels: {short(rows[0].labels, 20)}", note)
                )
    notes = (
        "Small numbers are 95 % intervals. To the best: the mean difference of mAP, paired by image and by seed; ≈ "
        "marks what cannot be told from the best, which is not to say that it is as good. "
        + (f"{FEW_SEEDS} " if any(_of_seeds(rows) for rows in told.panels) else "")
        + "Seeds: those that all methods have finished with the same labels, by which they are ranked; "
        "+ further ones, which count for nothing. Seconds are those of one run's epochs. "
        + (f"Memory: {told.memory_kind} during a run. " if told.memory_kind else "")
        + "Chosen: learning rate and options that did best on validation with seed 0, of so many tried; ↥ marks a "
        "rate at the edge of those tried. Validation: mAP there, and what it was measured by."
    )
    return section(
        "methods",
        "The methods",
        _who(told),
        el("p", notes, class_="said"),
        *content,
        left_out(PANELS, len(told.panels), "are drawn; the tables hold all", thing="sets of labels"),
        left_out(NAMED, max(map(len, told.panels)), "are drawn; the tables hold all", thing="methods"),
        el("div", *charts_, class_="grid two"),
        on=_on(told, "All on the same test images, mean over seeds, 95 % intervals from images and seeds together."),
    )


def _who(told: Told) -> Html | None:
    """What each method does, in a sentence."""
    names = list(dict.fromkeys(row.method for row in told.rows))[:NAMED]
    known = [(name, method_summary(name.partition(":")[0])) for name in names]
    lines = [el("div", el("dt", short(name, 40)), el("dd", said)) for name, said in known if said]
    return el("dl", *lines, class_="words") if lines else None


def _table(told: Told, rows: Sequence[Row]) -> Html:
    titles = ["method", "mAP", "to the best", "seeds", "s/run", "memory", "chosen", "tried", "validation"]
    lines = []
    for row in rows:
        best = row is rows[0]
        options = ", ".join(f"{name} {value}" for name, value in row.options.items())
        rate = f"{row.lr:.2g}{' ↥' if row.rate_at_edge else ''}"
        behind = "best" if best else signed(row.behind) + (" ≈" if _near(row) else "")
        memory = "—" if math.isnan(row.memory) else f"{row.memory / 2**20:.0f} MB" if row.memory >= 2**20 else "< 1 MB"
        tried = str(row.tried) if row.tried == row.to_try else f"{row.tried} of {row.to_try}"
        between = f"{signed(row.behind_low)} to {signed(row.behind_high)}"
        lines.append(
            el(
                "tr",
                el("th", short(row.method, 40), scope="row", class_="name", title=short(row.method, 200)),
                two(row.mAP, points(row.mAP), f"{points(row.mAP_low)} – {points(row.mAP_high)}"),
                two(0.0 if best else row.behind, behind, "" if best or math.isnan(row.behind) else between),
                cell(row.seeds, f"{row.seeds} + {row.further}" if row.further else str(row.seeds)),
                cell(row.seconds, f"{row.seconds:.3g}"),
                cell(row.memory, memory),
                two(row.lr, rate, short(options, 40)),
                cell(row.tried, tried),
                two(row.validation, points(row.validation), row.selected_on),
            )
        )
    return scrolled(titles, lines, f"Methods with labels {short(rows[0].labels, 60)}", sortable=True)


def _missing(told: Told) -> Html | None:
    """What failed, and what the budget left no time for."""
    failed = [
        el(
            "li",
            el("b", short(f.method if f.what == "all" else f.what, 100)),
            f" (labels {short(f.labels, 60)}): ",
            short(f.reason, 400),
        )
        for f in told.failures
    ]
    waiting = [
        el(
            "li",
            el("b", short(left.method, 60)),
            f" (labels {short(left.labels, 60)}): {count(left.runs)} runs, seeds {', '.join(map(str, left.seeds))}",
        )
        for left in told.left_out[:60]
    ]
    return missing(failed, sum(left.runs for left in told.left_out), waiting)


def _shares(told: Told) -> Html | None:
    """mAP against the share of the labels that is kept, where several were compared."""
    rows = [row for row in told.rows if math.isfinite(row.kept)]
    if len({row.kept for row in rows}) < 2:
        return None
    means: dict[str, list[float]] = {}
    for row in rows:
        means.setdefault(row.method, []).append(row.mAP)
    # The methods on most shares, and the best of these: a mean over other shares would not compare.
    ranked = sorted(means, key=lambda name: (-len(means[name]), -float(np.mean(means[name]))))
    series, low, high = [], [], []
    for shade, name in enumerate(ranked[:LINES], start=1):
        line = sorted((row for row in rows if row.method == name), key=lambda row: row.kept)
        at, value, least, most = (
            np.array([getattr(row, key) for row in line]) for key in ("kept", "mAP", "mAP_low", "mAP_high")
        )
        series.append(Series(name, 100 * at, value, shade))
        low.append(least)
        high.append(most)
    alt = "Test mAP by share of labels kept: " + "; ".join(
        f"{short(line.name, 30)} {', '.join(f'{points(b)} at {a:g} %' for a, b in zip(line.x, line.y, strict=True))}"
        for line in series
    )
    drawn = charts.trend(series, low, high, alt=alt, x_label="% of each image's labels kept", y_label="test mAP")
    legend = [(f"f{line.shade}", short(line.name, 30)) for line in series]
    return section(
        "shares",
        "How many labels it takes",
        left_out(len(series), len(ranked), "are drawn: those on most shares, and the best of these", thing="methods"),
        el(
            "div",
            figure(drawn, "mAP by share of labels", "with 95 % intervals; the share is logarithmic", legend),
            class_="grid",
        ),
        on=_on(told, "Test mAP; labels were hidden from training and validation only."),
    )


def _seeds(told: Told) -> Html | None:
    """How far the runs of one method lie apart."""
    panels = [[row for row in rows if len(row.per_seed) > 1][:NAMED] for rows in told.panels[:PANELS]]
    parts = [
        seed_spread(
            [row.method for row in rows],
            [np.array(row.per_seed) for row in rows],
            f"Labels: {short(rows[0].labels, 30)}",
        )
        for rows in filter(None, panels)
    ]
    if not parts:
        return None
    return section(
        "seeds",
        "How much is chance",
        el("p", "A seed decides which labels are hidden, which images validate, and how the head starts."),
        el("div", *parts, class_="grid"),
        on=_on(told, "Test mAP of single runs."),
    )


def _cost(told: Told) -> Html | None:
    """Accuracy against time."""
    parts = []
    for rows in told.panels[:PANELS]:
        timed = [row for row in rows if row.seconds > 0][:NAMED]
        if len(timed) < 2:
            continue
        x, y = (np.array([getattr(row, key) for row in timed]) for key in ("seconds", "mAP"))
        quick = min(timed, key=lambda row: row.seconds)
        alt = (
            f"mAP against seconds with labels {rows[0].labels}: best {rows[0].method} {points(rows[0].mAP)} in "
            f"{rows[0].seconds:.3g} s, quickest {quick.method} {points(quick.mAP)} in {quick.seconds:.3g} s"
        )
        drawn = charts.scatter(
            [row.method for row in timed], x, y, alt=alt, x_label="seconds per run (logarithmic)", y_label="test mAP"
        )
        parts.append(figure(drawn, f"Labels: {short(rows[0].labels, 30)}", "best: high up and to the left"))
    if not parts:
        return None
    device = told.config.get("device", "?")
    return section(
        "cost",
        "What it costs",
        el("div", *parts, class_="grid"),
        on=_on(told, f"Seconds of one run's epochs on {device}, mean over seeds; computing features is not counted."),
    )


def _classes(told: Told) -> Html | None:
    """Where the best two methods of each set of labels differ most, class by class."""
    pairs = [rows for rows in told.panels[:PANELS] if len(rows) > 1]
    if not pairs:
        return None
    if told.test is None:
        said = "This folder does not hold the test labels, so single classes cannot be compared: compare again."
        return section("classes", "Class by class", el("p", said, class_="none"))
    parts: list[object] = []
    for rows in pairs:
        first, second = rows[0], rows[1]
        gaps = class_gaps(told, first, second, GAPS)
        title = f"{short(first.method, 30)} against {short(second.method, 30)}, labels: {short(first.labels, 30)}"
        if not gaps:
            said = "No class differs." if gaps is not None else "Not compared: no finished runs of one seed of both."
            parts.append(el("div", el("b", title), el("p", said, class_="none")))
            continue
        names = [gap.name for gap in gaps]
        mean, low, high = (np.array([getattr(gap.gap, key) for gap in gaps]) for key in ("mean", "low", "high"))
        ends = [f"{short(names[k], 40)} {signed(mean[k])}" for k in (0, -1)]
        alt = f"{title}: from {ends[0]} down to {ends[1]}"
        span, weak = charts.around(mean, low, high, np.zeros(1)), [gap.present < FEW for gap in gaps]
        drawn = charts.intervals(names, mean, low, high, alt=alt, mean=0.0, span=span, weak=weak, differences=True)
        note = f"difference of AP: right of the line {short(first.method, 30)} is better"
        keys = [("ring round", f"fewer than {FEW} known positives")] * any(weak)
        parts.append(
            el(
                "div",
                figure(drawn, title, note, keys),
                _gap_table(title, gaps, first, second),
            )
        )
    said = (
        "The classes are those with the largest differences, so these are partly luck: the intervals are for single "
        "classes, and out of twenty classes without any difference one would look like it had one."
    )
    return section(
        "classes",
        "Class by class",
        el("p", said, class_="said"),
        el("div", *parts, class_="grid"),
        on=_on(told, f"The best two methods of each set of labels; at most {GAPS} gains and {GAPS} losses."),
    )


def _gap_table(title: str, gaps: Sequence[ClassGap], first: Row, second: Row) -> Html:
    heads = ["class", short(first.method, 9), short(second.method, 9), "difference"]
    lines = [
        el(
            "tr",
            el("th", short(gap.name, 24), scope="row", class_="name", title=short(gap.name, 200)),
            cell(gap.first, points(gap.first)),
            cell(gap.second, points(gap.second)),
            two(gap.gap.mean, signed(gap.gap.mean), f"{signed(gap.gap.low)} to {signed(gap.gap.high)}"),
        )
        for gap in gaps
    ]
    return scrolled(heads, lines, title)
