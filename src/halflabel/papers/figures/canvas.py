"""What all pictures share: colours, names as they are written, and files that are whole or not there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.system.files import replacing

__all__ = ["BLUE", "GREY", "ORANGE", "literal", "save_figure"]

BLUE, ORANGE, GREY = "#2b6cb0", "#d97706", "#9ca3af"


def literal(name: str) -> str:
    """The name of a class, a method or a file as matplotlib is to write it: between two dollars it would see a formula.

    >>> print(literal("a$^$b"))
    a\\$^\\$b
    """
    return name.replace("$", r"\$")


def save_figure(figure: Any, path: Path, *, caption: str = "", kind: str = "png", dpi: int = 130) -> None:
    """Write a figure, whole or not at all, without touching matplotlib's global state; a caption stands below it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    if kind not in canvas.get_supported_filetypes():
        raise UserError(f"{path}: no picture can be written as {path.suffix!r}", "use .png, .svg or .pdf")
    more: dict[str, Any] = {}
    if caption:
        figure.text(0.01, -0.01, literal(caption), va="top", fontsize="small", color="#4b5563")
        more = {"bbox_inches": "tight", "pad_inches": 0.12}
    with replacing(path) as temporary, warnings.catch_warnings():
        # Names may be in letters that the font lacks: boxes stand for them, and nobody can do anything about it.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(temporary, format=kind, dpi=dpi, **more)
