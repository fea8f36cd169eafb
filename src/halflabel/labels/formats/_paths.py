"""Check the paths that readers are given, with clear errors."""

from __future__ import annotations

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


def existing_path(path: str | Path, *, folder: bool = False) -> Path:
    """The path of an existing, non-empty file, or of an existing folder; LabelError for anything else."""
    path = Path(path)
    check_exists(path)
    if path.is_dir() != folder:
        kind, expected = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise LabelError(f"this is {kind}, but {expected} is needed", f"name {expected}, or state --format", path)
    if not folder and path.stat().st_size == 0:
        raise LabelError("the file is empty", "export the labels again, with a header line", path)
    return path
