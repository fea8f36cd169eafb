"""Cells: tables with one column per class, raw values in them, as labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.policy import VALUE, Meaning, Policy, Undecided, read_value

__all__ = ["decode"]


def decode(
    columns: Iterable[tuple[str, pa.Array]],
    policy: Policy,
    audit: Audit,
    fault: Callable[[Undecided, str, str, int], LabelError],
    *,
    blank: str,
) -> NDArray[np.int8]:
    """C columns (name, N raw values) -> (N, C) labels, with what became of each value in the audit, the usual first.

    `fault` makes the error from (what is undecided, the column, the raw value, the first row that has it); `blank` is
    the audit's word for a cell with nothing in it.
    """
    coded = {name: pc.dictionary_encode(column) for name, column in columns}
    among = frozenset(raw for column in coded.values() for raw in column.dictionary.to_pylist())
    labels = np.zeros((max(map(len, coded.values()), default=0), len(coded)), np.int8)
    counts: Counter[tuple[str, Meaning]] = Counter()
    for number, (name, column) in enumerate(coded.items()):
        codes = column.indices.to_numpy(zero_copy_only=False)
        raws = column.dictionary.to_pylist()
        value_of = np.zeros(len(raws), np.int8)
        for code, (raw, count) in enumerate(zip(raws, np.bincount(codes, minlength=len(raws)), strict=True)):
            try:
                meaning = read_value(raw, policy, among)
            except Undecided as problem:
                raise fault(problem, name, raw, int(np.argmax(codes == code))) from None
            value_of[code] = VALUE[meaning]
            counts[raw.strip(), meaning] += int(count)
        labels[:, number] = value_of[codes]
    for (raw, meaning), count in sorted(counts.items(), key=lambda item: -item[1]):
        audit.add(raw or blank, meaning, count)
    return labels
