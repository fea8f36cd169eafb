"""The page at / and /docs: drop photos, see their labels, move the threshold; and how programs call the API."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from statistics import median

from halflabel import __version__
from halflabel.serve.guard import Limits
from halflabel.system.html import render_page


def try_page(name: str, thresholds: Mapping[str, float], limits: Limits, address: str = "http://HOST:PORT") -> str:
    """Return the page as HTML text; `thresholds` are those of the classes, `address` is the base URL of the server."""
    values = list(thresholds.values()) or [0.5]
    are_alike = max(values) - min(values) < 0.005
    return render_page(
        "serve/page.html.j2",
        scripts=("try_photos",),
        served=True,
        title=name,
        classes=len(thresholds),
        version=__version__,
        target=shlex.quote(f"{address}/predict"),
        limits=limits.description,
        start=round(100 * median(values)),
        shown=f"{median(values):.2f}" if are_alike else "one per class",  # until the slider is moved
        thresholds=json.dumps({name: round(value, 6) for name, value in thresholds.items()}),
    )
