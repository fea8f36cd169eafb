"""Charts as inline SVG: a few kilobytes each, sharp at any size, in the page's own colours, light or dark.

They are drawn some 340 units wide and laid out side by side where there is room: text is as large on a phone as on a
desk. Colours come from classes, never from a style attribute, which the page's security policy forbids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.report.curves import thin
from halflabel.system.format import points
from halflabel.system.html import Html, count, el, join, short

__all__ = [
    "Series",
    "around",
    "bars",
    "calibration",
    "columns",
    "figure",
    "heat",
    "intervals",
    "lines",
    "recall_curve",
    "scatter",
    "trend",
]

WIDTH = 340
ROW = 18  # height of a line in charts with one line per class
NAMES = 118  # room for class names
_LETTERS = 18  # that fit there
_TOP = 24  # where a plot begins, below the name of its y axis


class Series(NamedTuple):
    """A line: its name, its points, and the number of its colour (1 to 6)."""

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    shade: int = 1


class _Axis:
    """Values to places on the page, and where to put the ticks."""

    def __init__(
        self,
        low: float,
        high: float,
        start: float,
        end: float,
        *,
        whole: bool = False,
        about: int = 5,
        points: bool = False,
    ) -> None:
        if not high > low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end = low, high, start, end
        self.ticks = _ticks(low, high, about, whole=whole)
        self.points = points  # whether values of 0 … 1 are written in points of 100

    def label(self, tick: float) -> str:
        return f"{100 * tick:g}".replace("-", "−") if self.points else _brief(tick)

    def __call__(self, value: float) -> float:
        return round(self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low), 1)


class _Log(_Axis):
    """The same for positive values by their logarithm. Without given ticks it reaches to round numbers."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, ticks: Sequence[float] = (), air: float = 0
    ) -> None:
        if not ticks:
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            steps = (1, 2, 5) if high > 4 * low else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
            nice = [size * 10.0**decade for decade in decades for size in steps]
            low = max(value for value in nice if value <= low * 1.0001)
            high = min((value for value in nice if value >= high * 0.9999), default=10 * nice[-1])
            ticks = [value for value in nice if low <= value <= high]
        if not high > low:
            low, high = low / 2, high * 2
        super().__init__(math.log10(low), math.log10(high), start, end)
        self.air = air  # room at both ends, so that the first and the last point do not lie on the frame
        self.ticks = [ticks[0]]
        for tick in ticks[1:-1]:  # of two that would touch, the first stays; both ends do
            if min(self(tick) - self(self.ticks[-1]), self(ticks[-1]) - self(tick)) >= 30:
                self.ticks.append(tick)
        self.ticks += ticks[1:][-1:]

    def __call__(self, value: float) -> float:
        within = (self.end - self.start - 2 * self.air) / (self.end - self.start)
        return round(self.start + self.air + within * (super().__call__(math.log10(value)) - self.start), 1)


def around(*values: NDArray[Any]) -> tuple[float, float]:
    """A range that holds all finite values, with a little air."""
    every = np.concatenate([np.atleast_1d(part) for part in values])
    finite = every[np.isfinite(every)]
    least, most = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    air = 0.04 * (most - least) or 0.01
    return least - air, most + air


def figure(chart: Html, title: str, caption: object = None, legend: Sequence[tuple[str, str]] = ()) -> Html:
    """A chart under its title, with what is to be said about it and a legend of (class of the colour, meaning)."""
    keys = [el("li", el("span", class_=f"key {shade}"), meaning) for shade, meaning in legend]
    return el(
        "figure",
        el("figcaption", el("b", title), el("span", caption, class_="said") if caption else None),
        el("ul", *keys, class_="legend") if keys else None,
        chart,
    )


