"""A number for each image and class that a method makes up (curriculum, ll-cp, em-apl), and selection among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.labels.table import Table
from halflabel.system import memory

_BLOCK_ENTRIES = 1 << 20  # entries processed at a time: small enough for the processor's cache
_CLASSES = 1 << 13  # classes processed together: the digit counts of their entries take 64 MB
_DIGIT_BITS = 11

Candidates = Callable[[slice, slice], Tensor]  # (rows, classes) -> (n, c) bool


class EntryStore(nn.Module):
    """A number for each of N images × C classes, in a buffer, so that checkpoints contain it.

    A table of 256 MB or more is in a scratch file, and stays on the CPU when the method moves to another device.
    """

    values: Tensor  # (N, C)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", None)
        self.is_mapped = False

    def start(self, table: Table, method: str, dtype: torch.dtype = torch.int8) -> None:
        """Allocate the store for a label table, filled with zeros."""
        self.values = memory.scratch_zeros(table.shape, dtype, f"{method} would remember")
        self.is_mapped = memory.is_large(self.values.nbytes)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return self if self.is_mapped else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def rows(self, index: Tensor) -> Tensor:
        """(B,) image numbers -> (B, C), on the device of `index`."""
        return self.values[index.to(self.values.device)].to(index.device)

    def set_rows(self, index: Tensor, values: Tensor) -> None:
        """Replace the numbers of (B,) images, which must be distinct."""
        self.values[index.to(self.values.device)] = values.to(self.values)

    def count(self, condition: Callable[[Tensor], Tensor]) -> int:
        """Return how many entries fulfil a condition."""
        return sum(int(condition(self.values[block]).sum()) for block in row_blocks(*self.values.shape))


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of a table in blocks of bounded size."""
    step = max(_BLOCK_ENTRIES // max(columns, 1), 1)
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def label_blocks(table: Table) -> Iterator[tuple[slice, Tensor]]:
    """Yield the known labels of some images at a time, int8."""
    for block in row_blocks(*table.shape):
        yield block, torch.from_numpy(table.rows(np.arange(block.start, block.stop)))


def lowest_per_class(
    logits: Tensor, candidates: Candidates, quota: Tensor, rank: Tensor
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield, block by block, which of the candidates are the quota[c] lowest of their class c.

    logits (N, C), NaN for images that could not be read, which are never chosen; quota (C,) int64; rank (N,) int32
    orders the images: of equal logits those with the lowest rank are chosen. Yields (rows, classes, chosen), with
    chosen (n, c) bool on the device of `rank`.

    Radix selection: no sorting, and memory for digit counts only. The table is read four times, and up to three times
    more if equal logits are at the cut-off of a class.
    """
    for first in range(0, logits.shape[1], _CLASSES):
        classes = slice(first, first + _CLASSES)

        def blocks(classes: slice = classes) -> Iterator[tuple[slice, Tensor, Tensor]]:
            for rows in row_blocks(len(logits), len(quota[classes])):
                values = logits[rows, classes].to(rank.device)
                key = (_sort_key(values) << 31) + rank[rows, None]
                yield rows, key, candidates(rows, classes).to(rank.device) & ~values.isnan()

        last = _kth_lowest(blocks, quota[classes])
        for rows, key, free in blocks():
            yield rows, classes, free & (key <= last)


def _sort_key(logits: Tensor) -> Tensor:
    """Map float32 to int64 from 0 to 2^32 − 1 in the same order, equal where the logits are equal; NaN excepted.

    Logits rather than scores: scores that underflow would be equal.
    """
    bits = (logits.float() + 0.0).view(torch.int32).long()  # −0 + 0 is 0
    # The bit patterns of negative floats are in descending order: invert all bits but the sign.
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) + (1 << 31)


def _kth_lowest(blocks: Callable[[], Iterator[tuple[slice, Tensor, Tensor]]], count: Tensor) -> Tensor:
    """Return the count-th lowest of each column's keys of 63 bits, read block by block, digit by digit from the top.

    Lower digits that decide nothing are all ones. A column with fewer keys returns its highest; one without keys, or
    with count 0, returns −1.
    """
    classes, bits = len(count), 63
    value, is_decided = torch.zeros_like(count), False
    while bits and not is_decided:
        width = min(_DIGIT_BITS, bits)
        bits -= width
        value = value << width
        counts = torch.zeros(classes << width, dtype=torch.int32, device=count.device)
        for _, key, free in blocks():
            digit = (key >> bits) - value  # outside 0 … 2^width − 1 where higher digits differ
            row, column = (free & (digit >> width == 0)).nonzero(as_tuple=True)
            counts.index_add_(0, (column << width) + digit[row, column], counts.new_ones(1).expand(len(row)))
        histogram = counts.view(classes, 1 << width)
        cumulative = histogram.cumsum(1)
        count = torch.minimum(count, cumulative[:, -1])
        digit = (cumulative < count[:, None]).sum(1, keepdim=True)
        equal = histogram.gather(1, digit).squeeze(1)
        count = count - torch.where(count > 0, cumulative.gather(1, digit).squeeze(1) - equal, 0)
        value = value + digit.squeeze(1)
        is_decided = bool(((count == equal) | (count == 0)).all())
    return torch.where(count > 0, ((value + 1) << bits) - 1, -1)
