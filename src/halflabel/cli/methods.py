"""The command `methods`."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.options import command, option
from halflabel.cli.show import console
from halflabel.errors import UserError
from halflabel.fitting import auto
from halflabel.methods import base
from halflabel.testing import method_check

# What the labels of an image must hold, and the title of the methods that need it.
_GROUPS = {
    "any": "learn from any labels, also if only present ones are known",
    "absent": "need labels that are known to be absent, beside present ones",
    "single": "need exactly one present class per image",
}


@command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method whose page to show; auto: its rules.")] = None,
    check: bool = option(False, "Check what training, resuming, processes and export need: a minute.", "--check"),
) -> None:
    """List the methods by what they need, recommended ones first; or show the page of one: formula and options.

    Example: halflabel methods

    Example: halflabel methods em
    """
    if name is None:
        if check:
            raise UserError("--check needs a method", "name it: halflabel methods em --check")
        _show_auto()
        recipes = base.recipes().values()
        for kind, title in _GROUPS.items():
            _show_group(title, [(recipe.name, recipe.summary) for recipe in recipes if _needs(recipe) == kind])
        show.next_command("methods", "NAME", why="its formula, paper and options")
    elif check:
        _show_checks(name)
    elif name == "auto":
        _show_auto()
    else:
        _show_method(name)


def _needs(recipe: base.Recipe) -> str:
    if "partial" not in recipe.serves:
        return "single"
    return "any" if "positives-only" in recipe.serves else "absent"


def _show_auto() -> None:
    """Print the method of each rule of `--method auto`, with the labels it is for and its options."""
    rows = []
    for rule in auto.RULES:
        choice, conditions = rule.choices[0], [f"for {' and '.join(rule.regimes)} labels", *rule.conditions()]
        options = "".join(f" --set {name}={value}" for name, value in choice.options.items())
        rows.append((choice.method, ", ".join(conditions) + (f";{options}" if options else "")))
    _show_group("recommended; train measures those of the first rule that the labels meet", rows)


def _show_group(title: str, group: list[tuple[str, str]]) -> None:
    console.print(f"[bold]{title}[/]")
    show.names_and_texts(group)
    console.print()


def _show_checks(name: str) -> None:
    broken = count = 0
    for result in method_check.check_method(base.recipe(name)):
        mark = {True: "[green]holds   [/]", False: "[red]broken  [/]", None: "[dim]left out[/]"}[result.holds]
        console.print(f"{mark}  [bold]{result.check:<16}[/] [dim]{result.seconds:5.1f} s[/]  {escape(result.detail)}")
        if result.holds is False:
            console.print(f"          [bold]fix:[/] {escape(result.fix)}")
        broken, count = broken + (result.holds is False), count + (result.holds is not None)
    console.print(f"\n{count - broken} of {count} checks hold")
    if broken:
        raise typer.Exit(1)
    show.next_command("train", "LABELS", "PHOTOS", "--method", name)


def _show_method(name: str) -> None:
    recipe = base.recipe(name)
    console.print(f"[bold]{recipe.name}[/]  ({escape(recipe.paper)})\n")
    # A paragraph becomes one line, which the terminal wraps; indented lines are formulas.
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", recipe.page).splitlines():
        console.print(escape(line), soft_wrap=line.startswith(" "))  # formulas keep their line breaks
    console.print(f"\n[bold]learns from[/] {', '.join(recipe.serves)} labels")
    console.print(f"[bold]defaults[/] lr={recipe.lr:g} weight_decay={recipe.weight_decay:g}")
    if recipe.no_onnx:
        show.paragraph(f"[bold]does not support[/] export to ONNX: {escape(recipe.no_onnx)}")
    if recipe.options:
        console.print("[bold]options[/], changed by --set NAME=VALUE")
    for key, parameter in recipe.options.items():
        console.print(f"  {key}={escape(str(parameter.default))}")
    show.next_command("train", "LABELS", "PHOTOS", "--method", recipe.name)
