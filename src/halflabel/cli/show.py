"""Output of the commands in the terminal: tables, bars, messages and errors."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from halflabel.errors import UserError, write_options
from halflabel.system.files import remote_url
from halflabel.system.format import counted, decimal, group_digits, percent, points, printable

if TYPE_CHECKING:
    from halflabel.evaluation.evaluate import Evaluation
    from halflabel.fitting.advice import Advice
    from halflabel.labels.audit import Audit
    from halflabel.labels.table import Stats, Table


class SafeConsole(Console):
    """A console that never prints control characters of a text: a class or a file may be named by anybody.

    What the stream cannot encode, such as a file name that is not UTF-8, is printed as an escape instead of an error.
    """

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        rendered = super()._render_buffer(
            Segment(printable(text), style) if not control else Segment(text, style, control)
            for text, style, control in buffer
        )
        if getattr(self.file, "errors", None) == "strict":
            return rendered.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return rendered

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print; lines of text stay whole by default, so that commands and paths can be copied."""
        is_text = all(isinstance(item, str | Text) for item in objects)
        super().print(*objects, soft_wrap=is_text if soft_wrap is None else soft_wrap, **options)


console = SafeConsole(highlight=False)

PRESENT, ABSENT, UNKNOWN = "green", "red", "bright_black"
SHADES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN, "uncertain": UNKNOWN, "retracted": UNKNOWN}


def paragraph(text: str | Text) -> None:
    """Print a text that the terminal breaks at words."""
    console.print(text, soft_wrap=False)


def written(path: object, content: str = "") -> None:
    """Print which file or folder was written, and what it holds."""
    console.print(f"Wrote [bold]{escape(str(path))}[/]{escape(content)}")


