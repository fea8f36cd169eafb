"""Compact storage of the labels that a method makes up for N images × C classes.

`PackedLabels` keeps ±1 labels in two bits each (curriculum labelling, ll-cp), `SoftLabels` labels in [0, 1] in one byte
each, or in float32 where the table is small (em-apl).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.system import memory

LARGEST = 2 * 10**10  # most bytes of a store, in memory or on disk
FLOAT32_BELOW = 1 << 28  # bytes; tables of soft labels from this size on use one byte per entry
_BLOCK_ENTRIES = 1 << 22  # entries processed at a time


class _ByteStore(nn.Module):
    """A table of bytes in one buffer, so that checkpoints contain it; large tables are memory-mapped scratch files.

    A memory-mapped table stays on the CPU when the method moves to another device.
    """

    codes: Tensor  # (N, width) uint8

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", None)
        self.is_mapped = False

    def _allocate(self, rows: int, width: int, method: str) -> None:
        size = rows * width
        if size > LARGEST:
            raise UserError(
                f"{method} would need {size / 1e9:.1f} GB to store labels of {rows} images",
                "use a method that stores nothing per image, such as em or wan; or train on fewer images or classes",
            )
        self.is_mapped = memory.is_large(size)
        self.codes = memory.scratch_zeros((rows, width), torch.uint8, f"{method} would remember")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return self if self.is_mapped else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _blocks(self) -> list[slice]:
        step = max(_BLOCK_ENTRIES // max(self.codes.shape[1], 1), 1)
        return [slice(first, first + step) for first in range(0, len(self.codes), step)]


def _label_blocks(table: Table) -> Iterator[tuple[slice, Tensor]]:
    """Yield the known labels of some images at a time, int8."""
    step = max(_BLOCK_ENTRIES // max(table.shape[1], 1), 1)
    for first in range(0, len(table), step):
        images = np.arange(first, min(first + step, len(table)))
        yield slice(first, first + step), torch.from_numpy(table.rows(images))


class PackedLabels(_ByteStore):
    """Labels +1, −1 or 0 (unknown) of N images × C classes, four to a byte.

    Codes: 0 unknown, 1 present, 2 absent. Class c of an image is in byte ⌊c/4⌋ of its row, at bit 2·(c mod 4).
    Memory: ⌈C/4⌉ bytes per image; tables of 256 MB or more are in a scratch file.

    >>> labels = PackedLabels()
    >>> labels.start(Table.from_dense([[1, 0, -1], [0, 0, 0]]))
    >>> labels.set_rows(torch.tensor([1]), torch.tensor([[0, 1, -1]]))
    >>> labels.rows(torch.tensor([1, 0])).tolist(), labels.counts()
    ([[0, 1, -1], [1, 0, -1]], (2, 2))
    """

    def __init__(self) -> None:
        super().__init__()
        self.classes = 0

    def start(self, table: Table, method: str = "this method", *, known: bool = True) -> None:
        """Allocate the store for a label table; fill in its known labels unless `known` is False."""
        images, self.classes = table.shape
        self._allocate(images, -(-self.classes // 4), method)
        for block, labels in _label_blocks(table) if known else ():
            self.codes[block] = self._pack(labels)

    def rows(self, index: Tensor) -> Tensor:
        """(B,) image numbers -> (B, C) int8 in {−1, 0, +1}, on the device of `index`."""
        return self._unpack(self.codes[index.to(self.codes.device)].to(index.device))

    def set_rows(self, index: Tensor, labels: Tensor) -> None:
        """Replace the labels of (B,) images, which must be distinct, by (B, C) labels."""
        self.codes[index.to(self.codes.device)] = self._pack(labels).to(self.codes.device)

    def counts(self) -> tuple[int, int]:
        """Return how many entries are present, and how many absent."""
        histogram = torch.zeros(256, dtype=torch.int64, device=self.codes.device)
        for block in self._blocks():
            histogram += torch.bincount(self.codes[block].flatten(), minlength=256)
        labels = torch.arange(256)[:, None] >> torch.tensor([0, 2, 4, 6]) & 3
        return tuple(int((histogram.cpu() * (labels == code).sum(1)).sum()) for code in (1, 2))  # type: ignore[return-value]

    def dense(self) -> Tensor:
        """Return all labels as (N, C) int8: one byte per entry, so only for small tables."""
        labels = torch.empty(len(self.codes), self.classes, dtype=torch.int8, device=self.codes.device)
        for block in self._blocks():
            labels[block] = self._unpack(self.codes[block])
        return labels

    def _pack(self, labels: Tensor) -> Tensor:
        code = (labels > 0).to(torch.uint8) + 2 * (labels < 0).to(torch.uint8)
        code = nn.functional.pad(code, (0, -self.classes % 4)).view(len(labels), -1, 4)
        return (code << self._shift(code.device)).sum(2, dtype=torch.uint8)

    def _unpack(self, packed: Tensor) -> Tensor:
        code = (packed.unsqueeze(2) >> self._shift(packed.device) & 3).flatten(1)[:, : self.classes]
        return (code & 1).to(torch.int8) - (code >> 1).to(torch.int8)

    @staticmethod
    def _shift(device: torch.device) -> Tensor:
        return torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=device)


def fits_float32(table: Table) -> bool:
    """Whether `SoftLabels` of this table are stored in float32: below 256 MB."""
    return 4 * len(table) * len(table.classes) < FLOAT32_BELOW


class SoftLabels(_ByteStore):
    """Soft labels in [0, 1] of N images × C classes; NaN marks an unknown entry, −1 a known one.

    Small tables (`fits_float32`) are float32. Larger ones take one byte per entry: a soft label is rounded to a
    multiple of 1/253, an error of at most 1/506 = 0.002; tables of 256 MB or more of these bytes are in a scratch file.
    """

    values: Tensor | None  # (N, C) float32; None where `codes` are used
    _STEPS, _KNOWN, _UNKNOWN = 253, 254, 255

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", None)

    def start(self, table: Table, method: str = "this method") -> None:
        """Allocate the store for a label table and mark its known entries."""
        self.values, self.codes, self.is_mapped = None, None, False  # type: ignore[assignment]
        if fits_float32(table):
            self.values = torch.full(table.shape, math.nan)
        else:
            self._allocate(*table.shape, method)
            self.codes.fill_(self._UNKNOWN)
        store, known = (self.codes, self._KNOWN) if self.values is None else (self.values, -1.0)
        for block, labels in _label_blocks(table):
            store[block].masked_fill_(labels != 0, known)

    def rows(self, index: Tensor) -> Tensor:
        """(B,) image numbers -> (B, C) floating-point labels, on the device of `index`."""
        if self.values is not None:
            return self.values[index]
        return self._decode(self.codes[index.to(self.codes.device)].to(index.device))

    def unknown(self, rows: slice, classes: slice) -> Tensor:
        """Return which entries of a part of the table are unknown: (n, c) bool."""
        if self.values is not None:
            return self.values[rows, classes].isnan()
        return self.codes[rows, classes] == self._UNKNOWN

    def put(self, rows: slice, classes: slice, chosen: Tensor, soft: Tensor) -> None:
        """Set the chosen entries of a part of the table: (n, c) bool and (n, c) soft labels."""
        if self.values is not None:
            self.values[rows, classes] = torch.where(chosen, soft, self.values[rows, classes])
            return
        part = self.codes[rows, classes]
        code = (soft * self._STEPS).round().to(part)
        part.copy_(torch.where(chosen.to(part.device), code, part))

    def _decode(self, code: Tensor) -> Tensor:
        soft = code.float() / self._STEPS
        return soft.masked_fill(code == self._KNOWN, -1.0).masked_fill(code == self._UNKNOWN, math.nan)
