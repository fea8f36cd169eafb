"""Unused columns that may say present or absent, or how sure a model is: asked about, never ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import pyarrow.compute as pc

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import CsvTable
from halflabel.labels.policy import MINUS_ONE, ONE, VALUE_WORDS, ZERO, shorten_cell

_VALUE_CELLS = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))
_UNKNOWN_CELLS = frozenset(word for word, meaning in VALUE_WORDS.items() if meaning == "unknown")

# Numbers of any size in a column of these names are scores.
_SCORE_NAMES = ("score", "conf", "prob", "likelihood", "certainty", "percent", "logit")


def refuse_possible_values(sheet: CsvTable, names: Iterable[str]) -> None:
    """Raise LabelError for a column whose cells may be the values or the probabilities of the labels.

    A column of nothing but 1 may be ignored: it says present, as the rows themselves do.
    """
    for name in names:
        try:
            column = sheet.column(name)
        except LabelError:  # objects or lists, which are not values
            continue
        cells = pc.unique(pc.utf8_lower(pc.utf8_trim_whitespace(column))).to_pylist()
        texts = {text for text in cells if text not in _UNKNOWN_CELLS}
        if not texts or texts <= {*ONE} or not _may_be_values(name, texts):
            continue
        example = shorten_cell(min(texts), 20)
        raise sheet.error(
            f"the cells, such as {example!r}, may say present or absent, or how probable the label is",
            f"call the column 'value' if it does; if every row says present, add ‹ignore={name}›",
            column=name,
        )


def _may_be_values(name: str, texts: set[str]) -> bool:
    is_score = any(word in name.lower() for word in _SCORE_NAMES)
    if is_score:  # also one number per tag
        texts = {part for text in texts for part in re.split(r"[\s,;|\[\]()]+", text) if part}
    numbers = [number for text in texts if (number := _number(text)) is not None]
    if len(numbers) < len(texts):
        return texts <= _VALUE_CELLS
    return is_score or all(-1 <= number <= 1 for number in numbers)


def _number(text: str) -> float | None:
    """The finite number in a cell, also as a percentage or with a decimal comma."""
    try:
        number = float(text.removesuffix("%").replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
