"""Colours, text escaping and file writing shared by all matplotlib figures."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from halflabel.system.files import atomic_write

BLUE, ORANGE, GREY = "#2b6cb0", "#d97706", "#9ca3af"


def literal(name: str) -> str:
    """Escape the name of a class, a method or a file: matplotlib reads text between two dollar signs as a formula.

    >>> print(literal("a$^$b"))
    a\\$^\\$b
    """
    return name.replace("$", r"\$")


def save_figure(figure: Any, path: Path, *, caption: str = "") -> None:
    """Write a figure as PNG atomically, with the caption below it, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    options: dict[str, Any] = {}
    if caption:
        figure.text(0.01, -0.01, literal(caption), va="top", fontsize="small", color="#4b5563")
        options = {"bbox_inches": "tight", "pad_inches": 0.12}
    with atomic_write(path) as temporary, warnings.catch_warnings():
        # A name may contain letters that the font lacks. Matplotlib draws boxes for them; the user cannot change that.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(temporary, format="png", dpi=130, **options)
