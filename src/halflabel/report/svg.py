"""Charts as inline SVG, about 340 units wide, so that text has the same size on a phone and on a desktop.

Colours come from CSS classes, never from a style attribute, which the page's security policy forbids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.system.format import group_digits, points, shorten
from halflabel.system.html import Html, el, join
from halflabel.system.intervals import wilson


def padded_range(*values: NDArray[Any]) -> tuple[float, float]:
    """Return a range that holds all finite values, with some padding."""
    joined = np.concatenate([np.atleast_1d(part) for part in values])
    finite = joined[np.isfinite(joined)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    padding = 0.04 * (high - low) or 0.01
    return low - padding, high + padding


def round_ticks(low: float, high: float, tick_count: int = 5, *, integers: bool = False) -> list[float]:
    """Return about `tick_count` round numbers within low … high."""
    rough = (high - low) / tick_count or 0.2
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


def in_points(value: float) -> str:
    """Format a tick of 0 … 1 in points of 100."""
    return f"{100 * value:g}".replace("-", "−")


@dataclass
class Axis:
    """Maps values to page coordinates; `scale` is math.log10 on a logarithmic axis. Ticks default to round numbers."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()
    label: Callable[[float], str] = short_number
    scale: Callable[[float], float] = float

    def __post_init__(self) -> None:
        if not self.high > self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.ticks = self.ticks or round_ticks(self.low, self.high)

    def __call__(self, value: float) -> float:
        low, high = self.scale(self.low), self.scale(self.high)
        return round(self.start + (self.end - self.start) * (self.scale(value) - low) / (high - low), 1)


WIDTH = 340
ROW_HEIGHT = 18  # of charts with one row per class
NAME_WIDTH = 118  # left of the plot, for class names
_NAME_LETTERS = 18  # that fit into NAME_WIDTH
_MOST_POINTS = 200  # of a line
_HIT_RADIUS = 5  # of the invisible circles that show values of a curve
_TOP = 24  # top of a plot, below the label of its y axis
_LOW, _MIDDLE, _TALL = 144, 204, 244  # heights of charts


class Series(NamedTuple):
    """A line of a chart: its name, its points, the number of its colour (1 to 6), and the ends of intervals of y."""

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    shade: int = 1
    low: NDArray[Any] = np.zeros(0)
    high: NDArray[Any] = np.zeros(0)


def figure(chart: Html, title: str, caption: object = None, legend: Sequence[tuple[str, str]] = ()) -> Html:
    """Return a chart with title, caption and legend; legend items are (CSS class of the colour, meaning)."""
    keys = [el("li", el("span", class_=f"key {shade}"), meaning) for shade, meaning in legend]
    return el(
        "figure",
        el("figcaption", el("b", title), el("span", caption, class_="muted") if caption else None),
        el("ul", *keys, class_="legend") if keys else None,
        chart,
    )


