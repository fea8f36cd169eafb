"""Checks of values: ranges of numbers, and the fields of dataclasses and named tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from halflabel.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_SIZE = 1 << 16  # the largest layer size, and the most steps of a loop, that an option may ask for


def at_least(minimum: float, **values: float) -> None:
    """Refuse a number below `minimum`, and NaN, by its name.

    >>> at_least(0, alpha=-1)
    Traceback (most recent call last):
    halflabel.errors.UserError: alpha cannot be -1. Fix: use alpha ≥ 0
    """
    _check(values, lambda value: value >= minimum, lambda name: f"{name} ≥ {minimum:g}")


def above(limit: float, **values: float) -> None:
    """Refuse a number that is not above `limit`, and NaN, by its name."""
    _check(values, lambda value: value > limit, lambda name: f"{name} > {limit:g}")


def between(minimum: float, maximum: float, **values: float) -> None:
    """Refuse a number outside [minimum, maximum], and NaN, by its name."""
    _check(values, lambda value: minimum <= value <= maximum, lambda name: f"{name} from {minimum:g} to {maximum:g}")


def below_one(**values: float) -> None:
    """Refuse a number outside [0, 1), and NaN, by its name."""
    _check(values, lambda value: 0 <= value < 1, lambda name: f"0 ≤ {name} < 1")


def _check(values: Mapping[str, float], is_allowed: Callable[[float], bool], wanted: Callable[[str], str]) -> None:
    for name, value in values.items():
        if not is_allowed(value):
            raise UserError(f"{name} cannot be {value:g}", f"use {wanted(name)}")


def one_of(allowed: Iterable[str], **values: str) -> None:
    """Refuse a text that is not one of the allowed ones, by its name."""
    allowed = tuple(allowed)
    for name, value in values.items():
        if value not in allowed:
            raise UserError(f"{name} cannot be {value!r}", f"use one of: {', '.join(allowed)}")


class FieldError(UserError, TypeError):
    """A value that does not fit the field it is meant for; `fix` says what would."""


def check_fields(kind: type, values: Mapping[str, Any], *, as_texts: bool = False) -> dict[str, Any]:
    """The values, if each fits the declared type and bounds of a class's field, and an int becomes a float.

    Types are strict: the text "1" is not a number, and NaN is none. `as_texts`: all values are texts, such as "1".
    """
    from pydantic import ValidationError

    for name, value in values.items():
        if type(value) is int and abs(value) >= 1 << 63:
            raise FieldError(f"{name} cannot be {value!r:.40}", f"use a smaller {name}")
    try:
        checker = _checker(kind)
        checked: dict[str, Any] = (
            checker.validate_strings(dict(values), strict=False) if as_texts else checker.validate_python(dict(values))
        )
    except ValidationError as error:
        raise _first_fault(error) from None
    return checked


@cache
def _checker(kind: type) -> TypeAdapter[Any]:
    """The pydantic validator of a class; pydantic is imported here because that takes a third of a second."""
    from pydantic import ConfigDict, TypeAdapter, with_config
    from typing_extensions import TypedDict

    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    hints = get_type_hints(kind, include_extras=True)
    fields = TypedDict(kind.__name__, hints, total=False)  # type: ignore[misc]  # fields known at run time only
    return TypeAdapter(with_config(config)(fields))


def _first_fault(error: Any) -> FieldError:
    """The first error that pydantic reports, in the words of `at_least` and its like."""
    fault = error.errors()[0]
    name, value, context = str(fault["loc"][0]), fault["input"], fault.get("ctx", {})
    if fault["type"] == "extra_forbidden":
        return FieldError(f"there is no setting {name!r:.40}", "leave it out")
    fixes = {
        "greater_than_equal": f"use {name} ≥ {context.get('ge')}",
        "less_than_equal": f"use {name} ≤ {context.get('le')}",
        "literal_error": f"use one of: {str(context.get('expected', '')).replace(' or ', ', ').replace(chr(39), '')}",
    }
    wanted = fault["msg"].removeprefix("Input should be ").partition(", unable to parse")[0]
    return FieldError(f"{name} cannot be {value!r:.40}", fixes.get(fault["type"], f"use {wanted}"))
