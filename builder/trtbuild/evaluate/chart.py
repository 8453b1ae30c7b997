"""The plot of layer errors as SVG: bars for each layer's own error, a line for what errors add up to. Knows numbers and pixels only.

Colours are classes; the page that holds the picture says what they look like, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from trtbuild.evaluate.report import LayerError

_WIDTH, _HEIGHT = 960, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 40
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 5
#: Of a bar, in pixels.
_WIDEST = 56.0
#: Of the labels under the plot, at most so many.
_LABELS = 16


def own_error_plot(layers: Sequence[LayerError], *, culprit: LayerError, limit: float | None) -> str:
    """Return the bars; the culprit's is marked, and so is the limit if there is one. An error that is no number reaches the top."""
    finite = [layer.own for layer in layers if math.isfinite(layer.own)]
    top, ticks = scale(max([*finite, limit or 0.0], default=0.0))
    slot = _plot_width() / max(len(layers), 1)
    width = min(slot * 0.76, _WIDEST)
    bars = []
    for position, layer in enumerate(layers):
        height = _height(layer.own, top)
        kind = "bar culprit" if layer is culprit else "bar"
        bars.append(
            f'<rect class="{kind}" x="{_LEFT + (position + 0.5) * slot - width / 2:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}" '
            f'width="{width:.1f}" height="{max(height, 0.5):.1f}" rx="1.5"><title>{escape(_tip(layer))}</title></rect>'
        )
    line = ""
    if limit is not None:
        y = _HEIGHT - _BOTTOM - _height(limit, top)
        line = (
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="limit-label" x="{_WIDTH - _RIGHT - 4}" y="{y - 5:.1f}" text-anchor="end">limit {limit:g}</text>'
        )
    return _frame(layers, ticks, top, "".join(bars) + line, "error of each layer given the source's input")


def accumulated_plot(layers: Sequence[LayerError]) -> str:
    """Return the line; it has a gap where an error is no number."""
    finite = [layer.accumulated for layer in layers if math.isfinite(layer.accumulated)]
    top, ticks = scale(max(finite, default=0.0))
    slot = _plot_width() / max(len(layers), 1)
    points = [
        (_LEFT + (position + 0.5) * slot, _HEIGHT - _BOTTOM - _height(layer.accumulated, top), layer)
        for position, layer in enumerate(layers)
    ]
    parts = [
        f'<line class="curve" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
        for (x, y, layer), (to_x, to_y, following) in pairwise(points)
        if math.isfinite(layer.accumulated) and math.isfinite(following.accumulated)
    ]
    parts += [
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(_tip(layer))}</title></circle>'
        for x, y, layer in points
        if math.isfinite(layer.accumulated)
    ]
    return _frame(layers, ticks, top, "".join(parts), "error of each layer's output in the quantized model")


def scale(largest: float) -> tuple[float, list[float]]:
    """Return the top of an axis that starts at zero, and its ticks: round numbers, the last at or above `largest`."""
    if not largest > 0.0 or not math.isfinite(largest):
        return 1.0, [0.0, 0.5, 1.0]
    rough = largest / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in _STEPS if factor * magnitude >= rough * (1 - 1e-9))
    count = math.ceil(largest / step * (1 - 1e-9))
    return count * step, [number * step for number in range(count + 1)]


def _plot_width() -> float:
    return _WIDTH - _LEFT - _RIGHT


def _height(value: float, top: float) -> float:
    share = min(value / top, 1.0) if math.isfinite(value) else 1.0
    return share * (_HEIGHT - _TOP - _BOTTOM)


def _tip(layer: LayerError) -> str:
    linear = f"\nlargest in {layer.worst_linear}" if layer.worst_linear else ""
    return f"{layer.name}\nown error {layer.own:.4g}\naccumulated {layer.accumulated:.4g}{linear}"


def _frame(layers: Sequence[LayerError], ticks: Sequence[float], top: float, inside: str, label: str) -> str:
    grid = []
    for tick in ticks:
        y = _HEIGHT - _BOTTOM - _height(tick, top)
        grid.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>'
        )
    slot, every = _plot_width() / max(len(layers), 1), max(-(-len(layers) // _LABELS), 1)
    names = [
        f'<text class="tick" x="{_LEFT + (position + 0.5) * slot:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{layer.index}</text>'
        for position, layer in enumerate(layers)
        if position % every == 0
    ]
    axis = f'<text class="axis" x="{_LEFT + _plot_width() / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">decoder layer</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(grid)}{inside}{''.join(names)}{axis}</svg>"
    )
