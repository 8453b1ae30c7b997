"""Plots as SVG: lines, points and intervals over two axes. Knows numbers and pixels only; colours are classes that the page defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 18, 14, 46
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """Something drawn.

    Attributes:
        points: (x, y) in the units of the axes.
        kind: "line", "steps", "area", "points", "crosses", or "whiskers" (points are then x, low, high).
        colour: class that says its colour.
        name: for the legend; "" keeps it out.
        tips: of the points, shown when the mouse rests on them.
    """

    points: Sequence[tuple[float, ...]]
    kind: str = "line"
    colour: str = "c0"
    name: str = ""
    tips: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot.

    Attributes:
        title: with the unit.
        is_log: logarithmic; values must be above 0.
        low, high: where it begins and ends; None for what the data say.
    """

    title: str
    is_log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line across the plot, with a label: a limit.

    Attributes:
        direction: "x" for an upright line at that x, "y" for a level one.
    """

    at: float
    label: str
    direction: str = "y"


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        title: for readers that cannot see it.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    lines: Sequence[Line] = field(default_factory=tuple)

    def svg(self) -> str:
        """Return it as SVG; "" when there is nothing to draw."""
        points = [point for series in self.series for point in series.points]
        if not points:
            return ""
        xs = [point[0] for point in points] + [line.at for line in self.lines if line.direction == "x"]
        ys = [value for point in points for value in point[1:]] + [
            line.at for line in self.lines if line.direction == "y"
        ]
        to_x, ticks_x = _scale(xs, self.x, _LEFT, WIDTH - _RIGHT)
        to_y, ticks_y = _scale(ys, self.y, HEIGHT - _BOTTOM, _TOP)
        parts = [_grid(ticks_x, ticks_y, to_x, to_y), _titles(self.x, self.y)]
        parts += [_DRAWN[series.kind](series, to_x, to_y) for series in self.series]
        parts += [_line(line, to_x, to_y) for line in self.lines]
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">{"".join(parts)}</svg>{self._legend()}'

    def _legend(self) -> str:
        named = [series for series in self.series if series.name]
        if len(named) < 2:
            return ""
        items = "".join(f'<span><i class="{series.colour}"></i>{escape(series.name)}</span>' for series in named)
        return f'<p class="legend">{items}</p>'


Map = Callable[[float], float]


def _scale(values: Sequence[float], axis: Axis, begin: float, end: float) -> tuple[Map, list[tuple[float, str]]]:
    """Return (value -> pixel, ticks)."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.is_log)]
    if axis.is_log:
        low = axis.low or min(finite, default=1.0)
        high = max(axis.high or max(finite, default=10.0), low * 1.001)
        low_log, high_log = math.log10(low), math.log10(high)
        if axis.low is None:
            low_log -= 0.02 * (high_log - low_log)
        span = max(high_log - low_log, 1e-9)

        def to_log(value: float) -> float:
            share = (math.log10(value) - low_log) / span if value > 0 else 0.0
            return begin + max(0.0, min(share, 1.0)) * (end - begin)

        return to_log, _log_ticks(low_log, high_log)
    low = 0.0 if axis.low is None else axis.low
    top, step = _round_up(max((axis.high if axis.high is not None else max(finite, default=1.0)) - low, 0.0))
    if axis.high is not None:
        top = axis.high - low

    def to_linear(value: float) -> float:
        return begin + max(0.0, min((value - low) / top, 1.0)) * (end - begin)

    count = math.floor(top / step + 1e-9)
    return to_linear, [(low + index * step, f"{low + index * step:.4g}") for index in range(count + 1)]


def _round_up(largest: float) -> tuple[float, float]:
    """Return a round number at or above the largest value, and the step of the ticks below it."""
    if not largest > 0 or not math.isfinite(largest):
        return 1.0, 0.5
    rough = largest / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in _STEPS if factor * magnitude >= rough * (1 - 1e-9))
    return math.ceil(largest / step * (1 - 1e-9)) * step, step


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    return [(tick, f"{tick:g}") for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]


def _grid(ticks_x: list[tuple[float, str]], ticks_y: list[tuple[float, str]], to_x: Map, to_y: Map) -> str:
    parts = []
    for value, text in ticks_y:
        y = to_y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in ticks_x:
        x = to_x(value)
        parts.append(f'<line class="grid faint" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _titles(x: Axis, y: Axis) -> str:
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    return (
        f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>'
        f'<text class="axis" x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">{escape(y.title)}</text>'
    )


def _path(points: Sequence[tuple[float, ...]], to_x: Map, to_y: Map, *, is_stepped: bool) -> str:
    pieces: list[str] = []
    before = ""
    for point in points:
        x, y = f"{to_x(point[0]):.1f}", f"{to_y(point[1]):.1f}"
        pieces.append(f"M{x} {y}" if not pieces else f"H{x}V{y}" if is_stepped else f"L{x} {y}")
        before = x
    return "".join(pieces) if before else ""


def _lined(series: Series, to_x: Map, to_y: Map) -> str:
    d = _path(series.points, to_x, to_y, is_stepped=series.kind == "steps")
    return f'<path class="curve {series.colour}" d="{d}"/>'


def _area(series: Series, to_x: Map, to_y: Map) -> str:
    if not series.points:
        return ""
    d = _path(series.points, to_x, to_y, is_stepped=True)
    base = HEIGHT - _BOTTOM
    first, last = to_x(series.points[0][0]), to_x(series.points[-1][0])
    return f'<path class="area {series.colour}" d="{d}V{base}H{first:.1f}Z"/>' if last >= first else ""


def _dots(series: Series, to_x: Map, to_y: Map) -> str:
    tips = list(series.tips) or [""] * len(series.points)
    radius = 3.5 if len(series.points) < 60 else 1.8
    return "".join(
        f'<circle class="dot {series.colour}" cx="{to_x(point[0]):.1f}" cy="{to_y(point[1]):.1f}" r="{radius}">'
        + (f"<title>{escape(tip)}</title>" if tip else "")
        + "</circle>"
        for point, tip in zip(series.points, tips, strict=True)
    )


def _crosses(series: Series, to_x: Map, to_y: Map) -> str:
    parts = []
    for point in series.points:
        x, y = to_x(point[0]), to_y(point[1])
        parts.append(f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")
    return f'<path class="cross {series.colour}" d="{"".join(parts)}"/>'


def _whiskers(series: Series, to_x: Map, to_y: Map) -> str:
    parts = []
    for x_value, low, high in series.points:
        x, y_low, y_high = to_x(x_value), to_y(low), to_y(high)
        parts.append(f"M{x:.1f} {y_low:.1f}V{y_high:.1f}M{x - 5:.1f} {y_low:.1f}h10M{x - 5:.1f} {y_high:.1f}h10")
    return f'<path class="whisker {series.colour}" d="{"".join(parts)}"/>'


def _line(line: Line, to_x: Map, to_y: Map) -> str:
    label = escape(line.label)
    if line.direction == "x":
        x = to_x(line.at)
        return (
            f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
            f'<text class="limit-label" x="{x - 5:.1f}" y="{HEIGHT - _BOTTOM - 8}" text-anchor="end">{label}</text>'
        )
    y = to_y(line.at)
    return (
        f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-label" x="{WIDTH - _RIGHT - 4}" y="{y - 5:.1f}" text-anchor="end">{label}</text>'
    )


_DRAWN: dict[str, Callable[[Series, Map, Map], str]] = {
    "line": _lined,
    "steps": _lined,
    "area": _area,
    "points": _dots,
    "crosses": _crosses,
    "whiskers": _whiskers,
}
