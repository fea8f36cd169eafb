"""Check the paths that readers are given, with clear errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.system.files import WRITING_MARK


def check_exists(path: Path) -> None:
    """Raise LabelError unless `path` is a file or a folder."""
    try:
        exists = path.exists()
    except OSError:  # such as a name that is too long
        exists = False
    if not exists:
        raise LabelError("no such file or folder", "check the path", path)
    if (path / WRITING_MARK).exists():
        fix = "write it again, such as with halflabel convert --force"
        raise LabelError("the folder is a mixture: writing it was interrupted", fix, path)
    if not (path.is_file() or path.is_dir()):  # reading a pipe would wait forever
        raise LabelError("this is a pipe or a device", "name a file or a folder", path)


def choose_split(splits: Sequence[str], stated: str | None, path: Path) -> str:
    """The stated split, or the only one; LabelError for a split that is missing, or not stated among several."""
    names = ", ".join(splits)
    if stated is None and len(splits) > 1:
        fix = "add " + " or ".join(f"‹split={name}›" for name in splits[:8])
        raise LabelError(f"there are several splits: {names}", fix, path)
    if stated not in (None, *splits):
        raise LabelError(f"there is no split {stated!r}", f"use ‹split› with one of: {names}", path)
    return stated or splits[0]


def existing_path(path: str | Path, *, folder: bool = False) -> Path:
    """The path of an existing, non-empty file, or of an existing folder; LabelError for anything else."""
    path = Path(path)
    check_exists(path)
    if path.is_dir() != folder:
        kind, expected = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise LabelError(f"this is {kind}, but {expected} is needed", f"name {expected}, or state ‹format›", path)
    if not folder and path.stat().st_size == 0:
        raise LabelError("the file is empty", "export the labels again, with a header line", path)
    return path
