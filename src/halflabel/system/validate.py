"""Range checks of numbers that users set: a UserError names the value and the allowed range."""

from __future__ import annotations

from halflabel.errors import UserError

__all__ = ["MAX_SIZE", "above", "at_least", "below_one", "between"]

MAX_SIZE = 1 << 16  # the largest layer size, and the most steps of a loop, that an option may ask for


def at_least(minimum: float, **values: float) -> None:
    """Refuse a number below `minimum`, and NaN, by its name.

    >>> at_least(0, alpha=-1)
    Traceback (most recent call last):
    halflabel.errors.UserError: alpha cannot be -1. Fix: use alpha ≥ 0
    """
    for name, value in values.items():
        if not value >= minimum:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} ≥ {minimum:g}")


def above(limit: float, **values: float) -> None:
    """Refuse a number that is not above `limit`, and NaN, by its name."""
    for name, value in values.items():
        if not value > limit:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} > {limit:g}")


def between(minimum: float, maximum: float, **values: float) -> None:
    """Refuse a number outside [minimum, maximum], and NaN, by its name."""
    for name, value in values.items():
        if not minimum <= value <= maximum:
            raise UserError(f"{name} cannot be {value:g}", f"use {name} from {minimum:g} to {maximum:g}")


def below_one(**values: float) -> None:
    """Refuse a number outside [0, 1), and NaN, by its name."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UserError(f"{name} cannot be {value:g}", f"use 0 ≤ {name} < 1")