def lines(
    series: Sequence[Series],
    *,
    alt: str,
    x_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    y_label: str = "",
    mark: tuple[float, str] | None = None,
    shape: str = ".4g",
    height: int = 204,
) -> Html:
    """Lines over whole numbers such as epochs; points that are not finite are passed over.

    `mark` is an x to point out, with a note; `shape` is how values are written.
    """
    kept = []
    for line in series:
        finite = np.isfinite(line.y)
        thinned = thin(line.x[finite].astype(np.float64), line.y[finite].astype(np.float64), 200)
        kept.append(Series(line.name, *thinned, line.shade))
    kept = [line for line in kept if len(line.x)]
    if not kept:
        return el("p", "nothing to draw", class_="none")
    xs, ys = (np.concatenate([line[part] for line in kept]) for part in (1, 2))
    low, high = y_range or (float(ys.min()), float(ys.max()))
    first, last = x_range or (float(xs.min()), float(xs.max()))
    x = _Axis(first, last, 46, WIDTH - 10, whole=True)
    y = _Axis(low, high, height - 34, _TOP, whole=y_range is None and bool((ys == np.rint(ys)).all()))
    parts = [_frame(x, y, x_label, y_label)]
    if mark is not None:
        at = x(mark[0])
        side = "end" if at > WIDTH * 0.6 else "start"
        parts.append(el("line", x1=at, x2=at, y1=y.end, y2=y.start, class_="mark"))
        note = {"x": at - 4 if side == "end" else at + 4, "y": y.start - 6, "text_anchor": side, "class_": "note"}
        parts.append(el("text", mark[1], **note))
    for line in kept:
        path = " ".join(f"{x(a)},{y(b)}" for a, b in zip(line.x, line.y, strict=True))
        parts.append(el("polyline", points=path, class_=f"line s{line.shade}"))
        if len(line.x) <= 30:
            dots = [
                el(
                    "circle",
                    el("title", f"{line.name} {b:{shape}} at {a:g}"),
                    cx=x(a),
                    cy=y(b),
                    r=2.5,
                    class_=f"f{line.shade}",
                )
                for a, b in zip(line.x, line.y, strict=True)
            ]
            parts += dots
    return _svg(parts, WIDTH, height, alt)


def bars(names: Sequence[str], counts: NDArray[Any], classes: Sequence[str], *, alt: str, whole: float) -> Html:
    """One line per name with its counts (n, k) stacked; `whole` is what a full line stands for."""
    parts = []
    x = _Axis(0, whole, NAMES + 6, WIDTH - 6)
    for row, (name, values) in enumerate(zip(names, counts, strict=True)):
        top = 4 + row * ROW
        parts.append(_name(name, top))
        left = 0.0
        for value, css in zip(values.tolist(), classes, strict=True):
            if value:
                width = round(x(left + value) - x(left), 1)
                tip = el("title", f"{short(name, 60)}: {count(value)} {css}")
                parts.append(
                    el("rect", tip, x=x(left), y=top, width=max(width, 0.6), height=ROW - 5, class_=f"area {css}")
                )
            left += value
    return _svg(parts, WIDTH, 8 + ROW * len(names), alt)


def intervals(
    names: Sequence[str],
    values: NDArray[Any],
    low: NDArray[Any],
    high: NDArray[Any],
    *,
    alt: str,
    mean: float,
    span: tuple[float, float] = (0, 1),
    dots: Sequence[NDArray[Any]] = (),
    weak: Sequence[bool] = (),
    differences: bool = False,
    x_label: str = "",
) -> Html:
    """One line per name with an AP or mAP within `span` and its interval; a line across marks the mean.

    They are given as 0 … 1 and written in points of 100; `differences` of them are written with a sign.
    With `dots`, one array per name, these are drawn instead of the value, which is then a short line across them. Where
    `weak`, the value is a ring: there is little behind it.
    """
    bottom = 8 + ROW * len(names)
    x = _Axis(*span, NAMES + 10, WIDTH - 12, about=5 if span == (0, 1) else 4, points=True)
    if len(x.ticks) < 3:
        x.ticks = _ticks(x.low, x.high, 6)
    parts = [el("line", x1=x(tick), x2=x(tick), y1=2, y2=bottom, class_="grid") for tick in x.ticks]
    parts += [el("text", x.label(tick), x=x(tick), y=bottom + 14, text_anchor="middle") for tick in x.ticks]
    if math.isfinite(mean):
        parts.append(el("line", x1=x(mean), x2=x(mean), y1=2, y2=bottom, class_="mark"))
    for row, (name, value, least, most) in enumerate(zip(names, values, low, high, strict=True)):
        top = 4 + row * ROW
        middle = top + (ROW - 5) / 2
        said, down, up = (points(one, 2 if differences else 1, signed=differences) for one in (value, least, most))
        tip = el("title", f"{short(name, 60)}: {said} ({down} {'to' if differences else '–'} {up})")
        parts.append(_name(name, top))
        if math.isfinite(least) and math.isfinite(most):
            parts.append(el("line", x1=x(least), x2=x(most), y1=middle, y2=middle, class_="whisker"))
        if dots:
            parts += [el("circle", cx=x(one), cy=middle, r=3.5, class_="f1 seed") for one in dots[row]]
            parts.append(el("line", tip, x1=x(value), x2=x(value), y1=top - 1, y2=top + ROW - 4, class_="middle"))
        else:
            ring = bool(weak) and bool(weak[row])
            parts.append(el("circle", tip, cx=x(value), cy=middle, r=4, class_="ring" if ring else "f1"))
    if x_label:
        middle = (x.start + x.end) / 2
        parts.append(el("text", x_label, x=middle, y=bottom + 30, text_anchor="middle", class_="label"))
    return _svg(parts, WIDTH, bottom + (36 if x_label else 20), alt)


