"""`halflabel cache`: list and remove feature caches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.format import counted

if TYPE_CHECKING:
    from halflabel.models.feature_cache_admin import CacheInfo

__all__ = ["cache"]


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
    from halflabel.models.feature_cache_admin import find_caches, remove_cache, select_caches

    caches = find_caches(folder)
    if remove is None:
        if yes:
            raise UserError("--yes has no effect without --remove", "add --remove older, or leave --yes out")
        _show(folder, caches)
        return
    selected = select_caches(caches, remove)
    if not selected:
        console.print(f"Nothing to remove: no {'older ' * (remove == 'older')}cache in {escape(str(folder))}")
        return
    for info in selected:
        _print_cache(info)
    total = _format_bytes(sum(info.bytes for info in selected))
    if not yes:
        try:
            is_confirmed = typer.confirm(f"Remove {_count_caches(len(selected))}, {total}?")
        except typer.Abort:
            raise UserError("the removal was not confirmed", "answer y, or add --yes") from None
        if not is_confirmed:
            console.print("Nothing was removed")
            return
    errors: list[UserError] = []
    for info in selected:
        try:
            remove_cache(info)
        except UserError as error:
            errors.append(error)
    removed = len(selected) - len(errors)
    if removed or not errors:
        console.print(f"Removed {_count_caches(removed)}" + ("" if errors else f", {total}"))
    if errors:
        others = f" ({len(errors) - 1} more could not be removed)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0].message}{others}", errors[0].fix)


def _show(folder: Path, caches: list[CacheInfo]) -> None:
    if not caches:
        console.print(f"No cached features in {escape(str(folder))}")
        return
    for info in caches:
        _print_cache(info)
    console.print(f"\n{_count_caches(len(caches))}, {_format_bytes(sum(info.bytes for info in caches))}")
    if older := [info for info in caches if not info.is_latest]:
        console.print(
            f"{_count_caches(len(older))} of these, {_format_bytes(sum(info.bytes for info in older))}, older than "
            "another of the same images:  --remove older",
            soft_wrap=True,
        )


def _print_cache(info: CacheInfo) -> None:
    state = [] if info.is_latest else ["older"]
    if info.is_being_built():
        state.append("being built")
    elif not info.is_complete:
        state.append("interrupted: the next job continues it")
    if info.other_files:
        state.append("holds other files too, so it is never removed")
    console.print(f"[bold]{escape(info.name)}[/]" + (f"  [yellow]{escape('; '.join(state))}[/]" if state else ""))
    parts = [
        "— images" if info.images is None else counted(info.images, "image"),
        _format_bytes(info.bytes),
        f"last used {datetime.fromtimestamp(info.last_used):%Y-%m-%d %H:%M}",
        f"{info.backbone}, weights {info.made_of.get('weights', '?')[:8]}",
        f"{info.size} px{_resize_mode(info)}, {info.kind}",
    ]
    parts += [counted(info.strong_views, "strong view")] * bool(info.strong_views)
    console.print("    " + escape(" · ".join(parts)), soft_wrap=True)


def _resize_mode(info: CacheInfo) -> str:
    """The resize mode (squash or crop), if the note of the cache has it."""
    view = info.made_of.get("view", "")
    return f" {view.partition('resize=')[2].partition(',')[0]}" if "resize=" in view else ""


def _count_caches(count: int) -> str:
    return f"{count} cache{'s' * (count != 1)}"


def _format_bytes(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
