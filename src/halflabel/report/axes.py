"""Axes of the SVG charts: they map values to page coordinates and choose round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Axis:
    """A linear axis: maps values to page coordinates and chooses the ticks."""

    def __init__(
        self,
        low: float,
        high: float,
        start: float,
        end: float,
        *,
        integers: bool = False,
        tick_count: int = 5,
        in_points: bool = False,
    ) -> None:
        if not high > low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end = low, high, start, end
        self.ticks = round_ticks(low, high, tick_count, integers=integers)
        self.in_points = in_points  # whether labels show values of 0 … 1 in points of 100

    def label(self, tick: float) -> str:
        return f"{100 * tick:g}".replace("-", "−") if self.in_points else short_number(tick)

    def __call__(self, value: float) -> float:
        return round(self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low), 1)


class LogAxis(Axis):
    """A logarithmic axis for positive values, with given ticks."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, ticks: Sequence[float], padding: float = 0
    ) -> None:
        if not high > low:
            low, high = low / 2, high * 2
        super().__init__(math.log10(low), math.log10(high), start, end)
        self.padding = padding  # at both ends, so that the first and the last point do not lie on the frame
        self.ticks = [ticks[0]]
        for tick in ticks[1:-1]:  # of two ticks that would overlap, the first stays; both ends always stay
            if min(self(tick) - self(self.ticks[-1]), self(ticks[-1]) - self(tick)) >= 30:
                self.ticks.append(tick)
        self.ticks += ticks[1:][-1:]

    def __call__(self, value: float) -> float:
        within = (self.end - self.start - 2 * self.padding) / (self.end - self.start)
        return round(self.start + self.padding + within * (super().__call__(math.log10(value)) - self.start), 1)


def padded_range(*values: NDArray[Any]) -> tuple[float, float]:
    """Return a range that holds all finite values, with some padding."""
    joined = np.concatenate([np.atleast_1d(part) for part in values])
    finite = joined[np.isfinite(joined)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    padding = 0.04 * (high - low) or 0.01
    return low - padding, high + padding


def round_ticks(low: float, high: float, tick_count: int = 5, *, integers: bool = False) -> list[float]:
    """Return about `tick_count` round numbers within low … high."""
    rough = (high - low) / tick_count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * nice for nice in (1, 2, 2.5, 5, 10) if size * nice >= rough * 0.999)
    step = max(1.0, math.ceil(step)) if integers else step
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def short_number(value: float) -> str:
    """Format a tick in few characters: 20000 is 20k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.3g}".replace("-", "−")