def line_chart(
    name: str,
    x_values: NDArray[Any],
    y_values: NDArray[Any],
    *,
    alt: str,
    labels: tuple[str, str],
    mark: tuple[float, str] | None = None,
) -> Html:
    """Draw a line over integers such as epochs; `labels` of x and y, `mark`: an x to highlight, with a note."""
    finite = np.flatnonzero(np.isfinite(y_values))
    at = finite[np.unique(np.linspace(0, len(finite) - 1, _MOST_POINTS).astype(int))]
    ends, low, high = (float(x_values.min()), float(x_values.max())), y_values[at].min(), y_values[at].max()
    are_counts = bool((y_values[at] == np.rint(y_values[at])).all())
    x = Axis(*ends, 46, WIDTH - 10, round_ticks(*ends, integers=True))
    y = Axis(float(low), float(high), _MIDDLE - 34, _TOP, round_ticks(low, high, integers=True) if are_counts else ())
    places = list(zip(x_values[at].tolist(), y_values[at].tolist(), strict=True))
    parts = [_frame(x, y, labels), *([_mark(x, y, *mark)] if mark is not None else [])]
    parts.append(el("polyline", points=_path(x, y, places), class_="line s1"))
    radius, css = (2.5, "f1") if len(places) <= 30 else (_HIT_RADIUS, "hit")
    parts += [_circle(x(a), y(b), radius, css, f"{name} {b:.4g} at {a:g}") for a, b in places[:: -(-len(places) // 40)]]
    return _svg(parts, WIDTH, _MIDDLE, alt)


def stacked_bars(names: Sequence[str], counts: NDArray[Any], classes: Sequence[str], *, alt: str, total: float) -> Html:
    """Draw one bar per name with its counts (n, k) stacked; `total` is the count of a full-width bar."""
    parts = []
    x = Axis(0, total, NAME_WIDTH + 6, WIDTH - 6)
    for row, (name, values) in enumerate(zip(names, counts, strict=True)):
        top = 4 + row * ROW_HEIGHT
        parts.append(_row_name(name, top))
        left = 0.0
        for value, css in zip(values.tolist(), classes, strict=True):
            if value:
                width = round(x(left + value) - x(left), 1)
                tip = el("title", f"{shorten(name, 60)}: {group_digits(value)} {css}")
                box = {"x": x(left), "y": top, "width": max(width, 0.6), "height": ROW_HEIGHT - 5}
                parts.append(el("rect", tip, **box, class_=f"area {css}"))
            left += value
    return _svg(parts, WIDTH, 8 + ROW_HEIGHT * len(names), alt)


def interval_chart(
    names: Sequence[str],
    values: NDArray[Any],
    low: NDArray[Any],
    high: NDArray[Any],
    *,
    alt: str,
    reference: float,
    span: tuple[float, float] | None = None,
    dots: Sequence[NDArray[Any]] = (),
    hollow: Sequence[bool] = (),
    differences: bool = False,
    x_label: str = "",
) -> Html:
    """Draw one row per name: an AP or mAP and its interval; a vertical line marks `reference`.

    Values are 0 … 1 and labelled in points of 100, `differences` with a sign. With `dots`, one array per name, the
    value is a short line across them. Where `hollow`, the value is a ring: few positives support it.
    """
    bottom = 8 + ROW_HEIGHT * len(names)
    span = span or padded_range(values, low, high, *dots, np.array(reference))
    ticks = round_ticks(*span, 5 if span == (0, 1) else 4)
    ticks = ticks if len(ticks) > 2 else round_ticks(*span, 6)
    x = Axis(*span, NAME_WIDTH + 10, WIDTH - 12, ticks, in_points)
    parts = [_line(x(tick), 2, x(tick), bottom, "grid") for tick in x.ticks]
    parts += [_text(x.label(tick), x(tick), bottom + 14) for tick in x.ticks]
    if math.isfinite(reference):
        parts.append(_line(x(reference), 2, x(reference), bottom, "mark"))
    for row, (name, value, least, most) in enumerate(zip(names, values, low, high, strict=True)):
        top = 4 + row * ROW_HEIGHT
        middle = top + (ROW_HEIGHT - 5) / 2
        digits, dash = (2, "to") if differences else (1, "–")
        texts = [points(number, digits, signed=differences) for number in (value, least, most)]
        tip = f"{shorten(name, 60)}: {texts[0]} ({texts[1]} {dash} {texts[2]})"
        parts.append(_row_name(name, top))
        if math.isfinite(least) and math.isfinite(most):
            parts.append(_line(x(least), middle, x(most), middle, "whisker"))
        if dots:
            parts += [_circle(x(dot), middle, 3.5, "f1 seed") for dot in dots[row]]
            parts.append(_line(x(value), top - 1, x(value), top + ROW_HEIGHT - 4, "middle", tip))
        else:
            parts.append(_circle(x(value), middle, 4, "ring" if hollow and hollow[row] else "f1", tip))
    if x_label:
        parts.append(_text(x_label, (x.start + x.end) / 2, bottom + 30, class_="label"))
    return _svg(parts, WIDTH, bottom + (36 if x_label else 20), alt)


def interval_lines(
    series: Sequence[Series],
    *,
    alt: str,
    labels: tuple[str, str],
    ticks: Sequence[float] = (),
    fit: Sequence[NDArray[Any]] = (),
    mark: tuple[float, str] | None = None,
) -> Html:
    """Draw lines of mAP, in points of 100, with intervals over a logarithmic x axis.

    `fit` is a fitted curve (x, y, low, high), drawn instead of the lines. `mark` is an x to highlight, with a note.
    """
    all_x = np.unique(np.concatenate([line.x for line in series]))
    x_ticks = list(ticks) or all_x.tolist()
    x = Axis(min(all_x[0], *x_ticks) / 1.2, max(all_x[-1], *x_ticks) * 1.2, 46, WIDTH - 10, x_ticks, scale=math.log10)
    shown = x_ticks[:1]
    for tick in x_ticks[1:-1]:  # of two ticks that would overlap, the first stays; both ends always stay
        if min(x(tick) - x(shown[-1]), x(x_ticks[-1]) - x(tick)) >= 30:
            shown.append(tick)
    x.ticks = shown + x_ticks[1:][-1:]
    values = [part for line in series for part in (line.low, line.high, line.y)]
    y = Axis(*padded_range(*values, *fit[1:]), _TALL - 34, _TOP, label=in_points)
    parts = [_frame(x, y, labels)]
    if fit:
        fit_x, fit_y, down, up = ([float(number) for number in part] for part in fit)
        edge = [*zip(fit_x, up, strict=True), *zip(reversed(fit_x), reversed(down), strict=True)]
        parts.append(el("polygon", points=_path(x, y, edge), class_="f1", fill_opacity=0.15))
        dashed = {"class_": "line s1", "stroke_dasharray": "4 3"}
        parts.append(el("polyline", points=_path(x, y, zip(fit_x, fit_y, strict=True)), **dashed))
    if mark is not None:
        parts.append(_mark(x, y, *mark))
    for number, line in enumerate(series):
        shift = 2.5 * (number - (len(series) - 1) / 2)  # otherwise intervals at the same x would hide each other
        dots = [(round(x(a) + shift, 1), y(b)) for a, b in zip(line.x, line.y, strict=True)]
        if not fit:
            path = " ".join(f"{a},{b}" for a, b in dots)
            parts.append(el("polyline", points=path, class_=f"line s{line.shade}"))
        for (a, b), value, down, up, share in zip(dots, line.y, line.low, line.high, line.x, strict=True):
            tip = f"{line.name} at {share:g}: {points(value)} ({points(down)} – {points(up)})"
            parts.append(_line(a, y(down), a, y(up), f"s{line.shade}", stroke_opacity=0.5))
            parts.append(_circle(a, b, 3, f"f{line.shade}", tip))
    return _svg(parts, WIDTH, _TALL, alt)


class Reliability(NamedTuple):
    """Per bin of score: entries, mean score, share present and its 95 % interval; NaN where a bin is empty."""

    entries: NDArray[np.int64]  # (bins,)
    score: NDArray[np.float64]
    present: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def reliability(scores: NDArray[Any], labels: NDArray[Any], bins: int = 10) -> Reliability:
    """Compute mean score and share present of known entries (N, C), in equal bins of score."""
    known = labels != 0
    score, present = scores[known].astype(np.float64), labels[known] > 0
    number = np.minimum((score * bins).astype(np.int64), bins - 1)
    entries, score_sum, hits = (np.bincount(number, weight, bins) for weight in (None, score, present))
    with np.errstate(invalid="ignore", divide="ignore"):
        return Reliability(entries, score_sum / entries, hits / entries, *wilson(hits, entries))


def reliability_diagram(bins: Reliability, *, alt: str) -> Html:
    """Draw mean score against the share present, per bin with its interval; the dashed line is perfect calibration."""
    entries, score, present, low, high = bins
    x, y = Axis(0, 1, 46, WIDTH - 10), Axis(0, 1, 246, _TOP)
    parts = [_frame(x, y, ("mean score", "share that is present"))]
    parts.append(_line(x(0), y(0), x(1), y(1), "ideal"))
    filled = entries > 0
    path = _path(x, y, zip(score[filled], present[filled], strict=True))
    parts.append(el("polyline", points=path, class_="line s1"))
    for a, b, least, most, n in zip(*(part[filled] for part in (score, present, low, high, entries)), strict=True):
        tip = f"mean score {a:.3f}, present {b:.3f} ({least:.3f} – {most:.3f}), {group_digits(n)} entries"
        parts.append(_line(x(a), y(least), x(a), y(most), "whisker"))
        parts.append(_circle(x(a), y(b), 4, "f1", tip))
    return _svg(parts, WIDTH, 280, alt)


def histogram(
    counts: NDArray[Any],
    edges: NDArray[Any],
    css: str,
    *,
    alt: str,
    labels: tuple[str, str],
    log: bool = False,
    integers: bool = False,
) -> Html:
    """Draw a histogram: counts (bins,) between edges (bins + 1,), with `log` on a logarithmic height."""

    def scaled(value: float) -> float:
        return math.log10(1 + value) if log else float(value)

    most = max(float(counts.max()), 1.0)
    ends = float(edges[0]), float(edges[-1])
    x = Axis(*ends, 46, WIDTH - 10, round_ticks(*ends, integers=integers))
    y = Axis(0, scaled(most), _LOW - 34, _TOP)
    marks = (
        [0.0, *(10.0**k for k in range(int(math.log10(most)) + 1))] if log else round_ticks(0, most, 3, integers=True)
    )
    marked: list[tuple[float, str]] = []
    for mark in reversed(marks):  # from the top: of two ticks that overlap, the higher one stays
        if not marked or y(scaled(mark)) - marked[-1][0] >= 13:
            marked.append((y(scaled(mark)), short_number(mark)))
    parts = [_frame(x, y, labels, marked)]
    for number, value in enumerate(counts.tolist()):
        if value:
            left, right, top = x(edges[number]), x(edges[number + 1]), y(scaled(value))
            tip = el("title", f"{edges[number]:g} to {edges[number + 1]:g}: {group_digits(value)}")
            box = {"x": left + 0.3, "y": top, "width": round(right - left - 0.6, 1), "height": round(y.start - top, 1)}
            parts.append(el("rect", tip, **box, class_=f"area {css}"))
    return _svg(parts, WIDTH, _LOW, alt)


def _path(x: Axis, y: Axis, places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in places)


def _mark(x: Axis, y: Axis, value: float, note: str) -> Html:
    """Draw a vertical line at a value of x, with a note on the side that has more room."""
    place = x(value)
    side, shift = ("end", -4) if place > WIDTH * 0.6 else ("start", 4)
    return join(
        [_line(place, y.end, place, y.start, "mark"), _text(note, place + shift, y.start - 6, side, class_="note")]
    )


def _line(x1: float, y1: float, x2: float, y2: float, css: str, tip: str | None = None, **more: object) -> Html:
    return el("line", _tip(tip), x1=x1, x2=x2, y1=y1, y2=y2, class_=css, **more)


def _circle(x: float, y: float, radius: float, css: str, tip: str | None = None) -> Html:
    return el("circle", _tip(tip), cx=x, cy=y, r=radius, class_=css)


def _text(text: str, x: float, y: float, anchor: str = "middle", **more: object) -> Html:
    return el("text", text, x=x, y=y, text_anchor=anchor, **more)


def _tip(text: str | None) -> Html | None:
    """Return what is shown at the pointer."""
    return el("title", text) if text else None


def _svg(parts: Sequence[Html], width: int, height: float, alt: str) -> Html:
    return el("svg", *parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt, class_="chart")


def _frame(x: Axis, y: Axis, labels: tuple[str, str], y_marks: Sequence[tuple[float, str]] = ()) -> Html:
    """Draw grid, ticks and axis labels; the label of y stands above the plot, written horizontally."""
    x_label, y_label = labels
    parts = []
    for place, label in y_marks or [(y(tick), y.label(tick)) for tick in y.ticks]:
        parts += [_line(x.start, place, x.end, place, "grid"), _text(label, x.start - 5, place + 4, "end")]
    parts += [_text(x.label(tick), x(tick), y.start + 15) for tick in x.ticks]
    parts.append(_line(x.start, y.start, x.end, y.start, "axis"))
    parts.append(_text(x_label, (x.start + x.end) / 2, y.start + 30, class_="label"))
    if y_label:
        parts.append(el("text", y_label, x=0, y=11, class_="label"))
    return join(parts)


def _row_name(name: str, top: float) -> Html:
    tip = el("title", shorten(name, 200)) if len(name) > _NAME_LETTERS else None
    shown = shorten(name, _NAME_LETTERS)
    return el("text", shown, tip, x=NAME_WIDTH, y=round(top + 11, 1), text_anchor="end", class_="name")
