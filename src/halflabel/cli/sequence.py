"""The sequence of commands: which one follows which, in the terminal, on the review page and in the docs.

inspect → train → report → next → review → train --continue → fill. A list of control questions goes back to `fill`,
which follows the report where only positives are known.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.runs import folder as run_folder
from halflabel.system.files import read_json, remote_url

Options = dict[str, list[Any]]  # flags with their values, none for a flag alone


def after_train(
    run: Path, images: Path, *, is_continued: bool = False, all_photos: bool = False, has_labels: bool = True
) -> str:
    """Return the command after a training: look at a first run, use one that learned from answers.

    Where no label is known, a review asks for the first ones.

    `all_photos`: the answers are also about photos that the labels did not list.
    """
    if is_continued:
        return _fill(run, images, all_photos)
    if not has_labels:
        return join_command("review", run, images)
    return join_command("report", run, "--images", images)


def after_report(run: Path, images: Path, *, only_positives: bool = False) -> str:
    """Return the command after a report: choose the questions that help the model most.

    With positives only, `fill` asks the questions that it needs first.
    """
    if not only_positives:
        return join_command("next", run, images)
    return _fill(run, images)


def after_next(run: Path, images: Path, questions: Path) -> str:
    """Return the command that asks a list of questions."""
    return join_command("review", run, images, "--questions", questions)


def after_review(
    run: Path, images: Path, *, is_control: bool = False, place: str | Path | None = None, all_photos: bool = False
) -> str:
    """Return the command that uses the answers; those to control questions show the precision of a fill.

    Answers in a `place` of their own, a file or the URL of a database, are exported first. `all_photos`: the questions
    are also about photos that the labels do not list.
    """
    if place is not None:
        where = ("--answers", place) if isinstance(place, Path) else ("--store", "URL")  # which may hold a password
        return join_command("review", run, *where, "--export", "answers.csv")
    if not is_control:
        return join_command("train", "--continue", run)
    return _fill(run, images, all_photos)


def remember_fill(run: run_folder.RunFolder, options: Options) -> None:
    """Store the options of a `fill` for the next one, also of a run that continues this one; if it can be written."""
    with suppress(OSError, UserError):
        run.write_text(run.fill_options.name, json.dumps(options, default=str, indent=1) + "\n")


def remembered_fill(run: run_folder.RunFolder) -> Options:
    """Return the options of the last `fill`; empty if there was none, or if they cannot be read."""
    with suppress(UserError, AttributeError, TypeError):
        return {str(flag): [*values] for flag, values in read_json(run.fill_options, "remove it").items()}
    return {}


def option_words(options: Options) -> list[Any]:
    """Return options as words of a command.

    >>> option_words({"--out": ["a.csv"], "--all-photos": [], "--value": ["x=unknown", "y=absent"]})
    ['--out', 'a.csv', '--all-photos', '--value', 'x=unknown', '--value', 'y=absent']
    """
    pairs = ((flag, value) for flag, values in options.items() for value in values or [None])
    return [word for pair in pairs for word in pair if word is not None]


def _fill(run: Path, images: Path, all_photos: bool = False) -> str:
    """Return the command that fills as the last time, and overwrites nothing."""
    options = remembered_fill(run_folder.RunFolder(run))
    options["--out"] = [str(free_name(Path(*options.get("--out", ["filled.csv"]))))]
    return join_command("fill", run, images, *option_words(options | ({"--all-photos": []} if all_photos else {})))


def free_name(path: Path) -> Path:
    """Return the path, or the first of NAME-2, NAME-3, … that does not exist."""
    number, free = 2, path
    while free.exists():
        number, free = number + 1, path.with_stem(f"{path.stem}-{number}")
    return free


def join_command(*words: str | Path) -> str:
    """Return the words of a command as a line for a shell."""
    return shlex.join(["halflabel", *map(_short, words)])


def _short(word: str | Path) -> str:
    """Return a path in the current folder without that folder: a run stores the path of its images in full."""
    if (url := remote_url(word)) is not None:
        return url
    with suppress(OSError, ValueError):
        return str(word.relative_to(Path.cwd())) if isinstance(word, Path) else word
    return str(word)
