"""How mAP, AP and F1 are shown to people: in points of 100.

Files and the Python API hold them as shares of 1, but for `reproduce`, whose measures are the papers' own.
"""

from __future__ import annotations

import math

__all__ = ["points"]


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """A metric of 0 … 1 in points of 100, as papers write it; a dash where there is no value (never 0).

    Differences are shown with two digits and their sign.

    >>> points(0.8294), points(math.nan), points(-0.00318, 2, signed=True), points(-0.00001, 2, signed=True)
    ('82.9', '—', '−0.32', '0.00')
    """
    if not math.isfinite(value):
        return "—"
    rounded = round(100 * float(value), digits) + 0.0  # else a small negative number would read "−0.0"
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}".replace("-", "−")
