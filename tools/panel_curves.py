"""Panels with an axis of time: curves and layers, bands of states, and the heatmap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from panel_shapes import (
    BACK,
    CHARACTER,
    EDGE,
    FAINT,
    INK,
    LEGEND_LINE,
    MOST_LEGENDS,
    MOST_ROWS,
    NAMED,
    PALETTE,
    Box,
    Curve,
    Json,
    Points,
    fitting,
    meaning,
    said,
    text,
    words,
)


@dataclass(frozen=True, slots=True)
class Plot:
    """Where seconds and values become places."""

    box: Box
    span: tuple[float, float]
    low: float
    high: float

    def x(self, at: float) -> float:
        first, last = self.span
        return self.box.x + self.box.width * (at - first) / (last - first)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.box.y + self.box.height * (1 - share)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(at):.0f} {self.y(value):.1f}" for at, value in points)

    def grid(self, unit: str) -> str:
        parts = []
        for value in (self.low, (self.low + self.high) / 2, self.high):
            y = self.y(value)
            right = self.box.x + self.box.width
            parts.append(f'<path d="M{self.box.x:.0f} {y:.0f}H{right:.0f}" stroke="{EDGE}"/>')
            parts.append(text(self.box.x - 4, y + 3, said(value, unit), color=FAINT, anchor="end"))
        return "".join(parts)


def lines(panel: Json, curves: Sequence[Curve], box: Box, span: tuple[float, float]) -> str:
    """Curves with their legend; stacked where the panel stacks them."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    drawn = [c for c in curves if any(not math.isnan(value) for _, value in c.points)]
    legends, used = _legend(curves, drawn, box)
    if not drawn:
        return legends + words(box, "not available")
    area = Box(box.x + 52, box.y + 4, box.width - 56, box.height - used - 8)
    is_stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    layers = _stacked(drawn) if is_stacked else [(c.points, None) for c in drawn]
    values = [v for points, _ in layers for _, v in points if not math.isnan(v)]
    low, high = min([0.0, *values]), max([*values, 0.0])
    if unit == "percentunit":
        low, high = min(0.0, low), 1.0
    plot = Plot(area, span, low, high if high > low else low + 1.0)
    parts = [plot.grid(unit)]
    if defaults.get("custom", {}).get("thresholdsStyle", {}).get("mode") == "dashed":
        for step in defaults["thresholds"]["steps"][1:]:
            if plot.low < step["value"] < plot.high:
                y, right = plot.y(step["value"]), area.x + area.width
                parts.append(
                    f'<path d="M{area.x:.0f} {y:.1f}H{right:.0f}" stroke="{NAMED["orange"]}" '
                    'stroke-dasharray="4 3"/>'
                )
    for number, (points, below) in enumerate(layers):
        color = PALETTE[number % len(PALETTE)]
        whole = [(at, value) for at, value in points if not math.isnan(value)]
        if below is not None:
            outline = plot.path([*whole, *reversed(below)])
            parts.append(f'<path d="{outline}Z" fill="{color}" fill-opacity=".55"/>')
        else:
            parts.extend(
                f'<path d="{plot.path(piece)}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                for piece in _pieces(whole)
            )
    return "".join(parts) + legends


