"""Select the lowest entries of each class of a large table, block by block, in bounded memory (em-apl)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_BLOCK_ENTRIES = 1 << 20  # entries per block: small enough for the processor's cache
_CLASSES = 1 << 13  # classes processed together: the digit counts of their entries take 64 MB
_DIGIT_BITS = 11

Candidates = Callable[[slice, slice], Tensor]  # (rows, classes) -> (n, c) bool


def lowest_per_class(
    logits: Tensor, candidates: Candidates, quota: Tensor, rank: Tensor
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield, block by block, which of the candidates are the quota[c] lowest of their class c.

    logits (N, C), NaN for images that could not be read, which are never chosen; quota (C,) int64; rank (N,) int32
    orders the images: of equal logits those with the lowest rank are chosen. Yields (rows, classes, chosen), with
    chosen (n, c) bool on the device of `rank`.

    Radix selection: no sorting, and memory for digit counts only. The table is read four times, and two or three times
    more if equal logits are at the cut-off of a class.
    """
    for first in range(0, logits.shape[1], _CLASSES):
        classes = slice(first, first + _CLASSES)
        for rows, chosen in _lowest(logits, candidates, classes, quota[classes], rank):
            yield rows, classes, chosen


def _lowest(
    logits: Tensor, candidates: Candidates, classes: slice, quota: Tensor, rank: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    images = len(logits)
    step = max(_BLOCK_ENTRIES // max(len(quota), 1), 1)

    def blocks() -> Iterator[tuple[slice, Tensor, Tensor]]:
        for first in range(0, images, step):
            rows = slice(first, first + step)
            values = logits[rows, classes].to(rank.device)
            yield rows, _sort_key(values), candidates(rows, classes).to(rank.device) & ~values.isnan()

    def keys() -> Iterator[tuple[Tensor, Tensor]]:
        return ((key, free) for _, key, free in blocks())

    def ranks_of_ties() -> Iterator[tuple[Tensor, Tensor]]:
        return ((rank[rows, None], free & (key == cut_off)) for rows, key, free in blocks())

    cut_off, wanted, tied = _kth_lowest(keys, quota, 32, signed=True)
    last_rank = torch.full_like(cut_off, images)
    if bool((wanted < tied).any()):
        last_rank = _kth_lowest(ranks_of_ties, wanted, max(images - 1, 1).bit_length())[0]
    cut_off = cut_off.where(wanted > 0, torch.iinfo(cut_off.dtype).min)  # below every key: nothing is chosen
    for rows, key, free in blocks():
        yield rows, free & ((key < cut_off) | ((key == cut_off) & (rank[rows, None] <= last_rank)))


def _sort_key(logits: Tensor) -> Tensor:
    """Map float32 to int32 in the same order, equal where the logits are equal; NaN excepted.

    Logits rather than scores: scores that underflow would be equal.
    """
    bits = (logits.float() + 0.0).view(torch.int32)  # −0 + 0 is 0
    # The bit patterns of negative floats are in descending order: invert all bits but the sign.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _kth_lowest(
    blocks: Callable[[], Iterator[tuple[Tensor, Tensor]]], count: Tensor, bits: int, *, signed: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the count-th lowest value of each column of a table read block by block, digit by digit from the top.

    A block is (b, C) or (b, 1) int32 values of `bits` bits, and a (b, C) mask of the entries to consider. Returns three
    (C,) tensors: the value; how many entries equal to it are among the lowest `count`; how many entries are equal to
    it. A column with fewer entries returns its highest value; with no entry, or count 0, the value has no meaning and
    the second tensor is 0.
    """
    classes = len(count)
    value: Tensor | None = None
    equal = count
    while bits:
        width = min(_DIGIT_BITS, bits)
        bits -= width
        start = -(1 << width - 1) if signed else 0
        value = torch.full_like(count, start, dtype=torch.int32) if value is None else value << width
        counts = torch.zeros(classes << width, dtype=torch.int32, device=count.device)
        unit = counts.new_ones(1)
        for values, considered in blocks():
            digit = (values >> bits) - value  # outside 0 … 2^width − 1 where higher digits differ
            row, column = (considered & (digit >> width == 0)).nonzero(as_tuple=True)
            counts.index_add_(0, (column << width) + digit[row, column], unit.expand(len(row)))
        histogram = counts.view(classes, 1 << width)
        cumulative = histogram.cumsum(1, dtype=torch.int32)
        count = torch.minimum(count, cumulative[:, -1])
        digit = (cumulative < count[:, None]).sum(1, keepdim=True)
        equal = histogram.gather(1, digit).squeeze(1)
        count = count - (cumulative.gather(1, digit).squeeze(1) - equal)
        value = value + digit.squeeze(1).to(torch.int32)
    assert value is not None
    return value, count, equal
