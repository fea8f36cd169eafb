"""The command `methods`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from halflabel.cli import app
from halflabel.cli.terminal import console, paragraphs, show_next
from halflabel.errors import UserError


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
    """List the methods, or show the page of one: what it does, its formula and its options.

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

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("method", "labels", "what it does"):
        table.add_column(title)
    for recipe in recipes().values():
        if regime is None or regime in recipe.serves:
            serves = "any" if set(recipe.serves) == set(REGIMES) else ", ".join(recipe.serves)
            table.add_row(f"[bold]{recipe.name}[/]", serves, escape(recipe.summary))
    console.print(table)
    show_next("halflabel", "methods", "NAME", why="its formula, paper and options")


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
    show_next("halflabel", "train", "LABELS", "PHOTOS", "--method", name)


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
        console.print(f"[bold]does not support[/] {LIMITS[feature]}: {escape(reason)}")
    for option, parameter in recipe.options.items():
        default = '""' if parameter.default == "" else str(parameter.default)
        console.print(f"  --{option.replace('_', '-')} {escape(default)}")
    show_next("halflabel", "train", "LABELS", "PHOTOS", "--method", recipe.name)
