"""`halflabel cache`: list and remove feature caches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console, show_next
from halflabel.features import vector_store
from halflabel.system.format import counted


@app.command()
def cache(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with the runs, one run, or the cache itself.")
    ] = Path("runs"),
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            help="older: all but the last used cache of the same images; all; or one cache by a part of its name.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """List or remove cached features, with their origin, size and time of last use.

    The features of a frozen backbone are cached in the folder "cache" beside the runs. Other weights, another view or
    changed photos get a new cache; old caches stay until you remove them. A removed cache is computed again when a
    command needs it. Folders with other files in them, and caches that a job is building, are never removed.

    Example: halflabel cache runs

    Example: halflabel cache runs --remove older
    """
    caches = vector_store.find_stores(folder)
    selected = caches if remove is None else vector_store.select_stores(caches, remove)
    if not selected:
        console.print(f"No {'older ' * (remove == 'older')}caches in {escape(str(folder))}")
        return
    for info in selected:
        _print_cache(info)
    total = f"{counted(len(selected), 'cache')}, {_format_bytes(sum(info.disk_bytes for info in selected))}"
    if remove is None:
        older = len(vector_store.select_stores(caches, "older"))
        console.print(f"\n{total}" + (f"; {older} older than another of the same images" if older else ""))
        which = "older" if older else "all"
        show_next("cache", folder, "--remove", which, why="frees disk space; computed again when needed")
        return
    if not yes and not typer.confirm(f"Remove {total}?"):
        console.print("Nothing was removed")
        return
    for info in selected:
        info.remove()
    console.print(f"Removed {total}")
    if len(selected) < len(caches):
        show_next("cache", folder, why="what is left")


def _print_cache(info: vector_store.VectorStore) -> None:
    state = "being built" if info.is_being_built() else "interrupted: the next job continues it"
    is_complete = info.noted_rows == info.rows
    console.print(f"[bold]{escape(info.folder.name)}[/]" + ("" if is_complete else f"  [yellow]{state}[/]"))
    parts = [
        counted(info.rows, "image"),
        _format_bytes(info.disk_bytes),
        f"last used {datetime.fromtimestamp(info.last_used):%Y-%m-%d %H:%M}",
        f"{info.about.get('backbone')}, weights {str(info.key.get('weights'))[:8]}",
        f"{info.about.get('size')} px, {info.about.get('kind')}",
    ]
    strong_views = sum(path.is_dir() for path in info.folder.iterdir())
    parts += [counted(strong_views, "strong view")] * bool(strong_views)
    for line in (parts[:3], parts[3:]):
        console.print("    " + escape(" · ".join(line)))


def _format_bytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