def trend(
    series: Sequence[Series],
    low: Sequence[NDArray[Any]],
    high: Sequence[NDArray[Any]],
    *,
    alt: str,
    x_label: str,
    y_label: str = "",
    ticks: Sequence[float] = (),
    law: Sequence[NDArray[Any]] = (),
    mark: tuple[float, str] | None = None,
    height: int = 244,
) -> Html:
    """Lines of mAP, in points of 100, with intervals over a logarithmic axis whose ticks are the values of x.

    `ticks` are other ones. A `law` is what was fitted: x, y, low and high; it is drawn in the place of the lines, from
    the first to the last of the ticks. `mark` is an x to point out, with a note.
    """
    every = np.unique(np.concatenate([line.x for line in series]))
    marks = list(ticks) or every.tolist()
    ends = float(min(every[0], *marks)), float(max(every[-1], *marks))
    x = _Log(*ends, 46, WIDTH - 10, ticks=marks, air=16)
    y = _Axis(*around(*low, *high, *(line.y for line in series), *law[1:]), height - 34, _TOP, points=True)
    parts = [_frame(x, y, x_label, y_label)]
    if law:
        at, fitted, down, up = ([float(one) for one in part] for part in law)
        edge = [*zip(at, up, strict=True), *zip(reversed(at), reversed(down), strict=True)]
        parts.append(el("polygon", points=_path(x, y, edge), class_="f1", fill_opacity=0.15))
        dashed = {"class_": "line s1", "stroke_dasharray": "4 3"}
        parts.append(el("polyline", points=_path(x, y, zip(at, fitted, strict=True)), **dashed))
    if mark is not None:
        parts.append(el("line", x1=x(mark[0]), x2=x(mark[0]), y1=y.end, y2=y.start, class_="mark"))
        parts.append(el("text", mark[1], x=x(mark[0]) - 5, y=y.start - 6, text_anchor="end", class_="note"))
    for number, (line, least, most) in enumerate(zip(series, low, high, strict=True)):
        aside = 2.5 * (number - (len(series) - 1) / 2)  # else intervals at the same x would hide each other
        dots = [(round(x(a) + aside, 1), y(b)) for a, b in zip(line.x, line.y, strict=True)]
        if not law:
            path = " ".join(f"{a},{b}" for a, b in dots)
            parts.append(el("polyline", points=path, class_=f"line s{line.shade}"))
        for (a, b), value, down, up, share in zip(dots, line.y, least, most, line.x, strict=True):
            tip = el("title", f"{line.name} at {share:g}: {points(value)} ({points(down)} – {points(up)})")
            parts.append(el("line", x1=a, x2=a, y1=y(down), y2=y(up), class_=f"s{line.shade}", stroke_opacity=0.5))
            parts.append(el("circle", tip, cx=a, cy=b, r=3, class_=f"f{line.shade}"))
    return _svg(parts, WIDTH, height, alt)


