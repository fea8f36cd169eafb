"""Bounds of numbers that people give: what makes no sense is refused, with what would."""

from __future__ import annotations

from halflabel.errors import UserError

__all__ = ["MOST", "above", "at_least", "below_one", "between"]

MOST = 1 << 16  # the largest size of a layer, and the most steps of a loop, that an option may ask for


def at_least(least: float, **given: float) -> None:
    """Refuse a number below `least`, and NaN, by its name.

    >>> at_least(0, alpha=-1)
    Traceback (most recent call last):
    halflabel.errors.UserError: alpha cannot be -1. Fix: use alpha ≥ 0
    """
    for name, value in given.items():
        if not value >= least:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} ≥ {least:g}")


def above(limit: float, **given: float) -> None:
    """Refuse a number that is not above `limit`, and NaN, by its name."""
    for name, value in given.items():
        if not value > limit:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} > {limit:g}")


def between(least: float, most: float, **given: float) -> None:
    """Refuse a number outside [least, most], and NaN, by its name."""
    for name, value in given.items():
        if not least <= value <= most:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} from {least:g} to {most:g}")


def below_one(**given: float) -> None:
    """Refuse a number outside [0, 1), and NaN, by its name."""
    for name, value in given.items():
        if not 0 <= value < 1:
            raise UserError(f"{name} cannot be {value:g}", f"use 0 ≤ {name} < 1")
