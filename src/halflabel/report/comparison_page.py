"""The HTML page of a comparison: which method is best with how many labels, at what cost, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from halflabel.comparison.result import ComparisonRow
from halflabel.evaluation.registry import shown_metrics
from halflabel.report import svg
from halflabel.report.comparison_facts import ComparisonFacts, class_gaps, read_comparison
from halflabel.report.layout import (
    ENOUGH_SEEDS,
    FEW_POSITIVES,
    cell,
    cell_with_note,
    comparison_footer,
    method_summary,
    missing_runs,
    name_cell,
    name_list,
    scroll_table,
    section,
    section_links,
    share_chart,
    signed_interval,
    signed_points,
    training_summary,
    truncation_note,
)
from halflabel.report.svg import figure
from halflabel.system.format import counted, points, shorten
from halflabel.system.html import Html, count, document, el, join, percent

PANELS = 6  # sets of labels that are drawn
CURVES = 6  # methods with a curve, one colour each
CHART_ROWS = 24  # methods per chart
GAPS = 8  # classes shown where the first method is better, and where the second is
ONE_SEED = "With one seed, intervals leave out the spread over seeds."
FEW_SEEDS = (
    f"With fewer than {ENOUGH_SEEDS} seeds, most of such an interval is uncertainty about seeds: more seeds narrow it."
)
_LINKS = {
    "methods": "Methods",
    "classes": "Classes",
    "shares": "Labels",
    "missing": "Missing",
    "judged": "Protocol",
}


def build_comparison(folder: Path) -> str:
    """Return the page of a comparison as HTML text. It holds no folder names of this machine."""
    facts = read_comparison(folder)
    parts = (_methods, _classes, _shares, _missing, _protocol)
    shown = [part for build in parts if (part := build(facts)) is not None]
    title = f"{shorten(facts.folder.resolve().name, 60)} · comparison"
    header = el(
        "header",
        el("h1", title),
        el("p", el("b", facts.caution), class_="warn", role="note") if facts.caution else None,
        *(el("p", sentence, class_="found") for sentence in facts.conclusions),
        el("p", _subtitle(facts), class_="muted"),
    )
    footer = comparison_footer(
        facts.config, "the methods were compared", ("entry", "AP", "mAP", "95 % interval", "epoch")
    )
    return document(title, [header, section_links(_LINKS, shown), el("main", *shown), footer])


def _subtitle(facts: ComparisonFacts) -> str:
    methods = len({row.method for row in facts.rows})
    return (
        f"{counted(methods, 'method')}, {counted(len(facts.panels), 'set of labels', 'sets of labels')}, up to "
        f"{counted(max(row.seeds for row in facts.rows), 'seed')}; {training_summary(facts.config)}"
    )


def _few_seeds_note(rows: Sequence[ComparisonRow]) -> str:
    """Return a caution where intervals of differences come from few seeds; otherwise empty."""
    if any(row.seeds == 1 for row in rows[1:]):
        return ONE_SEED
    return FEW_SEEDS if any(row.seeds < ENOUGH_SEEDS and _is_tie(row) for row in rows[1:]) else ""


def _protocol(facts: ComparisonFacts) -> Html:
    """Return the protocol: how epochs and settings were chosen, and why these methods were compared."""
    selection = {
        "hidden truth": "on the HIDDEN TRUTH of images that are not for the test, which nobody has in practice",
        "known labels": "on the labels left known of images that are not for the test",
        "known positives": "on the positives left known of images that are not for the test, unknown counted as absent",
    }
    kinds = dict.fromkeys(row.selected_on for row in facts.rows)
    where = {
        kind: ", ".join(dict.fromkeys(row.labels for row in facts.rows if row.selected_on == kind)) for kind in kinds
    }
    chosen = "; ".join(
        selection.get(kind, kind) + (f" (labels: {where[kind]})" if len(kinds) > 1 else "") for kind in kinds
    )
    intro = "Strengths, epochs and hyper-parameters were chosen "
    reasons = [el("li", el("b", shorten(name, 60)), f": {reason}") for name, reason in facts.chosen_by.items()]
    return section(
        "judged",
        "How it was measured",
        el("p", el("b", intro), chosen, ".", class_="warn" if facts.caution else None),
        el(
            "details",
            el("summary", "The whole protocol"),
            el("ul", *(el("li", _emphasised(sentence)) for sentence in facts.protocol), class_="notes"),
            join([el("h3", "Why these methods"), el("ul", *reasons, class_="notes")]) if reasons else None,
        ),
    )


def _emphasised(sentence: str) -> Html:
    is_warning = sentence.startswith("CHOSEN ON HIDDEN TRUTH")
    return el("strong", sentence, class_="warn") if is_warning else join([sentence])


def _with_caution(facts: ComparisonFacts, sentence: str) -> str:
    return f"{sentence} {facts.caution}".strip()


def _methods(facts: ComparisonFacts) -> Html:
    """Return the table of each set of labels, with charts of mAP and of the differences to the best method."""
    tables: list[object] = []
    for rows in facts.panels:
        known = percent(rows[0].known, 1) if math.isfinite(rows[0].known) else "—"
        share = el("span", f"({known} of entries known)", class_="muted")
        tables += [el("h3", f"Labels: {shorten(rows[0].labels, 60)} ", share), _method_table(rows, facts.oracle)]
    charts = [chart for rows in facts.panels[:PANELS] for chart in _method_charts(rows)]
    notes = (
        "Small numbers are 95 % intervals. To the best: the mean difference of mAP, paired by image and by seed; ≈ "
        "marks a method that is not significantly worse than the best, which does not mean that it is as good. "
        + "".join(f"{note} " for note in dict.fromkeys(map(_few_seeds_note, facts.panels)) if note)
        + "Seeds: those that all methods have finished with the same labels, by which they are ranked; "
        "+ further seeds, which are not used. A seed decides which labels are hidden, which images validate, and how "
        "the head starts. CF1, OF1: F1 of the decisions at the run's own thresholds, averaged over classes and "
        "of all entries, ± standard deviation over seeds. Seconds: training of one run, without the features. "
        + (f"Memory: {facts.memory_kind} during a run. " if facts.memory_kind else "")
        + "Chosen: learning rate (lbfgs has none) and options that were best on validation with seed 0, of the number "
        "tried; ↥ marks a learning rate at the edge of the range. Validation: mAP of out-of-fold scores (lbfgs) or on "
        "validation images, and the labels it used."
    )
    return section(
        "methods",
        "The methods",
        *tables,
        el(
            "details",
            el("summary", "What the columns mean, and what each method does"),
            el("p", notes, class_="muted"),
            _method_summaries(facts),
        ),
        truncation_note(PANELS, len(facts.panels), "are drawn; the tables hold all", thing="sets of labels"),
        truncation_note(CHART_ROWS, max(map(len, facts.panels)), "are drawn; the tables hold all", thing="methods"),
        el("div", *charts, class_="grid two"),
        on=_with_caution(
            facts, "All on the same test images, mean over seeds, 95 % intervals from images and seeds together."
        ),
    )


def _is_tie(row: ComparisonRow) -> bool:
    """Whether the paired interval of the difference to the best method includes 0."""
    return math.isnan(row.behind_high) or row.behind_high >= 0


def _method_table(rows: Sequence[ComparisonRow], oracle: ComparisonRow | None) -> Html:
    """Return the table of one set of labels, best method first, the method from which no label is hidden last."""
    titles = ["method", "mAP", "to the best", "CF1", "OF1", "seeds", "s/run", "memory", "chosen", "tried", "validation"]
    metrics = list(dict.fromkeys(name for row in rows for name in row.own_metrics))
    titles[5:5] = [shown.title for shown in shown_metrics(dict.fromkeys(metrics, 0.0))]
    lines = []
    for row in (*rows, oracle) if oracle is not None else rows:
        best, is_ranked = row is rows[0], row is not oracle
        options = ", ".join(f"{name} {value}" for name, value in row.options.items())
        rate = f"{row.lr:.2g}{' ↥' if row.rate_at_edge else ''}" if row.solver == "sgd" else row.solver
        behind = signed_points(row.behind) + (" ≈" if _is_tie(row) else "")
        behind = "best" if best else behind if is_ranked else "—"
        memory = "—" if math.isnan(row.memory) else f"{row.memory / 2**20:.0f} MB" if row.memory >= 2**20 else "< 1 MB"
        tried = str(row.tried) if row.tried == row.to_try else f"{row.tried} of {row.to_try}"
        interval = signed_interval(row.behind_low, row.behind_high)
        lines.append(
            el(
                "tr",
                name_cell(row.method, 40, el("small", f" {row.reference}", class_="muted") if row.reference else None),
                cell_with_note(row.mAP, points(row.mAP), f"{points(row.mAP_low)} – {points(row.mAP_high)}"),
                cell_with_note(
                    0.0 if best else row.behind if is_ranked else math.nan,
                    behind,
                    "" if best or not is_ranked or math.isnan(row.behind) else interval,
                ),
                *(
                    cell_with_note(value, points(value), "" if math.isnan(spread) else f"± {points(spread)}")
                    for value, spread in ((row.CF1, row.CF1_sd), (row.OF1, row.OF1_sd))
                ),
                *(
                    cell(row.own_metrics.get(name, math.nan), shown.value)
                    for name in metrics
                    for shown in shown_metrics({name: row.own_metrics.get(name, math.nan)})
                ),
                cell(row.seeds, f"{row.seeds} + {row.unused_seeds}" if row.unused_seeds else str(row.seeds)),
                cell(row.seconds, f"{row.seconds:.3g}"),
                cell(row.memory, memory),
                cell_with_note(row.lr, rate, shorten(options, 40)),
                cell(row.tried, tried),
                cell_with_note(row.validation, points(row.validation), row.selected_on),
            )
        )
    return scroll_table(titles, lines, f"Methods with labels {shorten(rows[0].labels, 60)}", sortable=True)


def _method_charts(rows: Sequence[ComparisonRow]) -> list[Html]:
    """Draw mAP of the methods on one set of labels, and their paired differences to the best."""
    shown, labels = rows[:CHART_ROWS], rows[0].labels
    names = [row.method for row in shown]
    value, low, high = (np.array([getattr(row, key) for row in shown]) for key in ("mAP", "mAP_low", "mAP_high"))
    alt = f"Test mAP with labels {labels}: {name_list(names)}, from {points(value[0])} to {points(value[-1])}"
    per_seed = [np.array(row.per_seed) for row in shown]
    chart = svg.interval_chart(names, value, low, high, alt=alt, reference=value[0], dots=per_seed)
    title = f"mAP, labels: {shorten(labels, 30)}"
    figures = [figure(chart, title, "dots: one seed each; across: their mean; bar: 95 % interval; line: the best")]
    keys = ("behind", "behind_low", "behind_high")
    value, low, high = (np.array([getattr(row, key) for row in shown[1:]]) for key in keys)
    finite = np.isfinite(value)
    if finite.any():
        alt = f"Paired differences to {names[0]} with labels {labels}: {name_list(names[1:])}"
        compared = [name for name, is_finite in zip(names[1:], finite, strict=True) if is_finite]
        differences = (value[finite], low[finite], high[finite])
        chart = svg.interval_chart(compared, *differences, alt=alt, reference=0.0, differences=True)
        note = "paired by image and seed; an interval that reaches the line is not significantly worse than the best"
        title = f"Difference to {shorten(names[0], 24)}, labels: {shorten(labels, 20)}"
        figures.append(figure(chart, title, ". ".join(filter(None, (note, _few_seeds_note(rows))))))
    return figures


def _method_summaries(facts: ComparisonFacts) -> Html | None:
    """Say what each method does, in a sentence."""
    names = list(dict.fromkeys(row.method for row in facts.rows))[:CHART_ROWS]
    summaries = [(name, method_summary(name.partition(":")[0])) for name in names]
    lines = [el("div", el("dt", shorten(name, 40)), el("dd", summary)) for name, summary in summaries if summary]
    return el("dl", *lines, class_="words") if lines else None


def _missing(facts: ComparisonFacts) -> Html | None:
    """List failed runs, and runs left out because the budget ended."""

    def line(what: str, labels: str, text: str) -> Html:
        return el("li", el("b", shorten(what, 100)), f" (labels {shorten(labels, 60)}): {shorten(text, 400)}")

    failed = [line(f.method if f.what == "all" else f.what, f.labels, f.reason) for f in facts.failures]
    waiting = [
        line(left.method, left.labels, f"{count(left.runs)} runs, seeds {', '.join(map(str, left.seeds))}")
        for left in facts.left_out[:60]
    ]
    return missing_runs(failed, sum(left.runs for left in facts.left_out), waiting)


def _shares(facts: ComparisonFacts) -> Html | None:
    """Draw mAP against the share of labels kept; None where only one share was compared."""
    rows = [row for row in facts.rows if math.isfinite(row.kept)]
    if len({row.kept for row in rows}) < 2:
        return None
    means: dict[str, list[float]] = {}
    for row in rows:
        means.setdefault(row.method, []).append(row.mAP)
    # Methods with the most shares first, then by mean mAP: means over different shares cannot be compared.
    ranked = sorted(means, key=lambda name: (-len(means[name]), -float(np.mean(means[name]))))
    lines = {}
    for name in ranked[:CURVES]:
        line = sorted((row for row in rows if row.method == name), key=lambda row: row.kept)
        lines[name] = np.array([(100 * row.kept, row.mAP, row.mAP_low, row.mAP_high) for row in line])
    return section(
        "shares",
        "How many labels it takes",
        truncation_note(
            len(lines), len(ranked), "are drawn: those on most shares, and the best of these", thing="methods"
        ),
        el("div", share_chart("mAP by share of labels", lines, "% of each image's labels kept"), class_="grid"),
        on=_with_caution(facts, "Test mAP; labels were hidden from training and validation only."),
    )


def _classes(facts: ComparisonFacts) -> Html | None:
    """Compare the best method of each set of labels with the naive reading, or the next, where they differ most."""
    pairs = [rows for rows in facts.panels[:PANELS] if len(rows) > 1]
    if not pairs:
        return None
    parts: list[object] = []
    for rows in pairs:
        first = rows[0]
        second = next((row for row in rows[1:] if row.role == "naive"), rows[1])
        gaps = class_gaps(facts, first, second, GAPS)
        title = f"{shorten(first.method, 30)} against {shorten(second.method, 30)}, labels: {shorten(first.labels, 30)}"
        if not gaps:
            text = "No class differs." if gaps is not None else "Not compared: the two have no seed in common."
            parts.append(el("div", el("b", title), el("p", text, class_="none")))
            continue
        names = [gap.name for gap in gaps]
        mean, low, high = np.array([gap.interval for gap in gaps]).T
        ends = [f"{shorten(names[k], 40)} {signed_points(mean[k])}" for k in (0, -1)]
        alt = f"{title}: from {ends[0]} down to {ends[1]}"
        hollow = [gap.present < FEW_POSITIVES for gap in gaps]
        chart = svg.interval_chart(names, mean, low, high, alt=alt, reference=0.0, hollow=hollow, differences=True)
        note = f"difference of AP: right of the line {shorten(first.method, 30)} is better"
        legend = [("ring round", f"fewer than {FEW_POSITIVES} known positives")] * any(hollow)
        parts.append(figure(chart, title, note, legend))
    caution = (
        "The classes with the largest differences were chosen, so they are partly luck: the intervals are for "
        "single classes, and of twenty classes without any difference about one would seem to have one."
    )
    return section(
        "classes",
        "Class by class",
        el("p", caution, class_="muted"),
        el("div", *parts, class_="grid"),
        on=_with_caution(
            facts, f"The best method and the naive reading, or the next best; at most {GAPS} gains and {GAPS} losses."
        ),
    )
