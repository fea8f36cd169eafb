"""The commands `rules suggest` and `rules check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from halflabel.cli import app, show
from halflabel.cli.options import (
    Force,
    LabelFile,
    LabelReader,
    argument,
    check_free,
    command,
    option,
    option_words,
)
from halflabel.cli.show import console, plain_table
from halflabel.labels import rules as label_rules
from halflabel.labels.formats._csv import csv_line
from halflabel.system.files import atomic_write
from halflabel.system.format import counted, group_digits

_MOST_COUNTED = 500  # rules that are counted beside those shown

rules_app = typer.Typer(name="rules", help="Rules between labels, such as: a dog is an animal; day is not night.")
app.add_typer(rules_app)


@command("suggest", among=rules_app)
def suggest_rules(
    labels: LabelFile,
    read: LabelReader,
    out: Annotated[Path | None, option("Also write the rules to this file, to be edited.")] = None,
    top: Annotated[int, option("Number of rules to show and to write, the strongest first.", min=1)] = 10,
    force: Force = False,
) -> None:
    """Suggest rules that the known labels support; no rule is applied unless a rules file lists it.

    Example: halflabel rules suggest labels.csv --out rules.csv
    """
    check_free(out, force)
    suggestions = label_rules.suggest_rules(read(labels).table(), top=max(top, _MOST_COUNTED))
    strongest, rest = suggestions[:top], suggestions[top:]
    if not strongest:
        console.print(
            "The known labels support no rule. That needs images with several known labels, present and absent."
        )
        return
    rows = plain_table("class", "rule", "class", numbers=("holds", "of", "at least", "by chance"))
    for rule in strongest:
        numbers = map(group_digits, (rule.holds, rule.seen))
        shares = (f"{100 * share:.1f} %" for share in (rule.bound, rule.expected))
        rows.add_row(Text(rule.first), rule.kind, Text(rule.second), *numbers, *shares)
    console.print(rows)
    if rest:
        exclusions = sum(rule.kind == "excludes" for rule in rest)
        number = f"{len(rest)}{' or more' * (len(suggestions) == _MOST_COUNTED)} weaker ones"
        console.print(f"  … and {number}, {exclusions} of them exclusions (--top {len(suggestions)})")
    if out is None:
        words = option_words({"top": top, **read.given, "out": "rules.csv"})
        show.next_command("rules", "suggest", labels, *words, why="a file to edit")
        return
    with atomic_write(out) as temporary:
        lines = (csv_line((rule.first, rule.kind, rule.second)) for rule in strongest)
        temporary.write_text("".join(lines), encoding="utf-8")
    show.written(out, ". Remove rules that do not always hold.")
    show.next_command("fill", "RUN", "PHOTOS", "--rules", out)


@command("check", among=rules_app)
def check_rules(
    rules: Annotated[Path, argument("RULES", "CSV class,rule,class or a hierarchy (.json).")],
    labels: LabelFile,
    read: LabelReader,
) -> None:
    """Check how often the known labels contradict the rules.

    Example: halflabel rules check rules.csv labels.csv
    """
    table = read(labels).table()
    checked = label_rules.read_rules(rules, table.classes)
    implied = counted(checked.implied.nnz - len(table.classes), "implication")
    excluded = counted(checked.excluded.nnz // 2, "exclusion")
    console.print(f"{counted(checked.count, 'rule means', 'rules mean')} {implied} and {excluded}")
    if checked.ignored:
        classes = counted(checked.ignored, "class of the hierarchy is", "classes of the hierarchy are")
        console.print(f"{classes} not among the labels")
    count, examples = label_rules.find_contradictions(checked, table)
    shown = f": {'; '.join(examples)}" if examples else ""
    console.print(f"{counted(count, 'entry', 'entries')} where known labels break them{escape(shown)}")
    show.next_command("fill", "RUN", "PHOTOS", "--rules", rules)
