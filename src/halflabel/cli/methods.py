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
) -> None:
    """List the methods, or show the page of one: what it does, its formula and its options.

    Example: halflabel methods em
    """
    from halflabel.methods import REGIMES

    if name is not None:
        _show_method(name)
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
