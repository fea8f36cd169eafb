"""What a file of filled labels may be called."""

from __future__ import annotations

from pathlib import Path

from halflabel.errors import UserError

__all__ = ["check_ending"]


def check_ending(path: Path) -> None:
    """Refuse a name whose ending says another kind of file than the two that are written."""
    if path.suffix not in (".csv", ".parquet"):
        raise UserError(f"{path} is no name for filled labels", "end it in .csv or .parquet")