def scatter(
    names: Sequence[str],
    x_values: NDArray[Any],
    y_values: NDArray[Any],
    *,
    alt: str,
    x_label: str,
    y_label: str = "",
    height: int = 244,
) -> Html:
    """A named point for each pair: y is mAP, in points of 100, and x is logarithmic and positive."""
    x = _Log(float(x_values.min()), float(x_values.max()), 46, WIDTH - 14)
    y = _Axis(*around(y_values, y_values.max() - 0.02), height - 44, _TOP + 8, points=True)
    parts = [_frame(x, y, x_label, y_label)]
    dots = [(x(a), y(b)) for a, b in zip(x_values, y_values, strict=True)]
    placed = [(a - 5, a + 5, b) for a, b in dots]  # left, right and middle of what a name may not cover
    for k in np.argsort(-y_values, kind="stable").tolist():
        (at, up), name = dots[k], short(names[k], 16)
        wide = 6.2 * len(name)
        right_of = at + 7 + wide <= WIDTH
        left = at + 7 if right_of else at - 7 - wide
        places = [up + sign * step for step in range(0, 60, 2) for sign in (1, -1)]
        free = [
            middle
            for middle in places
            if 6 < middle < y.start - 4
            and not any(a < left + wide and left < b and abs(c - middle) < 11 for a, b, c in placed)
        ]
        middle = free[0] if free else up
        placed.append((left, left + wide, middle))
        tip = el("title", f"{short(names[k], 60)}: {points(y_values[k])}, {x_values[k]:.3g} s")
        parts.append(el("circle", tip, cx=at, cy=up, r=4, class_="f1"))
        anchor = {"x": round(at + 7 if right_of else at - 7, 1), "text_anchor": "start" if right_of else "end"}
        parts.append(el("text", name, y=round(middle + 4, 1), class_="name", **anchor))
    return _svg(parts, WIDTH, height, alt)


def recall_curve(recall: NDArray[Any], precision: NDArray[Any], *, alt: str, at: tuple[float, float] | None) -> Html:
    """Precision over recall in a small square; `at` is the (recall, precision) of the chosen threshold."""
    x, y = _Axis(0, 1, 26, 154), _Axis(0, 1, 150, _TOP - 2)
    x.ticks = y.ticks = [0.0, 0.5, 1.0]
    path = " ".join(f"{x(a)},{y(b)}" for a, b in zip(*thin(recall, precision), strict=True))
    parts = [_frame(x, y, "recall", "precision")]
    # The curve is defined from its first cut on; before it the precision is that of the first.
    if len(recall):
        parts.append(el("polyline", points=f"{x(0)},{y(float(precision[0]))} {path}", class_="line s1"))
    if at is not None and np.isfinite(at).all():
        parts.append(el("circle", cx=x(at[0]), cy=y(at[1]), r=4.5, class_="dot"))
    return _svg(parts, 164, 184, alt)


def calibration(
    score: NDArray[Any],
    present: NDArray[Any],
    low: NDArray[Any],
    high: NDArray[Any],
    entries: NDArray[Any],
    *,
    alt: str,
) -> Html:
    """Mean score against the share that is present, per bin with its interval; on the dashed line all is well."""
    x, y = _Axis(0, 1, 46, WIDTH - 10), _Axis(0, 1, 246, _TOP)
    parts = [_frame(x, y, "mean score", "share that is present")]
    parts += [el("line", x1=x(0), y1=y(0), x2=x(1), y2=y(1), class_="ideal")]
    full = entries > 0
    path = " ".join(f"{x(a)},{y(b)}" for a, b in zip(score[full], present[full], strict=True))
    parts.append(el("polyline", points=path, class_="line s1"))
    for a, b, least, most, n in zip(*(part[full] for part in (score, present, low, high, entries)), strict=True):
        tip = el("title", f"mean score {a:.3f}, present {b:.3f} ({least:.3f} – {most:.3f}), {count(n)} entries")
        parts.append(el("line", x1=x(a), x2=x(a), y1=y(least), y2=y(most), class_="whisker"))
        parts.append(el("circle", tip, cx=x(a), cy=y(b), r=4, class_="f1"))
    return _svg(parts, WIDTH, 280, alt)


