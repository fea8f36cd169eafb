"""What a person sees in the terminal."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from halflabel.errors import UserError
from halflabel.system.format import counted, decimal, group_digits, percent, points

if TYPE_CHECKING:
    from halflabel.labels.audit import Audit
    from halflabel.labels.stats import Pair, Stats
    from halflabel.labels.table import LabelTable
    from halflabel.methods.advice import Advice
    from halflabel.runs.evaluate import Evaluation

__all__ = [
    "console",
    "paragraphs",
    "show_advice",
    "show_audit",
    "show_counts",
    "show_error",
    "show_evaluation",
    "show_next_step",
    "show_stats",
    "warnings_in_a_line",
]

console = Console(highlight=False)

_BROKEN = 105  # a line that would reach this far with the next word was broken for its width

PRESENT, ABSENT, UNKNOWN = "green", "red", "bright_black"
SHADES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN, "retracted": UNKNOWN}


def show_error(error: UserError) -> None:
    """One message on the error stream: what is wrong, and what to do."""
    screen = Console(stderr=True, highlight=False)
    screen.print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.fix:
        screen.print(f"  [bold]fix:[/] {escape(error.fix)}", soft_wrap=True)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Show what training warns of without the place in the code that says it."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if category is UserWarning:
                console.print(f"Warning: {message}", markup=False, soft_wrap=True)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = say
        yield


def paragraphs(text: str) -> list[str]:
    """Lines of a docstring with those that its width alone broke put together again: the terminal breaks its own.

    Indented lines (formulas), blank ones and lines that end early stay.

    >>> paragraphs("a line of\\ntext:\\n\\n    x = 1\\n    y = 2")
    ['a line of', 'text:', '', '    x = 1', '    y = 2']
    >>> len(paragraphs("word " * 22 + "\\nand so on"))
    1
    """
    found: list[str] = []
    last = 0  # the length of the line before
    for line in text.splitlines():
        if last + len(line.split(" ")[0]) >= _BROKEN and line and not line.startswith(" ") and found[-1][:1] != " ":
            found[-1] = f"{found[-1].rstrip()} {line}"
        else:
            found.append(line)
        last = len(line)
    return found


def show_audit(audit: Audit, table: LabelTable) -> None:
    """What an import made of the file."""
    images, classes = table.shape
    names = ", ".join(escape(name) for name in audit.files)
    shape = f"{counted(images, 'image')}, {counted(classes, 'class', 'classes')}"
    console.print(f"Read [bold]{names}[/] as {audit.format}: {shape}")
    rows = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    rows.add_column(justify="right")
    rows.add_column()
    rows.add_column()
    rows.add_column(justify="right")
    for raw, meaning, entries in audit.value_counts:
        rows.add_row(escape(repr(raw)), "→", Text(meaning, SHADES.get(meaning, "")), group_digits(entries))
    console.print(rows)
    for note in audit.notes:
        console.print(f"  note: {escape(note)}")
    show_counts(table)


def show_counts(table: LabelTable) -> None:
    """Present, absent and unknown of a whole table, in numbers and as one bar."""
    total = len(table.images) * len(table.classes)
    present = int((table.value > 0).sum())
    absent = table.known - present
    line = Text("  ")
    line.append(f"present {group_digits(present)}", PRESENT)
    line.append(" · ").append(f"absent {group_digits(absent)}", ABSENT)
    line.append(" · ").append(f"unknown {group_digits(total - table.known)}", UNKNOWN)
    line.append(f" · known {percent(table.known, total)}")
    console.print(line)


def bar(present: int, absent: int, unknown: int, width: int = 32) -> Text:
    """Three shares as one bar; what is there at all shows at least one cell."""
    total = max(present + absent + unknown, 1)
    cells = [round(width * part / total) or int(part > 0) for part in (present, absent, unknown)]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    while sum(cells) < width and total:
        cells[cells.index(max(cells))] += 1
    line = Text()
    for count, glyph, shade in zip(cells, "█▓░", (PRESENT, ABSENT, UNKNOWN), strict=True):
        line.append(glyph * count, shade)
    return line


def show_stats(stats: Stats, pairs: list[Pair], *, most: int) -> None:
    """Bars per class, labels per image, and which classes come together."""
    rows = Table(box=None, padding=(0, 1), header_style="bold")
    rows.add_column("class", overflow="fold")
    legend = Text.assemble(("█ present ", PRESENT), ("▓ absent ", ABSENT), ("░ unknown", UNKNOWN))
    rows.add_column(legend)
    for title in ("present", "absent", "unknown"):
        rows.add_column(title, justify="right")
    order = (-stats.positives).argsort(kind="stable")
    for c in order[:most].tolist():
        counts = [int(part[c]) for part in (stats.positives, stats.negatives, stats.unknown)]
        rows.add_row(Text(stats.class_names[c]), bar(*counts), *(group_digits(count) for count in counts))
    console.print(rows)
    if stats.classes > most:
        rest = counted(stats.classes - most, "more class", "more classes")
        console.print(f"  … and {rest} (--top {stats.classes} shows all)")
    _show_histogram("positives per image", stats.positives_per_image.tolist())
    _show_histogram("known labels per image", stats.known_per_image.tolist())
    if pairs:
        console.print("\n[bold]present together[/]")
        together = Table(box=None, padding=(0, 1), header_style="bold")
        for title in ("A", "B"):
            together.add_column(title)
        for title in ("images", "P(B given A)", "lift"):
            together.add_column(title, justify="right")
        certain = stats.negatives.any()
        for pair in pairs:
            # Where nothing is known to be absent, a conditional probability would always read 1.
            shown = (f"{pair.probability:.2f}", f"{pair.lift:.1f}") if certain else ("—", "—")
            together.add_row(Text(pair.first), Text(pair.second), group_digits(pair.together), *shown)
        console.print(together)


def _show_histogram(title: str, counts: list[int], most: int = 12) -> None:
    console.print(f"\n[bold]{title}[/]")
    # Long tails, such as 80 known labels each, are shown as ranges.
    step = max(1, -(-len(counts) // most))
    grouped = [
        (first, min(first + step, len(counts)) - 1, sum(counts[first : first + step]))
        for first in range(0, len(counts), step)
    ]
    peak = max(count for *_, count in grouped) or 1
    for first, last, count in grouped:
        label = str(first) if first == last else f"{first}–{last}"
        blocks = "█" * (round(40 * count / peak) or int(count > 0))
        console.print(f"  {label:>7} {blocks} {group_digits(count)}")


def show_advice(advice: Advice) -> None:
    """Which method suits these labels and why, and what to look at first."""
    console.print(f"\n[bold]{escape(advice.regime)}[/]")
    for caution in advice.cautions:
        console.print(f"  • {escape(caution.message)}")
    if advice.methods:
        console.print("\n[bold]methods that fit, in the order to try them[/]")
        rows = Table(box=None, padding=(0, 1), show_header=False)
        for method, why in advice.methods:
            rows.add_row(f"  [bold]{method}[/]", escape(why))
        console.print(rows)


def show_evaluation(found: Evaluation) -> None:
    """mAP with its interval, F1, calibration, and the classes to worry about."""
    value = found.overall
    low, high = (points(value[key]) for key in ("mAP_low", "mAP_high"))
    console.print(
        f"\n[bold]mAP {points(value['mAP'])}[/] ({low} – {high})   micro F1 {points(value['micro_f1'])}   "
        f"macro F1 {points(value['macro_f1'])}   calibration error {decimal(value['ECE'])}"
    )
    if "G1" in value:
        groups = "  ".join(f"G{number} {points(value[f'G{number}'])}" for number in range(1, 6))
        console.print(f"mAP of fifths of the classes, fewest training labels first: {groups}")
    console.print(f"[bright_black]{escape(found.protocol)}[/]")
    judged = sorted((row for row in found.per_class if row["AP"] == row["AP"]), key=lambda row: float(row["AP"]))
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("weakest classes")
    for title in ("AP", "95 % interval", "known +", "known −", "precision", "recall"):
        rows.add_column(title, justify="right")
    for row in judged[:5]:
        rows.add_row(
            escape(row["class"]),
            points(row["AP"]),
            f"{points(row['AP_low'])} – {points(row['AP_high'])}",
            str(row["present"]),
            str(row["absent"]),
            decimal(row["precision"], 2),
            decimal(row["recall"], 2),
        )
    if judged:
        console.print(rows)
    blind = [row["class"] for row in found.per_class if row["present"] == 0 or row["absent"] == 0]
    if blind:
        shown = ", ".join(blind[:8]) + (" …" if len(blind) > 8 else "")
        those = counted(len(blind), "class", "classes")
        console.print(f"— for {those} without a known positive or negative here: {escape(shown)}")


def show_next_step(folder: Path) -> None:
    """What to do next, from what lies in the folder."""
    console.print("[bold]halflabel[/]: image classifiers from labels that are only partly known\n")
    labels = sorted(p for p in folder.iterdir() if p.suffix in (".csv", ".parquet", ".json") and p.is_file())
    if labels:
        name = labels[0].name
        step = escape(shlex.join(["halflabel", "inspect", name]))
        console.print(f"Found {escape(name)} here. See what is known in it:\n\n  {step}\n", soft_wrap=True)
    else:
        console.print("No label file lies here. See what it does on data of its own:\n\n  halflabel demo\n")
        console.print("Then with yours:  halflabel inspect LABELS.csv\n")
    console.print("halflabel --help lists all commands; halflabel COMMAND --help explains one.")
