"""The command `methods`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console, paragraphs, show_names_and_texts, show_next, show_paragraph
from halflabel.errors import UserError

if TYPE_CHECKING:
    from halflabel.methods.base import Recipe


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method whose page to show.")] = None,
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
    from halflabel.methods import REGIMES

    if check and name is None:
        raise UserError("--check needs a method", "name it: halflabel methods em --check")
    if name is not None:
        _check_method(name) if check else _show_method(name)
        return
    if regime is not None and regime not in REGIMES:
        raise UserError(f"no label regime is called {regime!r}", f"use one of: {', '.join(REGIMES)}")
    from halflabel.methods.base import recipes

    suitable = [recipe for recipe in recipes().values() if regime is None or regime in recipe.serves]
    _print_group("recommended: the choice of --method auto, the first that fits the labels", _first_choices(regime))
    for title, needs in _GROUPS.items():
        _print_group(title, {recipe.name: recipe.summary for recipe in suitable if _needs(recipe) == needs})
    show_next("methods", "NAME", why="its formula, paper and options")


def _check_method(name: str) -> None:
    from halflabel.methods.base import recipe
    from halflabel.runs.method_check import check_method

    broken = count = 0
    for result in check_method(recipe(name)):
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


def _needs(recipe: Recipe) -> str:
    if "partial" not in recipe.serves:
        return "single"
    return "any" if "positives-only" in recipe.serves else "absent"


def _first_choices(regime: str | None) -> dict[str, str]:
    """Return the first choice of each rule of `--method auto`, with the labels it is for; the common rules only."""
    from halflabel.methods.auto import RULES

    first: dict[str, str] = {}
    for rule in RULES:
        served = [name for name in rule.regimes if regime in (None, name)]
        if served and not rule.unlabelled[0] and math.isinf(rule.negatives[1]):
            first[rule.choices[0].method] = ", ".join([f"for {' and '.join(served)} labels", *rule.conditions()])
    return first


def _print_group(title: str, group: dict[str, str]) -> None:
    if not group:
        return
    console.print(f"[bold]{title}[/]")
    show_names_and_texts(group)
    console.print()


def _show_method(name: str) -> None:
    from halflabel.methods.base import LIMITS
    from halflabel.methods.base import recipe as find_recipe

    recipe = find_recipe(name)
    console.print(f"[bold]{recipe.name}[/]  ({escape(recipe.paper)})\n")
    for line in paragraphs(recipe.page):
        console.print(escape(line), soft_wrap=line.startswith(" "))  # formulas keep their line breaks
    console.print(f"\n[bold]learns from[/] {', '.join(recipe.serves)} labels")
    console.print(f"[bold]defaults[/] --lr {recipe.lr:g} --weight-decay {recipe.weight_decay:g}")
    for feature, reason in recipe.cannot.items():
        show_paragraph(f"[bold]does not support[/] {LIMITS[feature]}: {escape(reason)}")
    for option, parameter in recipe.options.items():
        default = '""' if parameter.default == "" else str(parameter.default)
        console.print(f"  --{option.replace('_', '-')} {escape(default)}")
    show_next("train", "LABELS", "PHOTOS", "--method", recipe.name)
