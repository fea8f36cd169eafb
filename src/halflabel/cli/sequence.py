"""The sequence of commands: which one follows which, in the terminal, on the review page and in the docs.

inspect → train → report → next → review → train --continue → fill. A list of control questions goes back to `fill`,
which follows the report where only positives are known.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def after_train(run: Path, images: Path, *, is_continued: bool = False, all_photos: bool = False) -> str:
    """Return the command after a training: look at a first run, use one that learned from answers.

    `all_photos`: the answers are also about photos that the labels did not list.
    """
    if is_continued:
        return _join("fill", run, images, *(["--all-photos"] if all_photos else []))
    return _join("report", run, "--images", images)


def after_report(run: Path, images: Path, *, only_positives: bool = False) -> str:
    """Return the command after a report: choose the questions that help the model most.

    With positives only, `fill` asks the questions that it needs first.
    """
    if not only_positives:
        return _join("next", run, images)
    return _join("fill", run, images, *([] if Path("filled.csv").exists() else ["--out", "filled.csv"]))


def after_next(run: Path, images: Path, questions: Path) -> str:
    """Return the command that asks a list of questions."""
    return _join("review", run, images, "--questions", questions)


def after_review(
    run: Path, images: Path, *, is_control: bool = False, place: str | Path | None = None, all_photos: bool = False
) -> str:
    """Return the command that uses the answers; those to control questions show the precision of a fill.

    Answers in a `place` of their own, a file or the URL of a database, are exported first. `all_photos`: the questions
    are also about photos that the labels do not list.
    """
    if place is not None:
        where = ("--answers", place) if isinstance(place, Path) else ("--store", "URL")  # which may hold a password
        return _join("review", run, *where, "--export", "answers.csv")
    if not is_control:
        return _join("train", "--continue", run)
    return after_train(run, images, is_continued=True, all_photos=all_photos)


def after_fill_questions(
    run: Path, images: Path, questions: Path, precision: float, options: Sequence[str | Path]
) -> tuple[str, str]:
    """Return the commands after `fill` wrote control questions: answer them, then fill with the same options."""
    again = _join("fill", run, images, "--precision", f"{precision:g}", *options)
    return after_next(run, images, questions), again


def _join(*words: str | Path) -> str:
    return shlex.join(["halflabel", *map(_short, words)])


def _short(word: str | Path) -> str:
    """Return a path in the current folder without that folder: a run stores the path of its images in full."""
    with suppress(OSError, ValueError):
        return str(word.relative_to(Path.cwd())) if isinstance(word, Path) else word
    return str(word)
