"""The HTML page of a comparison or study: which method or labels are best, at what cost, and how certain that is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from halflabel.comparison.conclusions import MEANING, group_gaps
from halflabel.comparison.result import Row, Trials
from halflabel.errors import UserError
from halflabel.report import svg
from halflabel.report.layout import (
    GLOSSARY,
    Cell,
    Line,
    Section,
    Table,
    image_size,
    limit,
    method_summary,
    name_list,
    report_page,
    settings,
)
from halflabel.report.svg import Series, figure
from halflabel.runs.redact import shown_name, shown_options, without_folders
from halflabel.system.format import (
    counted,
    group_digits,
    percent,
    points,
    shorten,
    signed_points,
)
from halflabel.system.html import Html

PANELS = 6  # sets of labels that are drawn
CURVES = 6  # methods with a curve, one colour each
CHART_ROWS = 24  # methods per chart
_MOST_FAILURES = 40
_COLUMNS = (
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
    "number tried. Validation: mAP of out-of-fold scores (linear) or on validation images, and the labels it used."
)


@dataclass(frozen=True, eq=False)
class ComparisonFacts:
    """One comparison or study, without folder names of this machine."""

    folder: Path
    config: dict[str, Any]
    trials: Trials
    oracle: Row | None  # no label is hidden from it; not among the rows

    @property
    def ranks_methods(self) -> bool:
        """Whether methods are compared, not sets of labels."""
        return self.trials.kind == "comparison"

    def panel_title(self, rows: Sequence[Row]) -> str:
        return f"{'Labels' if self.ranks_methods else 'Method'}: {shorten(self.trials.names(rows[0])[0], 60)}"

    def names(self, rows: Sequence[Row]) -> list[str]:
        return [self.trials.names(row)[1] for row in rows]


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
    trials, version = facts.trials, facts.config.get("halflabel", "?")
    best = max(trials.panels, key=lambda rows: rows[0].mAP)  # the panel that reaches the highest mAP
    command = f"halflabel train LABELS PHOTOS --method {best[0].method.partition(':')[0]}"
    found = (_found(best),) if facts.ranks_methods else trials.conclusions[:1]
    return report_page(
        f"{shorten(facts.folder.resolve().name, 60)} · {trials.kind}",
        [
            _methods(facts, best),
            _shares(facts),
            _differences(facts),
            _missing(facts),
            _protocol(facts),
        ],
        found=found,
        advice=("To train with it:", command) if facts.ranks_methods else (),
        more=[sentence for sentence in trials.conclusions if sentence not in found],
        about=[_subtitle(facts)],
        chart=_mAP_chart(facts, best),
        words={word: GLOSSARY[word] for word in ("entry", "AP", "mAP", "95 % interval", "epoch")},
        settings=settings(facts.config, {"halflabel": version}),
        made_by=f"trained by version {version}",
    )


def _found(rows: Sequence[Row]) -> str:
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
    return f"{text}."


def _subtitle(facts: ComparisonFacts) -> str:
    """Return what was compared, and what all runs have in common."""
    rows, config = facts.trials.rows, facts.config
    tuned = "linear heads on a frozen backbone" if config.get("tune") == "head" else "fine-tuned"
    epochs = f"{config.get('epochs', '?')} epochs"
    if config.get("fit") in ("auto", "linear") and config.get("tune") == "head":
        epochs = f"L-BFGS, or {epochs} for methods that need batches"
    return (
        f"{counted(len({row.method for row in rows}), 'method')}, "
        f"{counted(len({row.labels for row in rows}), 'set of labels', 'sets of labels')}, up to "
        f"{counted(max(row.seeds for row in rows), 'seed')}; {config.get('backbone', '?')}, {image_size(config)}, "
        f"{tuned}; {epochs}"
    )


def _protocol(facts: ComparisonFacts) -> Section:
    """Return the protocol: how epochs and settings were chosen, and why these methods were compared."""
    lists = [("", [("", sentence) for sentence in facts.trials.protocol])]
    if facts.trials.chosen_by:
        lists.append(("Why these methods", list(facts.trials.chosen_by.items())))
    return Section(
        *("judged", "Protocol", "How it was measured"),
        on="Strengths, epochs and settings were chosen on labels left known of images that are not for the test.",
        fold="The whole protocol",
        lists=lists,
    )


def _methods(facts: ComparisonFacts, first: Sequence[Row]) -> Section:
    """Return the table of each set of labels, with charts of mAP and of the differences to the best method."""
    panels, rows = facts.trials.panels, facts.trials.rows
    charts = []
    for panel in panels[:PANELS]:
        charts += [] if panel == first else [_mAP_chart(facts, panel)]  # the page begins with it
        charts += _difference_chart(facts, panel)
    names = list(dict.fromkeys(row.method for row in rows))[:CHART_ROWS]
    summaries = [(name, method_summary(name.partition(":")[0])) for name in names]
    summaries += [(name, text) for name, text in MEANING.items() if any(row.strategy == name for row in rows)]
    rest = "are drawn; the tables hold all"
    return Section(
        *("methods", "Methods", "The methods" if facts.ranks_methods else "The sets of labels"),
        on="All on the same test images, mean over seeds, 95 % intervals from images and seeds together.",
        limits=[
            *limit(PANELS, len(panels), rest, "sets of labels"),
            *limit(CHART_ROWS, max(map(len, panels)), rest, "methods"),
        ],
        panels=charts,
        fold="The table, what its columns mean, and what each method does",
        tables=[_method_table(facts, panel) for panel in panels],
        note=_COLUMNS,
        lists=[("", [(name, text) for name, text in summaries if text])],
    )


def _method_table(facts: ComparisonFacts, rows: Sequence[Row]) -> Table:
    """Return the table of a panel; the method from which no label is hidden is last."""
    known = ""
    if facts.ranks_methods and math.isfinite(rows[0].known):
        known = f"({percent(rows[0].known, 1)} of entries known)"
    lines = [
        Line(facts.trials.names(row)[1], [Cell(*each[1:]) for each in row.cells()], row.reference)
        for row in (*rows, *([facts.oracle] if facts.oracle is not None else []))
    ]
    titles = ["method" if facts.ranks_methods else "labels", *(shown.title for shown in rows[0].cells())]
    title = facts.panel_title(rows)
    return Table(title, titles, lines, heading=title, note=known)


def _mAP_chart(facts: ComparisonFacts, rows: Sequence[Row]) -> Html:
    """Draw mAP of the rows of a panel."""
    shown, title = rows[:CHART_ROWS], facts.panel_title(rows)
    best = next((row for row in shown if row.is_best), shown[0])
    names = facts.names(shown)
    value, low, high = (np.array([getattr(row, key) for row in shown]) for key in ("mAP", "mAP_low", "mAP_high"))
    alt = f"Test mAP, {title}: {name_list(names)}, from {points(value[0])} to {points(value[-1])}"
    per_seed = [np.array(row.per_seed) for row in shown]
    chart = svg.interval_chart(names, value, low, high, alt=alt, reference=best.mAP, dots=per_seed)
    note = "dots: one seed each; across: their mean; bar: 95 % interval; line: the best"
    return figure(chart, f"mAP, {shorten(title, 40)}", note)


def _difference_chart(facts: ComparisonFacts, rows: Sequence[Row]) -> list[Html]:
    """Draw the paired differences of the rows of a panel to the best, if there are any."""
    shown, title = rows[:CHART_ROWS], facts.panel_title(rows)
    best = next((row for row in shown if row.is_best), shown[0])
    compared = [row for row in shown if not row.is_best and math.isfinite(row.behind)]
    if not compared:
        return []
    names, best_name = facts.names(compared), facts.trials.names(best)[1]
    alt = f"Paired differences to {best_name}, {title}: {name_list(names)}"
    keys = ("behind", "behind_low", "behind_high")
    differences = (np.array([getattr(row, key) for row in compared]) for key in keys)
    chart = svg.interval_chart(names, *differences, alt=alt, reference=0.0, differences=True)
    note = "paired by image and seed; an interval that reaches the line is not significantly worse than the best"
    return [figure(chart, f"Difference to {shorten(best_name, 24)}, {shorten(title, 30)}", note)]


def _missing(facts: ComparisonFacts) -> Section | None:
    """List failed runs, and say how many were left out because the budget ended; None where nothing is missing."""
    failures, left_out = facts.trials.failures, facts.trials.left_out
    if not failures and not left_out:
        return None
    failed = []
    for failure in failures[:_MOST_FAILURES]:
        what = failure.method if failure.what == "all" else failure.what
        failed.append((f"{shorten(what, 60)} (labels {shorten(failure.labels, 30)})", shorten(failure.reason, 400)))
    text = f"The budget ended before {group_digits(left_out)} runs. Run the same command again to do them."
    return Section(
        *("missing", "Missing", "What is missing"),
        text=[text] if left_out else (),
        limits=limit(_MOST_FAILURES, len(failures), "are listed", "failures"),
        lists=[("Failed", failed)] if failed else (),
    )


def _shares(facts: ComparisonFacts) -> Section | None:
    """Draw mAP against the share of clean labels, and the law of a learning curve; None for a single share."""
    rows, growth = [row for row in facts.trials.rows if math.isfinite(row.share)], facts.trials.growth
    if len({row.share for row in rows}) < 2:
        return None
    curves: dict[str, list[Row]] = {}
    strategies = dict.fromkeys(row.strategy for row in rows if row.strategy)
    for row in rows:
        for strategy in [row.strategy] if row.strategy else strategies:  # all labels end each curve
            name = row.method if len(strategies) < 2 else f"{row.method}, {strategy}"
            curves.setdefault(name if facts.ranks_methods else strategy, []).append(row)
    # Those with the most shares first, then by mean mAP: means over different shares cannot be compared.
    ranked = sorted(curves, key=lambda name: (-len(curves[name]), -float(np.mean([row.mAP for row in curves[name]]))))
    below = _below_chart([row for name in ranked[:CURVES] for row in curves[name]])
    series: list[Series] = []
    for name in ranked[:CURVES]:
        line = sorted((row for row in curves[name] if row not in below), key=lambda row: row.share)
        if line:
            numbers = [(round(100 * row.share, 2), row.mAP, row.mAP_low, row.mAP_high) for row in line]
            x, y, *ends = np.array(numbers).T
            filled = (np.where(np.isnan(end), y, end) for end in ends)
            series.append(Series(shorten(name, 30), x, y, 1 + len(series) % 6, *filled))
    options: dict[str, Any] = {}
    note = "".join(f"; below the chart: {facts.trials.names(row)[1]}: {points(row.mAP)}" for row in below)
    if growth is not None and growth.curve:
        fit = [np.array(part) for part in zip(*growth.curve, strict=True)]
        ticks = sorted({round(100 * row.share, 2) for row in rows} | {200.0})
        options = {"fit": [100 * fit[0], *fit[1:]], "ticks": ticks, "mark": (100.0, "all labels")}
        note += "; dashed: the fitted power law, shaded: its 95 % interval"
    alt = "Test mAP by share of labels: " + "; ".join(
        f"{line.name} {', '.join(f'{points(b)} at {a:g} %' for a, b in zip(line.x, line.y, strict=True))}"
        for line in series
    )
    labels = ("% of labels that are known and correct", "test mAP")
    chart = svg.interval_lines(series, alt=alt, labels=labels, **options)
    legend = [(f"f{line.shade}", line.name) for line in series]
    caption = f"with 95 % intervals; the share is logarithmic{note}"
    return Section(
        *("shares", "Labels", "How many labels it takes"),
        on="Test mAP; labels were hidden or corrupted in training and validation only.",
        limits=limit(len(series), len(ranked), "are drawn: those on most shares, and the best of these", "curves"),
        panels=[figure(chart, "mAP by share of labels", caption, legend)],
    )


def _below_chart(rows: Sequence[Row]) -> list[Row]:
    """Return rows with wrong labels that are far below all others: they would compress the chart."""
    others = [row for row in rows if row.strategy != "noisy"]
    low = min((row.mAP_low for row in others), default=0.0)
    floor = low - 0.1 * (max((row.mAP_high for row in others), default=low) - low)
    return [row for row in rows if row.strategy == "noisy" and row.mAP < floor]


def _differences(facts: ComparisonFacts) -> Section | None:
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
    return Section(
        *("differences", "Differences", "The differences"),
        on="Points of mAP, paired by image and by seed, 95 % intervals; percentages are shares of clean labels.",
        text=[
            "Right of the line the first is better. Where the interval reaches it, the difference is not significant, "
            f"which does not mean that both are equally good. {counted(len(facts.trials.gaps), 'difference')} tested: "
            "of twenty that do not exist, about one would seem significant."
        ],
        panels=charts,
    )
