"""Decode tables with one column per class: raw cell values to labels (used by wide and imagefolder)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.policy import LABEL_VALUES, Meaning, Policy, UndecidedValue, read_value

__all__ = ["decode_columns"]


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
                raise make_error(undecided, name, raw, int(np.argmax(codes == code))) from None
            value_of[code] = LABEL_VALUES[meaning]
            counts[raw.strip(), meaning] += int(count)
        labels[:, number] = value_of[codes]
    for (raw, meaning), count in sorted(counts.items(), key=lambda item: -item[1]):
        audit.add(raw or blank, meaning, count)
    return labels
