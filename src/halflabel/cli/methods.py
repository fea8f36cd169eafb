"""The command `methods`."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console, show_names_and_texts, show_next, show_paragraph
from halflabel.errors import UserError
from halflabel.fitting import auto
from halflabel.methods import REGIMES, base
from halflabel.testing import method_check

_AUTO = "recommended; train measures those of the first rule that the labels meet"


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method whose page to show; auto: its rules.")] = None,
    regime: Annotated[
        str | None, typer.Option(help="List only methods for labels of this kind, such as single-positive.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check what training, resuming, several processes and export need of a method: about a minute.",
        ),
    ] = False,
) -> None:
    """List the methods by what they need, recommended ones first; or show the page of one: formula and options.

    Example: halflabel methods --regime positives-only

    Example: halflabel methods em
    """
    if check and name is None:
        raise UserError("--check needs a method", "name it: halflabel methods em --check")
    if regime is not None and regime not in REGIMES:
        raise UserError(f"no label regime is called {regime!r}", f"use one of: {', '.join(REGIMES)}")
    if name == "auto" and not check:
        _print_group(_AUTO, _auto_rules(regime))
        return
    if name is not None:
        _show_checks(name) if check else _show_method(name)
        return
    suitable = [recipe for recipe in base.recipes().values() if regime is None or regime in recipe.serves]
    _print_group(_AUTO, _auto_rules(regime))
    for title, needs in _GROUPS.items():
        _print_group(title, [(recipe.name, recipe.summary) for recipe in suitable if _needs(recipe) == needs])
    show_next("methods", "NAME", why="its formula, paper and options")


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
    show_next("train", "LABELS", "PHOTOS", "--method", name)


# What the labels of an image must hold, and the title of the methods that need it.
_GROUPS = {
    "learn from any labels, also if only present ones are known": "any",
    "need labels that are known to be absent, beside present ones": "absent",
    "need exactly one present class per image": "single",
}


def _needs(recipe: base.Recipe) -> str:
    if "partial" not in recipe.serves:
        return "single"
    return "any" if "positives-only" in recipe.serves else "absent"


def _auto_rules(regime: str | None) -> list[tuple[str, str]]:
    """Return the method of each rule of `--method auto`, with the labels it is for and its options."""
    rows = []
    for rule in auto.RULES:
        served, choice = [name for name in rule.regimes if regime in (None, name)], rule.choices[0]
        options = "".join(f" --set {name}={value}" for name, value in choice.options.items())
        if served:
            conditions = ", ".join([f"for {' and '.join(served)} labels", *rule.conditions()])
            rows.append((choice.method, conditions + (f";{options}" if options else "")))
    return rows


def _print_group(title: str, group: list[tuple[str, str]]) -> None:
    if not group:
        return
    console.print(f"[bold]{title}[/]")
    show_names_and_texts(group)
    console.print()


def _show_method(name: str) -> None:

    recipe = base.recipe(name)
    console.print(f"[bold]{recipe.name}[/]  ({escape(recipe.paper)})\n")
    # A paragraph becomes one line, which the terminal wraps; indented lines are formulas.
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", recipe.page).splitlines():
        console.print(escape(line), soft_wrap=line.startswith(" "))  # formulas keep their line breaks
    console.print(f"\n[bold]learns from[/] {', '.join(recipe.serves)} labels")
    console.print(f"[bold]defaults[/] lr={recipe.lr:g} weight_decay={recipe.weight_decay:g}")
    if recipe.no_onnx:
        show_paragraph(f"[bold]does not support[/] export to ONNX: {escape(recipe.no_onnx)}")
    if recipe.options:
        console.print("[bold]options[/], changed by --set NAME=VALUE")
    for option, parameter in recipe.options.items():
        console.print(f"  {option}={escape(str(parameter.default))}")
    show_next("train", "LABELS", "PHOTOS", "--method", recipe.name)