def _pieces(points: Points) -> Iterable[Points]:
    """A gap in the data is a gap in the curve."""
    if not points:
        return
    steps = sorted(b[0] - a[0] for a, b in pairwise(points))
    gap = 1.6 * steps[len(steps) // 2] if steps else math.inf
    piece = [points[0]]
    for point in points[1:]:
        if point[0] - piece[-1][0] > gap:
            yield piece
            piece = []
        piece.append(point)
    yield piece


def _stacked(curves: Sequence[Curve]) -> list[tuple[Points, Points | None]]:
    """Each layer's upper edge and the one below it."""
    moments = sorted({at for curve in curves for at, _ in curve.points})
    below: Points = [(at, 0.0) for at in moments]
    layers: list[tuple[Points, Points | None]] = []
    for curve in curves:
        own = dict(curve.points)
        upper = [(at, level + own.get(at, 0.0)) for at, level in below]
        layers.append((upper, below))
        below = upper
    return layers


def _legend(curves: Sequence[Curve], drawn: Sequence[Curve], box: Box) -> tuple[str, float]:
    """Names of the curves below the plot, two in a line, and the height that they take."""
    entries = [(PALETTE[n % len(PALETTE)], curve.name) for n, curve in enumerate(drawn)]
    entries += [("", curve.name) for curve in curves if curve not in drawn]
    entries = entries[:MOST_LEGENDS]
    columns = max(1, int(box.width / 210))
    lines = math.ceil(len(entries) / columns)
    used = lines * LEGEND_LINE
    width, parts = box.width / columns, []
    for number, (color, name) in enumerate(entries):
        x = box.x + width * (number % columns)
        y = box.y + box.height - used + LEGEND_LINE * (number // columns) + 11
        if color:
            parts.append(
                f'<rect x="{x:.0f}" y="{y - 6:.0f}" width="10" height="3" fill="{color}"/>'
            )
        parts.append(text(x + 14, y, fitting(name, width - 18), color=INK if color else FAINT))
    return "".join(parts), used


def states(panel: Json, curves: Sequence[Curve], box: Box, span: tuple[float, float]) -> str:
    """A band for each series, coloured by what its value is called."""
    shown = [c for c in curves if any(not math.isnan(value) for _, value in c.points)][:MOST_ROWS]
    left = min(190.0, box.width * 0.4)
    area = Box(box.x + left, box.y, box.width - left, box.height)
    plot = Plot(area, span, 0, 1)
    row = min(24.0, area.height / max(1, len(shown)))
    parts = []
    for number, curve in enumerate(shown):
        y = area.y + row * number
        name = fitting(curve.name, left - 6)
        parts.append(text(area.x - 6, y + row / 2 + 3, name, anchor="end"))
        for first, last, value in _bands(curve.points):
            word, color = meaning(panel, value)
            x, width = plot.x(first), plot.x(last) - plot.x(first)
            parts.append(
                f'<rect x="{x:.0f}" y="{y + 2:.0f}" width="{width:.0f}" height="{row - 4:.0f}" '
                f'fill="{color}" fill-opacity=".75"/>'
            )
            if word and width > len(word) * CHARACTER + 6:
                ink = FAINT if color == NAMED["transparent"] else BACK
                parts.append(text(x + 4, y + row / 2 + 3, word, color=ink))
    return "".join(parts)


def _bands(points: Points) -> Iterable[tuple[float, float, float]]:
    """Stretches of one value."""
    for piece in _pieces(points):
        step = piece[1][0] - piece[0][0] if len(piece) > 1 else 1.0
        first, value = piece[0]
        for at, here in piece[1:]:
            if here != value:
                yield first, at, value
                first, value = at, here
        yield first, piece[-1][0] + step, value


def heat(_: Json, curves: Sequence[Curve], box: Box, span: tuple[float, float]) -> str:
    """How often each value was seen, from the cumulative buckets."""
    bounds = sorted((float(curve.labels["le"]), curve) for curve in curves)
    bounds = [(bound, curve) for bound, curve in bounds if bound <= 1.0]
    area = Box(box.x + 40, box.y + 4, box.width - 44, box.height - 10)
    plot = Plot(area, span, 0, 1)
    below: dict[float, float] = {}
    cells, floor = [], 0.0
    for bound, curve in bounds:
        for (at, value), (after, _value) in pairwise(curve.points):
            if (count := value - below.get(at, 0.0)) > 0.01:
                cells.append((at, after, floor, bound, count))
        below, floor = dict(curve.points), bound
    most = max((cell[4] for cell in cells), default=1.0)
    parts = [plot.grid("percentunit")]
    for at, after, low, high, count in cells:
        top = plot.y(high)
        parts.append(
            f'<rect x="{plot.x(at):.0f}" y="{top:.1f}" width="{plot.x(after) - plot.x(at):.1f}" '
            f'height="{plot.y(low) - top:.1f}" fill="{NAMED["blue"]}" '
            f'fill-opacity="{0.2 + 0.8 * count / most:.2f}"/>'
        )
    return "".join(parts)
