"""The table of methods on the page of a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halflabel.experiments.result import ComparisonRow
from halflabel.metrics.registry import shown_metrics
from halflabel.report.layout import cell, cell_with_note, name_cell, scroll_table, signed_interval, signed_points
from halflabel.system.format import points, shorten
from halflabel.system.html import Html, el


def is_tie(row: ComparisonRow) -> bool:
    """Whether the paired interval of the difference to the best method includes 0."""
    return math.isnan(row.behind_high) or row.behind_high >= 0


def method_table(rows: Sequence[ComparisonRow], oracle: ComparisonRow | None) -> Html:
    """Return the table of one set of labels, best method first, the method from which no label is hidden last."""
    titles = ["method", "mAP", "to the best", "CF1", "OF1", "seeds", "s/run", "memory", "chosen", "tried", "validation"]
    metrics = list(dict.fromkeys(name for row in rows for name in row.own_metrics))
    titles[5:5] = [shown.title for shown in shown_metrics(dict.fromkeys(metrics, 0.0))]
    lines = []
    for row in (*rows, oracle) if oracle is not None else rows:
        best, is_ranked = row is rows[0], row is not oracle
        options = ", ".join(f"{name} {value}" for name, value in row.options.items())
        rate = f"{row.lr:.2g}{' ↥' if row.rate_at_edge else ''}" if row.solver == "sgd" else row.solver
        behind = signed_points(row.behind) + (" ≈" if is_tie(row) else "")
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
