"""Output of the commands in the terminal: tables, bars, messages and errors."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
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
    from halflabel.labels.table import Pair, Stats, Table


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


def show_paragraph(text: str | Text) -> None:
    """Print a text that the terminal breaks at words."""
    console.print(text, soft_wrap=False)


def show_written(path: object, content: str = "") -> None:
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


def show_error(error: UserError) -> None:
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


def show_message(text: str) -> None:
    """Print a line of the library, with its options as flags."""
    console.print(in_shell(text), markup=False)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Print warnings on one line each, without their place in the code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_in_a_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if category is UserWarning:
                show_message(f"Warning: {message}")
            else:
                show(message, category, *where, **more)

        warnings.showwarning = show_in_a_line
        yield


def show_audit(audit: Audit, table: Table) -> None:
    """Print how the values of a label file were read."""
    images, classes = table.shape
    names = ", ".join(escape(name) for name in audit.files)
    shape = f"{counted(images, 'image')}, {counted(classes, 'class', 'classes')}"
    show_paragraph(f"Read [bold]{names}[/] as {audit.format}: {shape}")
    rows = RichTable(box=None, padding=(0, 2, 0, 2), show_header=False)
    rows.add_column(justify="right")
    rows.add_column()
    rows.add_column()
    rows.add_column(justify="right")
    for raw, meaning, entries in audit.value_counts:
        rows.add_row(escape(repr(raw)), "→", Text(meaning, SHADES.get(meaning, "")), group_digits(entries))
    console.print(rows)
    for note in audit.notes:
        show_paragraph(f"  note: {escape(in_shell(note))}")
    show_counts(table)


def show_counts(table: Table) -> None:
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
    show_paragraph(line)


def bar(present: int, absent: int, unknown: int, width: int = 32) -> Text:
    """Three counts as one bar; a count above zero gets at least one cell."""
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


def show_classes(stats: Stats, *, most: int) -> None:
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
    show_rest(stats.classes, most)


def show_rest(classes: int, shown: int) -> None:
    """Print how many classes a table leaves out."""
    if classes > shown:
        rest = counted(classes - shown, "more class", "more classes")
        console.print(f"  … and {rest} (--top {classes} shows all)")


def show_names(names: list[tuple[str, str, float]]) -> None:
    """Print per class what its name is most like among the classes of ImageNet, and the AP of the name alone."""
    rows = plain_table("class", "most like", numbers=("AP",), left=1, right=1)
    for name, like, precision in names:
        rows.add_row(Text(name), Text(like), points(precision))
    console.print(rows)


def show_images_and_pairs(stats: Stats, pairs: list[Pair]) -> None:
    """Print labels per image, and classes that occur together."""
    _show_histogram("positives per image", stats.positives_per_image.tolist())
    if stats.negatives.any():
        _show_histogram("known labels per image", stats.known_per_image.tolist())
    if pairs:
        console.print("\n[bold]present together[/]")
        # With few known negatives, a conditional probability would nearly always be 1.
        certain = stats.negatives.sum() >= stats.positives.sum()
        numbers = ("images", "P(B given A)", "lift") if certain else ("images",)
        together = plain_table("A", "B", numbers=numbers, left=1, right=1)
        for pair in pairs:
            estimates = (f"{pair.probability:.2f}", f"{pair.lift:.1f}") if certain else ()
            together.add_row(Text(pair.first), Text(pair.second), group_digits(pair.together), *estimates)
        console.print(together)


def _show_histogram(title: str, counts: list[int], most: int = 12) -> None:
    console.print(f"\n[bold]{title}[/]")
    # Long tails are shown as ranges.
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


def show_advice(advice: Advice, *, all_methods: bool) -> None:
    """Print the methods that suit these labels, or the best one, with reasons and cautions."""
    console.print(f"\n[bold]{escape(advice.regime)}[/]")
    for caution in advice.cautions:
        if caution.kind != "known share":  # the counts of the labels say it already
            show_paragraph(f"• {escape(caution.message)}")
    if advice.methods and not all_methods:
        show_choice(advice.measured)
    elif advice.methods:
        console.print("\n[bold]suitable methods, best first[/]")
        show_names_and_texts(advice.methods)


def show_choice(methods: Sequence[str]) -> None:
    """Print the methods that `auto` measures."""
    listed = f"{', '.join(methods[:-1])} and {methods[-1]}"
    show_paragraph(
        f"Methods: [bold]{escape(listed)}[/] are measured on the known labels, and their average is taken unless "
        "another choice is clearly better."
    )


def show_names_and_texts(texts: Iterable[tuple[str, str]]) -> None:
    """Print a table of names, each with a text."""
    rows = RichTable(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, text in texts:
        rows.add_row(f"  [bold]{escape(name)}[/]", escape(text))
    console.print(rows)


def show_evaluation(evaluation: Evaluation, *, of_training: bool = False) -> None:
    """Print the metrics over all classes and the weakest classes.

    `of_training`: in place of the whole protocol, print what it was measured on.
    """
    value = evaluation.overall
    first, *others = (escape(f"{shown.title} {shown.with_interval}") for shown in evaluation.lines())
    show_paragraph("   ".join([f"\n[bold]{first}[/]", *others]))
    left_out = [row["class"] for row in evaluation.per_class if row["recall"] != row["recall"]]
    if of_training:
        present, absent = (sum(row[key] for row in evaluation.per_class) for key in ("present", "absent"))
        covered = len(evaluation.per_class) - len(left_out)
        how = "measured on"
        if "asked_classes" in value:
            how, covered = "estimated by", int(value["asked_classes"])
        show_paragraph(
            f"[bright_black]{how} {counted(present + absent, 'known label')} of "
            f"{counted(int(value['images']), 'image')}, {group_digits(present)} of them present, scored by models that "
            f"had not seen them; {covered} of {counted(len(evaluation.per_class), 'class', 'classes')} covered[/]"
        )
    else:
        show_paragraph(f"{escape(evaluation.images)}")
        show_paragraph(f"[bright_black]{escape(evaluation.protocol)}[/]")
    weakest = sorted((row for row in evaluation.per_class if row["AP"] == row["AP"]), key=lambda row: float(row["AP"]))
    numbers = ("AP", "95 % interval", "known +", "known −", "precision", "recall")
    rows = plain_table("weakest classes", numbers=numbers)
    for row in weakest[:5]:
        rows.add_row(
            escape(row["class"]),
            points(row["AP"]),
            f"{points(row['AP_low'])} – {points(row['AP_high'])}",
            str(row["present"]),
            str(row["absent"]),
            decimal(row["precision"], 2),
            decimal(row["recall"], 2),
        )
    if weakest:
        console.print(rows)
    if "estimated_precision" in value:
        _show_rarely_found(evaluation)
        return
    if left_out:
        those = counted(len(left_out), "class", "classes")
        why = "with too few known positives, or no known negative, here"
        show_paragraph(f"left out of mAP and macro F1: {those} {why}: {escape(first_names(left_out))}")


def _show_rarely_found(evaluation: Evaluation) -> None:
    """Print the classes of which fewer than half of the known positives are called present, the rarest found first."""
    missed = sorted((row["recall"], row["class"]) for row in evaluation.per_class if row["recall"] < 0.5)
    if missed:
        shown = first_names([f"{name} {points(recall)}" for recall, name in missed])
        show_paragraph(f"rarely found ({counted(len(missed), 'class', 'classes')}), recall: {escape(shown)}")


def show_next(*words: str | Path, why: str = "") -> None:
    """Print the next useful command of halflabel, on one line to copy."""
    show_command(shlex.join(["halflabel", *(remote_url(word) or str(word) for word in words)]), why=why)


def show_command(command: str, title: str = "Next", *, why: str = "") -> None:
    """Print a command on one line to copy."""
    reason = f"   [bright_black]{escape(why)}[/]" if why else ""
    console.print(f"{title}:  {escape(command)}{reason}")


def show_next_steps(folder: Path) -> None:
    """Print the next steps, depending on the files in the folder."""
    console.print("[bold]halflabel[/]: image classifiers from labels that are only partly known\n")
    labels, photos, run = _find_labels(folder), _find_photos(folder), _find_run(folder)
    if run is not None:
        steps = [
            ("report", run, *(() if photos is None else ("--images", photos)), "what the model knows, on one page"),
            ("fill", run, photos or "PHOTOS", "--out", "filled.csv", "the missing labels that it is sure of"),
            ("review", run, photos or "PHOTOS", "answer the questions that help it most"),
        ]
        console.print(f"Found the run {escape(str(run))} here:\n")
    elif labels is not None:
        steps = [
            ("inspect", labels, "what is known"),
            ("train", labels, photos or "PHOTOS", "--out", "runs/first", "a model from it"),
        ]
        console.print(f"Found the labels {escape(str(labels))} here:\n")
    else:
        steps = [
            ("demo", "all steps on photos of birds"),
            ("inspect", "LABELS.csv", "what your label file says"),
            ("train", "LABELS.csv", "PHOTOS", "--out", "runs/first", "a model from it"),
        ]
        console.print("There is no label file here:\n")
    commands = [shlex.join(["halflabel", *map(str, words)]) for *words, _ in steps]
    for command, (*_, what) in zip(commands, steps, strict=True):
        console.print(f"  {escape(command):{max(map(len, commands))}}   [bright_black]{what}[/]")
    console.print("\nhalflabel --help lists all commands; halflabel COMMAND --help explains one.")


# Beginnings of the names of files that are not training labels.
_OTHER_FILES = ("answers", "eval", "filled", "hidden", "metrics", "predict", "questions", "test", "truth", "val")


def _find_labels(folder: Path) -> Path | None:
    """The file that is most likely the training labels, by its ending and name."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".csv", ".parquet", ".json", ".labels")]
    files = [path for path in files if path.is_file() and not path.name.lower().startswith(_OTHER_FILES)]
    named = [path for path in files if any(word in path.stem.lower() for word in ("label", "train", "tags", "annot"))]
    return next(iter(named or files), None)


def _find_photos(folder: Path) -> Path | None:
    """The folder that holds most images among its first 1,000 files, or a pack."""
    endings = (".jpg", ".jpeg", ".png", ".webp")

    def count_images(path: Path) -> int:
        names = [entry.name.lower() for entry in islice(path.iterdir(), 1000)]
        return 1000 if "index.arrow" in names else sum(name.endswith(endings) for name in names)

    folders = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    best = max(folders, key=count_images, default=None)
    return best if best is not None and count_images(best) else None


def _find_run(folder: Path) -> Path | None:
    """The newest finished run in runs/."""
    finished = (folder / "runs").glob("*/best.safetensors") if (folder / "runs").is_dir() else ()
    newest = max(finished, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else newest.parent
