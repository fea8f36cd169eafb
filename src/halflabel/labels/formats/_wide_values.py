"""Decode tables with one column per class: raw cell values to labels (used by wide and imagefolder)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.policy import (
    LABEL_VALUES,
    MINUS_ONE,
    ONE,
    VALUE_WORDS,
    ZERO,
    Meaning,
    Policy,
    UndecidedValue,
    quote_option,
    read_value,
    shorten_cell,
)

# The only column with labels, of this name and with 0 and 1, may hold numbers of classes.
CLASS_NUMBER_COLUMNS = ("label", "class", "category", "target", "y", "label_id", "class_id", "category_id", "classes")

_MOST_PROBLEMS = 8  # named in a message
_MOST_ODD_VALUES = 2  # values of a class that are not labels; a column with more of them is not a class


def decode_columns(
    columns: Iterable[tuple[str, pa.Array]],
    policy: Policy,
    audit: Audit,
    make_error: Callable[[UndecidedValue, str, str, int], LabelError],
    *,
    blank: str,
) -> NDArray[np.int8]:
    """Turn C columns (name, N raw values) into (N, C) labels, and add the meaning of each value to the audit.

    `make_error` builds the error from (the problem, the column, the raw value, the first row with it). `blank` is the
    audit's word for an empty cell. The audit lists the most frequent value first.
    """
    coded = {name: pc.dictionary_encode(column) for name, column in columns}
    all_values = frozenset(raw for column in coded.values() for raw in column.dictionary.to_pylist())
    are_numbers = {*ZERO} & all_values and {raw.strip() for raw in all_values} <= {*ZERO, *ONE, ""}
    only = next(iter(coded)) if len(coded) == 1 else ""
    if are_numbers and only.lower() in CLASS_NUMBER_COLUMNS and policy.zero is None:
        fix = f"name the column after the class that 1 means, or add --zero absent if the class is called {only!r}"
        undecided = UndecidedValue("0 and 1 may be the numbers of two classes, or say absent and present", fix)
        raise make_error(undecided, only, "0", 0)
    labels = np.zeros((max(map(len, coded.values()), default=0), len(coded)), np.int8)
    counts: Counter[tuple[str, Meaning]] = Counter()
    for number, (name, column) in enumerate(coded.items()):
        codes = column.indices.to_numpy(zero_copy_only=False)
        raws = column.dictionary.to_pylist()
        value_of = np.zeros(len(raws), np.int8)
        for code, (raw, count) in enumerate(zip(raws, np.bincount(codes, minlength=len(raws)), strict=True)):
            try:
                meaning = read_value(raw, policy, all_values)
            except UndecidedValue as undecided:
                error = make_error(undecided, name, raw, int(np.argmax(codes == code)))
                distinct = {each: values.dictionary.to_pylist() for each, values in coded.items()}
                problems, options = _open_questions(distinct, policy)
                if len(problems) > 1:
                    shown = "; ".join(problems[:_MOST_PROBLEMS]) + (" …" if len(problems) > _MOST_PROBLEMS else "")
                    error.message += f"; in all, {len(problems)} things must be stated: {shown}"
                    error.fix = f"add {' '.join(options)}  (or what is true of your file)"
                raise error from None
            value_of[code] = LABEL_VALUES[meaning]
            counts[raw.strip(), meaning] += int(count)
        labels[:, number] = value_of[codes]
    for (raw, meaning), count in sorted(counts.items(), key=lambda item: -item[1]):
        audit.add(raw or blank, meaning, count)
    return labels


def _open_questions(columns: Mapping[str, Sequence[str]], policy: Policy) -> tuple[list[str], list[str]]:
    """Ambiguities of the file, and the options that usually resolve them, from the distinct values of each column.

    A column with one or two values that are not labels, beside labels, is a class with a value to explain; a column
    with more of them is not a class.
    """
    known = {*policy.values, *MINUS_ONE, *ZERO, *VALUE_WORDS}
    problems, options, of_classes = [], [], set[str]()
    for name, raws in columns.items():
        texts = {raw.strip() for raw in raws}
        strange = sorted(text for text in texts if text not in known and text.lower() not in VALUE_WORDS)
        if len(strange) > _MOST_ODD_VALUES or (strange and texts.isdisjoint({*ONE, *ZERO, *MINUS_ONE})):
            problems.append(f"{shorten_cell(name)!r} does not look like a class ({shorten_cell(strange[0], 20)!r})")
            options.append(quote_option("--ignore", name))
            continue
        of_classes |= texts
        for text in strange:
            problems.append(f"what {shorten_cell(text, 20)!r} in {shorten_cell(name)!r} means")
            options.append(quote_option("--value", f"{text}=unknown"))
    minus_one = of_classes.intersection(MINUS_ONE) - set(policy.values)
    # Beside 1, 0 and blank cells, -1 is usually "uncertain", as in chest X-ray data sets.
    usual = "uncertain" if of_classes & {*ZERO} and "" in of_classes else "absent"
    if minus_one and policy.minus_one is None:
        problems.append("what -1 means")
        options.append(f"--minus-one {usual}")
    if minus_one and (policy.minus_one or usual) == "absent" and of_classes & {*ZERO} and policy.zero is None:
        problems.append("what 0 means beside it")
        options.append("--zero unknown")
    return problems, options
