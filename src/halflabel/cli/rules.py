"""The commands `rules suggest` and `rules check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from halflabel.cli import app
from halflabel.cli.options import (
    Force,
    LabelFile,
    ReadLabels,
    SharedOptions,
    check_free,
    options_of,
    takes_label_options,
)
from halflabel.cli.sequence import option_words
from halflabel.cli.terminal import console, plain_table, show_next, show_written
from halflabel.labels import rules as label_rules
from halflabel.labels.formats._csv import csv_line
from halflabel.system.files import atomic_write
from halflabel.system.format import counted, group_digits

_MOST_COUNTED = 500  # rules that are counted beside those shown

rules_app = typer.Typer(name="rules", help="Rules between labels, such as: a dog is an animal; day is not night.")
app.add_typer(rules_app)


@rules_app.command("suggest", cls=SharedOptions)
@takes_label_options
def suggest_rules(
    labels: LabelFile,
    read: ReadLabels,
    out: Annotated[Path | None, typer.Option(help="Also write the rules to this file, to be edited.")] = None,
    bound: Annotated[
        float, typer.Option(help="Smallest share of cases in which a rule must hold.", min=0.5, max=0.9999)
    ] = 0.95,
    top: Annotated[int, typer.Option(help="Number of rules to show and to write, the strongest first.", min=1)] = 10,
    force: Force = False,
) -> None:
    """Suggest rules that the known labels support; no rule is applied unless a rules file lists it.

    Example: halflabel rules suggest labels.csv --out rules.csv
    """
    check_free(out, force)
    suggestions: list[label_rules.RuleSuggestion] = label_rules.suggest_rules(
        read(labels).table(), bound=bound, top=max(top, _MOST_COUNTED)
    )
    strongest, rest = suggestions[:top], suggestions[top:]
    if not strongest:
        console.print(
            "The known labels support no rule. That needs images with several known labels, present and absent."
        )
        return
    rows = plain_table("class", "rule", "class", numbers=("holds", "of", "at least", "by chance"))
    for rule in strongest:
        shares = (f"{100 * share:.1f} %" for share in (rule.bound, rule.expected))
        rows.add_row(
            Text(rule.first), rule.kind, Text(rule.second), group_digits(rule.holds), group_digits(rule.seen), *shares
        )
    console.print(rows)
    if rest:
        exclusions = sum(rule.kind == "excludes" for rule in rest)
        number = f"{len(rest)}{' or more' * (len(suggestions) == _MOST_COUNTED)} weaker ones"
        console.print(f"  … and {number}, {exclusions} of them exclusions (--top {len(suggestions)})")
    if out is None:
        words = ["--top", str(top), *option_words(options_of(read))]
        show_next("rules", "suggest", labels, *words, "--out", "rules.csv", why="a file to edit")
        return
    with atomic_write(out) as temporary:
        temporary.write_text(
            "".join(csv_line((rule.first, rule.kind, rule.second)) for rule in strongest), encoding="utf-8"
        )
    show_written(out, ". Remove rules that do not always hold.")
    show_next("fill", "RUN", "PHOTOS", "--rules", out)


@rules_app.command("check", cls=SharedOptions)
@takes_label_options
def check_rules(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="CSV class,rule,class or a hierarchy (.json).")],
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="The labels to check.")],
    read: ReadLabels,
) -> None:
    """Check how often the known labels contradict the rules.

    Example: halflabel rules check rules.csv labels.csv
    """
    table = read(labels).table()
    checked = label_rules.read_rules(rules, table.classes)
    implied = checked.implied.nnz - len(table.classes)
    excluded = checked.excluded.nnz // 2
    meaning = f"{counted(implied, 'implication')} and {counted(excluded, 'exclusion')}"
    console.print(f"{counted(checked.count, 'rule means', 'rules mean')} {meaning}")
    if checked.ignored:
        classes = counted(checked.ignored, "class of the hierarchy is", "classes of the hierarchy are")
        console.print(f"{classes} not among the labels")
    count, examples = label_rules.find_contradictions(checked, table)
    console.print(
        f"{counted(count, 'entry', 'entries')} where known labels break them"
        + (f": {escape('; '.join(examples))}" if examples else "")
    )
    show_next("fill", "RUN", "PHOTOS", "--rules", rules)