def plain_table(*titles: str, numbers: Iterable[str] = (), left: int = 0, right: int = 2) -> RichTable:
    """Return a table without lines; columns of `numbers` follow the others and are aligned to the right."""
    table = RichTable(box=None, padding=(0, right, 0, left), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def first_names(names: Sequence[str], most: int = 8) -> str:
    """Return the first names as text, with dots where there are more."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def error(error: UserError) -> None:
    """Print an error and its fix to stderr."""
    stderr = SafeConsole(stderr=True, highlight=False)
    stderr.print(f"[bold red]error:[/] {escape(in_shell(error.message))}")
    if error.fix:
        stderr.print(f"  [bold]fix:[/] {escape(in_shell(error.fix))}", soft_wrap=True if "\n" in error.fix else None)


def in_shell(text: str, flags: Collection[str] = ()) -> str:
    """A message with its options as flags, quoted for a shell.

    `flags`: those of a command that sets all other options by --set.

    >>> in_shell("add ‹minus_one=absent› or ‹ignore=my notes›, or raise ‹max_bad›")
    "add --minus-one absent or --ignore 'my notes', or raise --max-bad"
    >>> in_shell("lower ‹lr›, or add ‹clip=1›", ["--lr"])
    'lower --lr, or add --set clip=1'
    """

    def words(name: str, value: str | None) -> str:
        flag = "--value" if name == "values" else "--" + name.replace("_", "-")
        if flags and flag not in flags:
            return f"--set {name}" if value is None else f"--set {shlex.quote(f'{name}={value}')}"
        return flag if value is None else f"{flag} {shlex.quote(value)}"

    return write_options(text, words)


def message(text: str) -> None:
    """Print a line of the library, with its options as flags."""
    console.print(in_shell(text), markup=False)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print warnings on one line each, without their place in the code."""
    with warnings.catch_warnings():
        show_elsewhere = warnings.showwarning

        def show_in_a_line(warning: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if category is UserWarning:
                message(f"Warning: {warning}")
            else:
                show_elsewhere(warning, category, *where, **more)

        warnings.showwarning = show_in_a_line  # type: ignore[assignment]
        yield


def audit(audit: Audit, table: Table) -> None:
    """Print how the values of a label file were read."""
    images, classes = table.shape
    names = ", ".join(escape(name) for name in audit.files)
    shape = f"{counted(images, 'image')}, {counted(classes, 'class', 'classes')}"
    paragraph(f"Read [bold]{names}[/] as {audit.format}: {shape}")
    rows = RichTable(box=None, padding=(0, 2, 0, 2), show_header=False)
    rows.add_column(justify="right")
    rows.add_column()
    rows.add_column()
    rows.add_column(justify="right")
    for raw, meaning, entries in audit.value_counts:
        rows.add_row(escape(repr(raw)), "→", Text(meaning, SHADES.get(meaning, "")), group_digits(entries))
    console.print(rows)
    for note in audit.notes:
        paragraph(f"  note: {escape(in_shell(note))}")
    counts(table)


def counts(table: Table) -> None:
    """Print the number of present, absent and unknown labels of a table."""
    total = len(table.images) * len(table.classes)
    present = int((table.value > 0).sum())
    absent = table.known - present
    line = Text("  ")
    line.append(f"present {group_digits(present)}", PRESENT)
    line.append(" · ").append(f"absent {group_digits(absent)}", ABSENT)
    line.append(" · ").append(f"unknown {group_digits(total - table.known)}", UNKNOWN)
    if table.uncertain is not None:
        line.append(f" (uncertain {group_digits(table.uncertain.nnz)})", UNKNOWN)
    line.append(f" · known {percent(table.known, total)}")
    paragraph(line)


def bar(present: int, absent: int, unknown: int, width: int = 32) -> Text:
    """Three counts as one bar."""
    sums = (0, present, present + absent, present + absent + unknown)
    edges = [round(width * part / max(sums[-1], 1)) for part in sums]
    line = Text()
    for first, end, glyph, shade in zip(edges, edges[1:], "█▓░", (PRESENT, ABSENT, UNKNOWN), strict=False):
        line.append(glyph * (end - first), shade)
    return line


def classes(stats: Stats, *, most: int) -> None:
    """Print bars per class."""
    some_uncertain = ("uncertain",) if stats.uncertain.any() else ()
    legend = f"[{PRESENT}]█ present [/][{ABSENT}]▓ absent [/][{UNKNOWN}]░ unknown[/]"
    rows = plain_table("class", legend, numbers=("present", "absent", "unknown", *some_uncertain), left=1, right=1)
    order = (-stats.positives).argsort(kind="stable")
    for c in order[:most].tolist():
        counts = [int(part[c]) for part in (stats.positives, stats.negatives, stats.unknown)]
        uncertain = [int(stats.uncertain[c])] if some_uncertain else []
        rows.add_row(Text(stats.class_names[c]), bar(*counts), *map(group_digits, [*counts, *uncertain]))
    console.print(rows)
    rest(stats.classes, most)


def rest(classes: int, shown: int) -> None:
    """Print how many classes a table leaves out."""
    if classes > shown:
        rest = counted(classes - shown, "more class", "more classes")
        console.print(f"  … and {rest}")


def advice(advice: Advice, *, all_methods: bool) -> None:
    """Print the methods that suit these labels, or the best one, with reasons and cautions."""
    console.print(f"\n[bold]{escape(advice.regime)}[/]")
    for caution in advice.cautions:
        paragraph(f"• {escape(caution.message)}")
    if advice.methods and not all_methods:
        choice(advice.measured)
    elif advice.methods:
        console.print("\n[bold]suitable methods, best first[/]")
        names_and_texts(advice.methods)


def choice(methods: Sequence[str]) -> None:
    """Print the methods that `auto` measures."""
    listed = f"{', '.join(methods[:-1])} and {methods[-1]}"
    paragraph(
        f"Methods: [bold]{escape(listed)}[/] are measured on the known labels, and their average is taken unless "
        "another choice is clearly better."
    )


def names_and_texts(texts: Iterable[tuple[str, str]]) -> None:
    """Print a table of names, each with a text."""
    rows = RichTable(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, text in texts:
        rows.add_row(f"  [bold]{escape(name)}[/]", escape(text))
    console.print(rows)


def evaluation(evaluation: Evaluation, *, of_training: bool = False) -> None:
    """Print the metrics over all classes and the weakest classes.

    `of_training`: in place of the whole protocol, print what it was measured on.
    """
    value, classes = evaluation.overall, evaluation.per_class
    first, *others = (escape(f"{shown.title} {shown.with_interval}") for shown in evaluation.lines())
    paragraph("   ".join([f"\n[bold]{first}[/]", *others]))
    left_out = [row["class"] for row in classes if math.isnan(row["recall"])]
    if of_training:
        present, absent = (sum(row[key] for row in classes) for key in ("present", "absent"))
        how = "estimated by" if "asked_classes" in value else "measured on"
        covered = int(value.get("asked_classes", len(classes) - len(left_out)))
        paragraph(
            f"[bright_black]{how} {counted(present + absent, 'known label')} of "
            f"{counted(int(value['images']), 'image')}, {group_digits(present)} of them present, scored by models that "
            f"had not seen them; {covered} of {counted(len(classes), 'class', 'classes')} covered[/]"
        )
    else:
        paragraph(f"{escape(evaluation.images)}")
        paragraph(f"[bright_black]{escape(evaluation.protocol)}[/]")
    numbers = ("AP", "95 % interval", "known +", "known −", "precision", "recall")
    rows = plain_table("weakest classes", numbers=numbers)
    for row in sorted((row for row in classes if not math.isnan(row["AP"])), key=lambda row: float(row["AP"]))[:5]:
        interval = f"{points(row['AP_low'])} – {points(row['AP_high'])}"
        counts = (str(row["present"]), str(row["absent"]))
        shares = (decimal(row["precision"], 2), decimal(row["recall"], 2))
        rows.add_row(escape(row["class"]), points(row["AP"]), interval, *counts, *shares)
    if rows.row_count:
        console.print(rows)
    if "estimated_precision" in value:
        missed = sorted((row["recall"], row["class"]) for row in classes if row["recall"] < 0.5)
        shown = first_names([f"{name} {points(recall)}" for recall, name in missed])
        what = f"rarely found ({counted(len(missed), 'class', 'classes')}), recall" if missed else ""
    else:
        those = counted(len(left_out), "class", "classes")
        why = "with too few known positives, or no known negative, here"
        what, shown = f"left out of mAP and macro F1: {those} {why}" if left_out else "", first_names(left_out)
    if what:
        paragraph(f"{what}: {escape(shown)}")


def next_command(*words: object, title: str = "Next", why: str = "") -> None:
    """Print the next useful command of halflabel, on one line to copy."""
    reason = f"   [bright_black]{escape(why)}[/]" if why else ""
    console.print(f"{title}:  {escape(join_command(*words))}{reason}")


def join_command(*words: object) -> str:
    """Return the words of a command as a line for a shell; paths in the current folder are short."""

    def shorten(word: object) -> str:
        if isinstance(word, str | Path) and (url := remote_url(word)) is not None:
            return url
        with suppress(OSError, ValueError):
            return str(word.relative_to(Path.cwd())) if isinstance(word, Path) else str(word)
        return str(word)

    return shlex.join(["halflabel", *map(shorten, words)])


def first_steps() -> None:
    """Print the first commands, for `halflabel` alone."""
    console.print("[bold]halflabel[/]: image classifiers from labels that are only partly known\n")
    for words, what in (
        ("demo", "all steps on photos of birds"),
        ("inspect LABELS.csv", "what your label file says"),
        ("train LABELS.csv PHOTOS --out runs/first", "a model from it"),
        ("report runs/first --images PHOTOS", "what the model knows, on one page"),
        ("fill runs/first PHOTOS --out filled.csv", "the missing labels that it is sure of"),
        ("review runs/first PHOTOS", "answer the questions that help it most"),
    ):
        console.print(f"  halflabel {words:42}[bright_black]{what}[/]")
    console.print("\nhalflabel --help lists all commands; halflabel COMMAND --help explains one.")
