"""The HTML page of a comparison or study: which method or labels are best, at what cost, and how certain that is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from halflabel.comparison.conclusions import MEANING, group_gaps, verdict
from halflabel.comparison.result import Interval, Row, Trials
from halflabel.errors import UserError
from halflabel.report import svg
from halflabel.report.layout import (
    cell,
    glossary,
    image_size,
    method_summary,
    name_cell,
    name_list,
    scroll_table,
    section,
    section_links,
    settings_table,
    truncation_note,
)
from halflabel.report.svg import Series, figure
from halflabel.runs.redact import shown_name, shown_options, without_folders
from halflabel.system.format import counted, points, shorten, signed_interval, signed_points
from halflabel.system.html import PAGE_SIZE, Html, count, document, el, join, percent

PANELS = 6  # sets of labels that are drawn
CURVES = 6  # methods with a curve, one colour each
CHART_ROWS = 24  # methods per chart
_LINKS = {
    "methods": "Methods",
    "shares": "Labels",
    "differences": "Differences",
    "more": "More labels",
    "missing": "Missing",
    "judged": "Protocol",
}


@dataclass(frozen=True, eq=False)
class ComparisonFacts:
    """One comparison or study, without folder names of this machine."""

    folder: Path
    config: dict[str, Any]
    trials: Trials
    oracle: Row | None  # no label is hidden from it; not among the rows


def read_comparison(folder: Path) -> ComparisonFacts:
    """Read the folder that `halflabel compare` or `halflabel study` wrote."""
    path, fix = folder / "comparison.json", "run the same command again: it resumes"
    if not path.exists():
        raise UserError(f"{folder} has no {path.name}: it was stopped before its end", fix)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        content = _without_folders(json.loads(path.read_text(encoding="utf-8")))
        trials = TypeAdapter(Trials).validate_python(content)
        config.pop("what")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error})", fix) from None
    rows = tuple(row for row in trials.rows if row.role != "oracle")
    if not rows:
        raise UserError(f"{folder} has no finished run", fix)
    oracle = next((row for row in trials.rows if row.role == "oracle"), None)
    return ComparisonFacts(folder, config, replace(trials, rows=rows), oracle)


def _without_folders(value: Any, name: str = "") -> Any:
    """Remove folder names from all texts of a JSON value."""
    if isinstance(value, dict):
        value = shown_options(value) if name == "options" else value
        return {key: _without_folders(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    return shown_name(value) if name == "method" else without_folders(value)


def build_comparison(folder: Path) -> str:
    """Return the page of a comparison or study as HTML text. It holds no folder names of this machine."""
    facts = read_comparison(folder)
    parts = (_methods, _shares, _differences, _more_labels, _missing, _protocol)
    shown = [part for build in parts if (part := build(facts)) is not None]
    title = f"{shorten(facts.folder.resolve().name, 60)} · {facts.trials.kind}"
    best = _best_panel(facts)
    advice = el("code", f"halflabel train LABELS PHOTOS --method {best[0].method.partition(':')[0]}")
    found = _found(best) if facts.trials.kind == "comparison" else facts.trials.conclusions[:1]
    words = el(
        "div",
        el("h1", title),
        *(el("p", sentence, class_="found") for sentence in found),
        el("p", "To train with it: ", advice, ".") if facts.trials.kind == "comparison" else None,
        *(el("p", sentence) for sentence in facts.trials.conclusions if sentence not in found),
        el("p", _subtitle(facts), class_="muted"),
    )
    header = el("header", words, _mAP_chart(facts, best), class_="beside")
    footer = _footer(facts.config, ("entry", "AP", "mAP", "95 % interval", "epoch"))
    return document(title, [header, section_links(_LINKS, shown), el("main", *shown), footer])


def _best_panel(facts: ComparisonFacts) -> list[Row]:
    """Return the rows among which the highest mAP was reached."""
    return max(facts.trials.panels, key=lambda rows: rows[0].mAP)


def _found(rows: Sequence[Row]) -> tuple[str]:
    """Return what a comparison found in a plain sentence, by its best rows."""
    best, second = rows[0], next((row for row in rows[1:] if not math.isnan(row.behind)), None)
    text = f"{shorten(best.method, 60)} has the highest mAP, {points(best.mAP)}"
    if second is not None:
        other, lead = shorten(second.method, 60), points(-second.behind)
        if second.is_alike:
            text += f". {other} is alike within 1 point"
        else:
            sure = f": {lead} points more than {other}, hardly by chance"
            text += sure if second.behind_high < 0 else f". The lead over {other} may be chance"
    return (f"{text}.",)


def _subtitle(facts: ComparisonFacts) -> str:
    rows = facts.trials.rows
    return (
        f"{counted(len({row.method for row in rows}), 'method')}, "
        f"{counted(len({row.labels for row in rows}), 'set of labels', 'sets of labels')}, up to "
        f"{counted(max(row.seeds for row in rows), 'seed')}; {_training_summary(facts.config)}"
    )


def _protocol(facts: ComparisonFacts) -> Html:
    """Return the protocol: how epochs and settings were chosen, and why these methods were compared."""
    reasons = [el("li", el("b", shorten(name, 60)), f": {text}") for name, text in facts.trials.chosen_by.items()]
    return section(
        "judged",
        "How it was measured",
        el(
            "details",
            el("summary", "The whole protocol"),
            el("ul", *(el("li", sentence) for sentence in facts.trials.protocol), class_="notes"),
            join([el("h3", "Why these methods"), el("ul", *reasons, class_="notes")]) if reasons else None,
        ),
        on="Strengths, epochs and settings were chosen on labels left known of images that are not for the test.",
    )


def _methods(facts: ComparisonFacts) -> Html:
    """Return the table of each set of labels, with charts of mAP and of the differences to the best method."""
    tables: list[object] = []
    panels = facts.trials.panels
    for rows in panels:
        known = f"({percent(rows[0].known, 1)} of entries known)" if math.isfinite(rows[0].known) else ""
        note = el("span", known, class_="muted") if facts.trials.kind == "comparison" else None
        tables += [el("h3", f"{_panel_title(facts, rows)} ", note), _method_table(facts, rows)]
    charts = [chart for rows in panels[:PANELS] for chart in _method_charts(facts, rows)]
    notes = (
        "Small numbers are 95 % intervals. Base: how a row is fitted; rows are ranked with those of the same base. A "
        "percentage in a name is the share of labels that are known and correct; "
        "known: the number known to training with the first seed, right or wrong. To the best: the mean difference of "
        "mAP, paired by image and by seed; ≈ marks a row that is not significantly worse than the best, which does not "
        "mean that it is as good. "
        "Seeds: those that all rows of a table have finished, by which they are ranked; "
        "+ further seeds, which are not used. A seed decides which labels are hidden, which images validate, and how "
        "the head starts. CF1, OF1: F1 of the decisions at the run's own thresholds, averaged over classes and "
        "of all entries, ± standard deviation over seeds. Seconds: training of one run, without the features. "
        "Chosen: learning rate (a linear fit has none) and options that were best on validation with seed 0, of the "
        "number tried; ↥ marks a learning rate at the edge of the range. Validation: mAP of out-of-fold scores "
        "(linear) or on validation images, and the labels it used."
    )
    fold = el("summary", "The table, what its columns mean, and what each method does")
    return section(
        "methods",
        "The methods" if facts.trials.kind == "comparison" else "The sets of labels",
        el("details", fold, *tables, el("p", notes, class_="muted"), _method_summaries(facts)),
        truncation_note(PANELS, len(panels), "are drawn; the tables hold all", thing="sets of labels"),
        truncation_note(
            CHART_ROWS, max(map(len, facts.trials.panels)), "are drawn; the tables hold all", thing="methods"
        ),
        el("div", *charts, class_="grid two"),
        on="All on the same test images, mean over seeds, 95 % intervals from images and seeds together.",
    )


def _panel_title(facts: ComparisonFacts, rows: Sequence[Row]) -> str:
    kind = "Labels" if facts.trials.kind == "comparison" else "Method"
    return f"{kind}: {shorten(facts.trials.names(rows[0])[0], 60)}"


def _method_table(facts: ComparisonFacts, rows: Sequence[Row]) -> Html:
    """Return the table of a panel; the method from which no label is hidden is last."""
    first = "method" if facts.trials.kind == "comparison" else "labels"
    titles = [first, *(shown.title for shown in rows[0].cells())]
    lines = []
    for row in (*rows, *([facts.oracle] if facts.oracle is not None else [])):
        reference = el("small", f" {row.reference}", class_="muted") if row.reference else None
        cells = [_cell_with_note(each.value, each.text, shorten(each.note, 40)) for each in row.cells()]
        lines.append(el("tr", name_cell(facts.trials.names(row)[1], 40, reference), *cells))
    return scroll_table(titles, lines, _panel_title(facts, rows), sortable=True)


def _mAP_chart(facts: ComparisonFacts, rows: Sequence[Row]) -> Html:
    """Draw mAP of the rows of a panel."""
    shown, title = rows[:CHART_ROWS], _panel_title(facts, rows)
    best = next((row for row in shown if row.is_best), shown[0])
    names = [facts.trials.names(row)[1] for row in shown]
    value, low, high = (np.array([getattr(row, key) for row in shown]) for key in ("mAP", "mAP_low", "mAP_high"))
    alt = f"Test mAP, {title}: {name_list(names)}, from {points(value[0])} to {points(value[-1])}"
    per_seed = [np.array(row.per_seed) for row in shown]
    chart = svg.interval_chart(names, value, low, high, alt=alt, reference=best.mAP, dots=per_seed)
    note = "dots: one seed each; across: their mean; bar: 95 % interval; line: the best"
    return figure(chart, f"mAP, {shorten(title, 40)}", note)


def _method_charts(facts: ComparisonFacts, rows: Sequence[Row]) -> list[Html]:
    """Draw the paired differences of the rows of a panel to the best; and mAP, unless the page begins with it."""
    shown, title = rows[:CHART_ROWS], _panel_title(facts, rows)
    best = next((row for row in shown if row.is_best), shown[0])
    figures = [] if rows == _best_panel(facts) else [_mAP_chart(facts, rows)]
    compared = [row for row in shown if not row.is_best and math.isfinite(row.behind)]
    if compared:
        keys = ("behind", "behind_low", "behind_high")
        names, best_name = [facts.trials.names(row)[1] for row in compared], facts.trials.names(best)[1]
        alt = f"Paired differences to {best_name}, {title}: {name_list(names)}"
        differences = (np.array([getattr(row, key) for row in compared]) for key in keys)
        chart = svg.interval_chart(names, *differences, alt=alt, reference=0.0, differences=True)
        note = "paired by image and seed; an interval that reaches the line is not significantly worse than the best"
        title = f"Difference to {shorten(best_name, 24)}, {shorten(title, 30)}"
        figures.append(figure(chart, title, note))
    return figures


def _method_summaries(facts: ComparisonFacts) -> Html | None:
    """Say what each method and each way to spend labels is, in a sentence."""
    rows = facts.trials.rows
    names = list(dict.fromkeys(row.method for row in rows))[:CHART_ROWS]
    summaries = [(name, method_summary(name.partition(":")[0])) for name in names]
    summaries += [(name, text) for name, text in MEANING.items() if any(row.strategy == name for row in rows)]
    lines = [el("div", el("dt", shorten(name, 40)), el("dd", summary)) for name, summary in summaries if summary]
    return el("dl", *lines, class_="words") if lines else None


def _missing(facts: ComparisonFacts) -> Html | None:
    """List failed runs, and say how many were left out because the budget ended."""
    failed = []
    for failure in facts.trials.failures:
        what, reason = failure.method if failure.what == "all" else failure.what, shorten(failure.reason, 400)
        failed.append(el("li", el("b", shorten(what, 100)), f" (labels {shorten(failure.labels, 60)}): {reason}"))
    return _missing_runs(failed, facts.trials.left_out)


def _shares(facts: ComparisonFacts) -> Html | None:
    """Draw mAP against the share of clean labels, and the law of a learning curve; None for a single share."""
    rows, growth = [row for row in facts.trials.rows if math.isfinite(row.share)], facts.trials.growth
    curves: dict[str, list[Row]] = {}
    strategies = dict.fromkeys(row.strategy for row in rows if row.strategy)
    for row in rows:
        for strategy in [row.strategy] if row.strategy else strategies:  # all labels end each curve
            name = row.method if len(strategies) < 2 else f"{row.method}, {strategy}"
            curves.setdefault(name if facts.trials.kind == "comparison" else strategy, []).append(row)
    if len({row.share for row in rows}) < 2:
        return None
    # Those with the most shares first, then by mean mAP: means over different shares cannot be compared.
    ranked = sorted(curves, key=lambda name: (-len(curves[name]), -float(np.mean([row.mAP for row in curves[name]]))))
    below = _below_chart([row for name in ranked[:CURVES] for row in curves[name]])
    lines = {}
    for name in ranked[:CURVES]:
        line = sorted((row for row in curves[name] if row not in below), key=lambda row: row.share)
        if line:
            lines[name] = np.array([(round(100 * row.share, 2), row.mAP, row.mAP_low, row.mAP_high) for row in line])
    options: dict[str, Any] = {}
    note = "".join(f"; below the chart: {facts.trials.names(row)[1]}: {points(row.mAP)}" for row in below)
    if growth is not None and growth.curve:
        fit = [np.array(part) for part in zip(*growth.curve, strict=True)]
        ticks = sorted({round(100 * row.share, 2) for row in rows} | {200.0})
        options = {"fit": [100 * fit[0], *fit[1:]], "ticks": ticks, "mark": (100.0, "all labels")}
        note += "; dashed: the fitted power law, shaded: its 95 % interval"
    return section(
        "shares",
        "How many labels it takes",
        truncation_note(
            len(lines), len(ranked), "are drawn: those on most shares, and the best of these", thing="curves"
        ),
        el(
            "div",
            _share_chart(lines, note, **options),
            class_="grid",
        ),
        on="Test mAP; labels were hidden or corrupted in training and validation only.",
    )


def _below_chart(rows: Sequence[Row]) -> list[Row]:
    """Return rows with wrong labels that are far below all others: they would compress the chart."""
    others = [row for row in rows if row.strategy != "noisy"]
    low = min((row.mAP_low for row in others), default=0.0)
    floor = low - 0.1 * (max((row.mAP_high for row in others), default=low) - low)
    return [row for row in rows if row.strategy == "noisy" and row.mAP < floor]


def _differences(facts: ComparisonFacts) -> Html | None:
    """Draw the paired differences between the sets of labels of a study."""
    groups = group_gaps(facts.trials.gaps)
    if not groups:
        return None
    charts = []
    for title, group in groups.items():
        names = [f"{100 * gap.other_share:.3g} → " * gap.is_step + f"{100 * gap.share:.3g} %" for gap in group]
        value, low, high = (np.array([getattr(gap, key) for gap in group]) for key in ("difference", "low", "high"))
        alt = ", ".join(f"{signed_points(gap.difference)} at {name}" for name, gap in zip(names, group, strict=True))
        chart = svg.interval_chart(names, value, low, high, alt=f"{title}: {alt}", reference=0.0, differences=True)
        charts.append(figure(chart, title))
    notes = (
        "Right of the line the first is better. Where the interval reaches it, the difference is not significant, "
        f"which does not mean that both are equally good. {counted(len(facts.trials.gaps), 'difference')} tested: of "
        "twenty that do not exist, about one would seem significant."
    )
    return section(
        "differences",
        "The differences",
        el("p", notes, class_="muted"),
        el("div", *charts, class_="grid"),
        on="Points of mAP, paired by image and by seed, 95 % intervals; percentages are shares of clean labels.",
    )


def _more_labels(facts: ComparisonFacts) -> Html | None:
    """Show what more labels are expected to give."""
    growth, now = facts.trials.growth, next((row.known_labels for row in facts.trials.rows if not row.strategy), 0)
    if growth is None or not now or not growth.ahead:
        return None
    rows = []
    for times, *gain in growth.ahead:
        expected, more = Interval(*gain), round((times - 1) * now)
        interval = signed_interval(expected.low, expected.high)
        per_1000 = 1000 * expected.mean / more if more else math.nan
        rows.append(
            el(
                "tr",
                name_cell(f"{100 * (times - 1):.3g} % more"),
                cell(more, count(more)),
                _cell_with_note(expected.mean, signed_points(expected.mean), interval),
                cell(per_1000, signed_points(per_1000)),
                el("td", {"yes": "yes", "no": "no", "open": "≈"}[verdict(expected, growth.worth)]),
            )
        )
    titles = ["labels", "number", "expected gain", "per 1000 labels", "worth it?"]
    notes = (
        f"Training knows {count(now)} labels now; twice as many are {count(now)} more, of similar images labelled in "
        f"the same way. Worth it: {growth.worth:g} point{'s' * (growth.worth != 1)} of mAP or more, as set with "
        "--worth; ≈ where the interval includes that number, so that it is uncertain."
    )
    return section(
        "more",
        "What more labels give",
        el("p", notes),
        scroll_table(titles, rows, "Expected gain of more labels"),
        on="Counted in labels: one class in one image, labelled present or absent.",
    )


def _cell_with_note(value: float, shown: str, note: str) -> Html:
    """Return a table cell with small text below the number, such as its interval."""
    return cell(value, join([shown, el("br"), el("span", note, class_="muted")]) if note else shown)


def _share_chart(lines: Mapping[str, NDArray[Any]], note: str, **options: Any) -> Html:
    """Draw test mAP by the share of labels; each line has rows (percent, mAP, low, high); options: `interval_lines`."""
    series = []
    for number, (name, line) in enumerate(lines.items()):
        x, y, *ends = line.T
        series.append(
            Series(shorten(name, 30), x, y, 1 + number % 6, *(np.where(np.isnan(end), y, end) for end in ends))
        )
    alt = "Test mAP by share of labels: " + "; ".join(
        f"{line.name} {', '.join(f'{points(b)} at {a:g} %' for a, b in zip(line.x, line.y, strict=True))}"
        for line in series
    )
    chart = svg.interval_lines(
        series, alt=alt, labels=("% of labels that are known and correct", "test mAP"), **options
    )
    legend = [(f"f{line.shade}", line.name) for line in series]
    return figure(chart, "mAP by share of labels", f"with 95 % intervals; the share is logarithmic{note}", legend)


def _missing_runs(failed: Sequence[Html], left_out: int, most: int = 40) -> Html | None:
    """List failed runs, and runs left out because the budget ended; None where nothing is missing."""
    parts: list[object] = []
    if failed:
        parts += [el("h3", "Failed"), el("ul", *failed[:most], class_="notes")]
        parts += [truncation_note(most, len(failed), "are listed", thing="failures")]
    if left_out:
        text = f"The budget ended before {count(left_out)} runs. Run the same command again to do them."
        parts += [el("h3", "Left out"), el("p", text)]
    return section("missing", "What is missing", *parts) if parts else None


def _training_summary(config: Mapping[str, Any]) -> str:
    """Return what all runs of a comparison or a study have in common, in words."""
    tuned = "linear heads on a frozen backbone" if config.get("tune") == "head" else "fine-tuned"
    epochs = f"{config.get('epochs', '?')} epochs"
    if config.get("fit") in ("auto", "linear") and config.get("tune") == "head":
        epochs = f"L-BFGS, or {epochs} for methods that need batches"
    return f"{config.get('backbone', '?')}, {image_size(config)}, {tuned}; {epochs}"


def _footer(config: dict[str, Any], words: Sequence[str]) -> Html:
    """Return the footer of a comparison's or a study's page: glossary, settings, version and page size."""
    version = config.get("halflabel", "?")
    line = el("p", f"Made by halflabel; trained by version {version}. This file: ", PAGE_SIZE, ".")
    return el("footer", glossary(words), settings_table(config, {"halflabel": version}), line)
