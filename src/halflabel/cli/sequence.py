"""Which command follows which, in the terminal and on the review page, and the options of the last `fill`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from halflabel.cli.options import option_words
from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.system.files import read_json


def words_after_review(
    run: Path, images: Path, *, is_control: bool = False, place: str | Path | None = None, all_photos: bool = False
) -> list[Any]:
    """Return the command that uses the answers; those to control questions show the precision of a fill.

    Answers in a `place` of their own, a file or the URL of a database, are exported first. `all_photos`: the questions
    are also about photos that the labels do not list.
    """
    if place is not None:
        where = ("--answers", place) if isinstance(place, Path) else ("--store", "URL")  # which may hold a password
        return ["review", run, *where, "--export", "answers.csv"]
    return fill_words(run, images, all_photos) if is_control else ["train", "--continue", run]


def fill_words(run: Path, images: Path, all_photos: bool = False) -> list[Any]:
    """Return the command that fills as the last time, and overwrites nothing."""
    options = remembered_fill(run_folder.RunFolder(run))
    options["out"] = free_name(Path(options.get("out", "filled.csv")))
    return ["fill", run, images, *option_words(options | ({"all_photos": True} if all_photos else {}))]


def remember_fill(run: run_folder.RunFolder, options: dict[str, Any]) -> None:
    """Store the options of a `fill` for the next one, also of a run that continues this one; if it can be written."""
    with suppress(OSError, UserError):
        run.write_text(run.fill_options.name, json.dumps(options, default=str, indent=1) + "\n")


def remembered_fill(run: run_folder.RunFolder) -> dict[str, Any]:
    """Return the options of the last `fill`; empty if there was none, or if they cannot be read."""
    with suppress(UserError, TypeError, ValueError):
        options = dict(read_json(run.fill_options, "remove it"))
        if isinstance(options.get("precision", 0.95), float) and isinstance(options.get("out", ""), str):
            return options
    return {}


def free_name(path: Path) -> Path:
    """Return the path, or the first of NAME-2, NAME-3, … that does not exist."""
    number, free = 2, path
    while free.exists():
        number, free = number + 1, path.with_stem(f"{path.stem}-{number}")
    return free