def columns(
    counts: NDArray[Any],
    edges: NDArray[Any],
    css: str,
    *,
    alt: str,
    x_label: str,
    y_label: str = "",
    log: bool = False,
    whole: bool = False,
    height: int = 144,
) -> Html:
    """A histogram: counts (bins,) between edges (bins + 1,); `log` makes few entries beside many visible.

    Where bins are for `whole` numbers, so are the ticks.
    """

    def scaled(value: float) -> float:
        return math.log10(1 + value) if log else float(value)

    most = max(float(counts.max()), 1.0)
    x = _Axis(float(edges[0]), float(edges[-1]), 46, WIDTH - 10, whole=whole)
    y = _Axis(0, scaled(most), height - 34, _TOP)
    marks = [0.0, *(10.0**k for k in range(int(math.log10(most)) + 1))] if log else _ticks(0, most, 3, whole=True)
    labels: list[tuple[float, str]] = []
    for mark in reversed(marks):  # from the top: of two ticks that touch, the higher one stays
        if not labels or y(scaled(mark)) - labels[-1][0] >= 13:
            labels.append((y(scaled(mark)), _brief(mark)))
    parts = [_frame(x, y, x_label, y_label, labels)]
    for number, value in enumerate(counts.tolist()):
        if value:
            left, right, top = x(edges[number]), x(edges[number + 1]), y(scaled(value))
            tip = el("title", f"{edges[number]:g} to {edges[number + 1]:g}: {count(value)}")
            box = {"x": left + 0.3, "y": top, "width": round(right - left - 0.6, 1), "height": round(y.start - top, 1)}
            parts.append(el("rect", tip, **box, class_=f"area {css}"))
    return _svg(parts, WIDTH, height, alt)


def heat(names: Sequence[str], values: NDArray[Any], tips: Sequence[Sequence[str]], *, alt: str) -> Html:
    """A square table (n, n) of shades, 0 … 1; a dot stands where a value is NaN, and nothing on the diagonal."""
    # The slanted names over the columns lean to the right, beyond the last of them.
    cell = min((WIDTH - NAMES - 46) / max(len(names), 1), 26.0)
    above = 84
    parts = []
    for row, name in enumerate(names):
        middle = above + (row + 0.5) * cell
        parts.append(_name(name, middle - (ROW - 5) / 2))
        at = round(NAMES + 6 + (row + 0.5) * cell, 1)
        parts.append(
            el("text", short(name, 14), transform=f"translate({at + 3} {above - 5}) rotate(-75)", class_="name")
        )
        for column in range(len(names)):
            box = {
                "x": round(NAMES + 6 + column * cell, 1),
                "y": round(above + row * cell, 1),
                "width": round(cell - 1, 1),
                "height": round(cell - 1, 1),
            }
            value = float(values[row, column])
            if row == column:
                continue
            tip = el("title", tips[row][column])
            if math.isnan(value):
                parts.append(el("rect", tip, class_="bed", **box))
                at, up = (round(box[side] + cell / 2 - 0.5, 1) for side in "xy")
                parts.append(el("circle", cx=at, cy=up, r=1.2, class_="none"))
            else:
                parts.append(el("rect", class_="bed", **box))
                parts.append(el("rect", tip, class_="heat", fill_opacity=f"{value:.2f}", **box))
    return _svg(parts, WIDTH, math.ceil(above + cell * len(names) + 4), alt)


def _path(x: _Axis, y: _Axis, places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in places)


def _svg(parts: Sequence[Html], width: int, height: float, alt: str) -> Html:
    return el("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt, class_="chart")


def _frame(
    x: _Axis, y: _Axis, x_label: str, y_label: str = "", y_marks: Sequence[tuple[float, str]] | None = None
) -> Html:
    """The grid with its ticks and the names of the axes; that of y stands above it, where it reads across."""
    marks = y_marks if y_marks is not None else [(y(tick), y.label(tick)) for tick in y.ticks]
    parts = []
    for place, label in marks:
        parts.append(el("line", x1=x.start, x2=x.end, y1=place, y2=place, class_="grid"))
        parts.append(el("text", label, x=x.start - 5, y=place + 4, text_anchor="end"))
    for tick in x.ticks:
        parts.append(el("text", x.label(tick), x=x(tick), y=y.start + 15, text_anchor="middle"))
    parts.append(el("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis"))
    if x_label:
        parts.append(el("text", x_label, x=(x.start + x.end) / 2, y=y.start + 30, text_anchor="middle", class_="label"))
    if y_label:
        parts.append(el("text", y_label, x=0, y=11, class_="label"))
    return join(parts)


def _name(name: str, top: float) -> Html:
    tip = el("title", short(name, 200)) if len(name) > _LETTERS else None
    return el("text", short(name, _LETTERS), tip, x=NAMES, y=round(top + 11, 1), text_anchor="end", class_="name")


def _ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers within low … high, some `about` of them."""
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * nice for nice in (1, 2, 2.5, 5, 10) if size * nice >= rough * 0.999)
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _brief(value: float) -> str:
    """A tick in few letters: 20000 is 20k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.3g}".replace("-", "−")
