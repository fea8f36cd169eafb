"""Weak labels in little memory: what a method makes up about N images × C classes, two bits or one byte per entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.system import scratch

__all__ = ["Hard", "Soft"]

LARGEST = 2 * 10**10  # bytes that a store may take, on disk
_PIECE = 1 << 22  # entries looked at together


class _Store(nn.Module):
    """A table of bytes in one buffer, so that checkpoint and resume need no code; large ones lie in a scratch file.

    A large store stays in main memory's reach also where the rest of the method moves to another device.
    """

    codes: Tensor  # (N, width) uint8

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", None)
        self.mapped = False

    def _make(self, rows: int, width: int, what: str) -> None:
        size = rows * width
        if size > LARGEST:
            raise UserError(
                f"{what} would remember {size / 1e9:.1f} GB about {rows} images",
                "use a method that remembers nothing per image, such as em or wan; or train on fewer images or classes",
            )
        self.mapped = scratch.is_large(size)
        self.codes = scratch.zeros((rows, width), torch.uint8, f"{what} would remember")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return self if self.mapped else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _pieces(self) -> list[slice]:
        step = max(_PIECE // max(self.codes.shape[1], 1), 1)
        return [slice(first, first + step) for first in range(0, len(self.codes), step)]


class Hard(_Store):
    """Labels +1, −1 or 0 of N images × C classes, four to a byte.

    Code 0 is unknown, 1 present, 2 absent; class c of an image stands in byte ⌊c/4⌋ of its row, bits 2 (c mod 4) on.
    Memory: ⌈C/4⌉ bytes per image; from 256 MB on in a scratch file.

    >>> weak = Hard()
    >>> weak.start(LabelTable.from_dense([[1, 0, -1], [0, 0, 0]]))
    >>> weak.set_rows(torch.tensor([1]), torch.tensor([[0, 1, -1]]))
    >>> weak.rows(torch.tensor([1, 0])).tolist(), weak.counts()
    ([[0, 1, -1], [1, 0, -1]], (2, 2))
    """

    def __init__(self) -> None:
        super().__init__()
        self.classes = 0

    def start(self, table: LabelTable, what: str = "this method", *, known: bool = True) -> None:
        """Make room for a table, with its known labels in place or (`known` false) with nothing at all."""
        images, self.classes = table.shape
        self._make(images, -(-self.classes // 4), what)
        if known:
            self._put(table)

    def reset(self, table: LabelTable) -> None:
        """Back to what is known."""
        self.codes.zero_()
        self._put(table)

    def rows(self, index: Tensor) -> Tensor:
        """(B,) image numbers -> (B, C) int8 in {−1, 0, +1}, on the device of `index`."""
        return self._unpack(self.codes[index.to(self.codes.device)].to(index.device))

    def set_rows(self, index: Tensor, labels: Tensor) -> None:
        """Put (B, C) labels in the place of those of (B,) images, which must be distinct."""
        code = (labels > 0).to(torch.uint8) + 2 * (labels < 0).to(torch.uint8)
        code = nn.functional.pad(code, (0, -self.classes % 4)).view(len(labels), -1, 4)
        packed = (code << self._shift(code.device)).sum(2, dtype=torch.uint8)
        self.codes[index.to(self.codes.device)] = packed.to(self.codes.device)

    def counts(self) -> tuple[int, int]:
        """How many entries are present, and how many absent."""
        found = torch.zeros(256, dtype=torch.int64, device=self.codes.device)
        for piece in self._pieces():
            found += torch.bincount(self.codes[piece].flatten(), minlength=256)
        labels = torch.arange(256)[:, None] >> torch.tensor([0, 2, 4, 6]) & 3
        return tuple(int((found.cpu() * (labels == code).sum(1)).sum()) for code in (1, 2))  # type: ignore[return-value]

    def dense(self) -> Tensor:
        """All labels as (N, C) int8: one byte per entry, so for small tables only."""
        out = torch.empty(len(self.codes), self.classes, dtype=torch.int8, device=self.codes.device)
        for piece in self._pieces():
            out[piece] = self._unpack(self.codes[piece])
        return out

    def _unpack(self, packed: Tensor) -> Tensor:
        code = (packed.unsqueeze(2) >> self._shift(packed.device) & 3).flatten(1)[:, : self.classes]
        return (code & 1).to(torch.int8) - (code >> 1).to(torch.int8)

    def _put(self, table: LabelTable) -> None:
        flat, width = self.codes.view(-1), self.codes.shape[1]
        for first in range(0, len(table), _PIECE):
            part = slice(first, min(first + _PIECE, len(table)))
            start = table.start[part.start : part.stop + 1]
            image = np.repeat(np.arange(part.start, part.stop), np.diff(start))
            column, value = table.column[start[0] : start[-1]].astype(np.int64), table.value[start[0] : start[-1]]
            code = np.where(value > 0, 1, 2) << 2 * (column & 3)
            at = torch.from_numpy(image * width + (column >> 2)).to(flat.device)
            # Entries have bits of their own, so to add is to set.
            flat.index_add_(0, at, torch.from_numpy(code.astype(np.uint8)).to(flat.device))

    @staticmethod
    def _shift(device: torch.device) -> Tensor:
        return torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=device)


class Soft(_Store):
    """Soft labels in [0, 1] of N images × C classes, one byte each; or unknown (NaN), or known (−1).

    A soft label s is kept as the nearest of the 254 multiples of 1/253: it comes back wrong by at most 1/506, 0.002.
    Memory: 1 byte per image and class; from 256 MB on in a scratch file.
    """

    _STEPS, _KNOWN, _UNKNOWN = 253, 254, 255

    def start(self, table: LabelTable, what: str = "this method") -> None:
        """Unknown everywhere but where the table knows."""
        self._make(*table.shape, what)
        self.codes.fill_(self._UNKNOWN)
        step = max(_PIECE // max(table.shape[1], 1), 1)
        for first in range(0, len(table), step):
            index = np.arange(first, min(first + step, len(table)))
            known = torch.from_numpy(table.rows(index)) != 0
            self.codes[first : first + step].masked_fill_(known, self._KNOWN)

    def rows(self, index: Tensor) -> Tensor:
        """(B,) image numbers -> (B, C) float32, on the device of `index`."""
        return self._decode(self.codes[index.to(self.codes.device)].to(index.device))

    def unknown(self, rows: slice, classes: slice) -> Tensor:
        """Which entries of a part of the table are unknown: (n, c) bool."""
        return self.codes[rows, classes] == self._UNKNOWN

    def put(self, rows: slice, classes: slice, chosen: Tensor, soft: Tensor) -> None:
        """Give the chosen entries of a part of the table their soft labels: (n, c) bool and (n, c)."""
        part = self.codes[rows, classes]
        code = (soft * self._STEPS).round().to(part)
        part.copy_(torch.where(chosen.to(part.device), code, part))

    def _decode(self, code: Tensor) -> Tensor:
        soft = code.float() / self._STEPS
        return soft.masked_fill(code == self._KNOWN, -1.0).masked_fill(code == self._UNKNOWN, math.nan)
