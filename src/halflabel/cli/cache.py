"""The command that lists feature caches, and removes them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.format import counted, group_digits

if TYPE_CHECKING:
    from halflabel.models.feature_cache_admin import Cache

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
            help="older: all but the one used last of the same images; all; or one by a part of its name.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """List the cached features: what made them, how large they are, when they were last used; or remove some.

    Features of a frozen backbone are kept in the folder "cache" beside the runs. Other weights, another view or other
    photos get a cache of their own, and none is removed by itself. One that is removed is computed again when a
    command needs it. Only what is surely a cache is removed, and none that a job is building.

    Example: halflabel cache runs

    Example: halflabel cache runs --remove older
    """
    from halflabel.models.feature_cache_admin import chosen, find_caches
    from halflabel.models.feature_cache_admin import remove as take_away

    caches = find_caches(folder)
    if remove is None:
        if yes:
            raise UserError("--yes means nothing without --remove", "add --remove older, or leave --yes out")
        _show(folder, caches)
        return
    going = chosen(caches, remove)
    if not going:
        console.print(f"Nothing to remove: no {'older ' * (remove == 'older')}cache in {escape(str(folder))}")
        return
    for one in going:
        _line(one)
    total = _size(sum(one.bytes for one in going))
    if not yes:
        try:
            agreed = typer.confirm(f"Remove {_many(len(going))}, {total}?")
        except typer.Abort:
            raise UserError("nobody has said yes", "answer y, or add --yes") from None
        if not agreed:
            console.print("Nothing was removed")
            return
    stay: list[UserError] = []
    for one in going:
        try:
            take_away(one)
        except UserError as error:
            stay.append(error)
    gone = len(going) - len(stay)
    if gone or not stay:
        console.print(f"Removed {_many(gone)}" + ("" if stay else f", {total}"))
    if stay:
        more = f" ({len(stay) - 1} more stay too)" if len(stay) > 1 else ""
        raise UserError(f"{stay[0].message}{more}", stay[0].fix)


def _show(folder: Path, caches: list[Cache]) -> None:
    if not caches:
        console.print(f"No cached features in {escape(str(folder))}")
        return
    for one in caches:
        _line(one)
    console.print(f"\n{_many(len(caches))}, {_size(sum(one.bytes for one in caches))}")
    if older := [one for one in caches if not one.latest]:
        console.print(
            f"{_many(len(older))} of these, {_size(sum(one.bytes for one in older))}, older than another of the same "
            "images:  --remove older",
            soft_wrap=True,
        )


def _line(one: Cache) -> None:
    state = [] if one.latest else ["older"]
    state += ["being built"] if one.is_being_built() else [] if one.whole else ["broken off: it is gone on with"]
    if one.foreign:
        state.append("holds other files too, so it is left alone")
    console.print(f"[bold]{escape(one.name)}[/]" + (f"  [yellow]{escape('; '.join(state))}[/]" if state else ""))
    images = "— images" if one.images is None else counted(one.images, "image")
    parts = [images, _size(one.bytes), f"last used {datetime.fromtimestamp(one.used):%Y-%m-%d %H:%M}"]
    parts += [f"{one.backbone}, weights {one.made_of.get('weights', '?')[:8]}"]
    parts += [f"{one.size} px{_resize(one)}, {one.kind}"]
    parts += [counted(one.strong, "strong view")] * bool(one.strong)
    console.print("    " + escape(" · ".join(parts)), soft_wrap=True)


def _resize(one: Cache) -> str:
    """How images are brought to size, where the note says so."""
    view = one.made_of.get("view", "")
    return f" {view.partition('resize=')[2].partition(',')[0]}" if "resize=" in view else ""


def _many(count: int) -> str:
    return f"{group_digits(count)} cache{'s' * (count != 1)}"


def _size(count: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
