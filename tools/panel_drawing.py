"""Draws one panel of a dashboard as SVG, from its JSON and the series that Prometheus answered.

Not Grafana's own drawing: plain shapes that show the same series with the same names, units and
words, small enough for a README and readable on any page.
"""

from __future__ import annotations

from collections.abc import Sequence

from panel_curves import heat, lines, states
from panel_shapes import (
    BACK,
    CHARACTER,
    EDGE,
    FAINT,
    INK,
    MOST_ROWS,
    NAMED,
    PADDING,
    Box,
    Curve,
    Json,
    fitting,
    meaning,
    said,
    text,
    words,
)


def draw(panel: Json, curves: Sequence[Curve], box: Box, span: tuple[float, float]) -> str:
    """The whole panel: a card with its title, and what its kind shows."""
    title = panel["title"].replace("$gpu", "0")
    card = (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        f'rx="3" fill="{BACK}" stroke="{EDGE}"/>'
    )
    heading = text(box.x + PADDING, box.y + 15, title, size=12, weight=600)
    kinds = {"stat": _stat, "state-timeline": states, "heatmap": heat, "table": _table}
    kind = kinds.get(panel["type"], lines)
    body = kind(panel, curves, box.inner(), span) if curves else words(box.inner(), "No data")
    return card + heading + body


def _stat(panel: Json, curves: Sequence[Curve], box: Box, _: tuple[float, float]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    shown = curves[:4]
    width = box.width / len(shown)
    parts = []
    for number, curve in enumerate(shown):
        word, color = meaning(panel, curve.last)
        value = word or said(curve.last, unit)
        middle = box.x + width * (number + 0.5)
        size = int(max(9, min(24, width / max(1, len(value)) * 1.6)))
        parts.append(
            text(middle, box.y + box.height / 2 + 8, value, size=size, color=color,
                 anchor="middle", weight=600)
        )  # fmt: skip
        parts.append(
            text(middle, box.y + box.height - 2, fitting(curve.name, width), color=FAINT,
                 anchor="middle")
        )  # fmt: skip
    return "".join(parts)


def _table(panel: Json, curves: Sequence[Curve], box: Box, _: tuple[float, float]) -> str:
    columns: list[str] = panel["transformations"][1]["options"]["include"]["names"]
    looks = {
        each["matcher"]["options"]: {prop["id"]: prop["value"] for prop in each["properties"]}
        for each in panel["fieldConfig"]["overrides"]
    }
    rows = [[curve.labels.get(name, "") for name in columns] for curve in curves]
    shown = [
        [_replaced(value, looks.get(name, {})) for name, value in zip(columns, row, strict=True)]
        for row in rows[:MOST_ROWS]
    ]
    heads = [looks.get(name, {}).get("displayName", name) for name in columns]
    longest = [max(len(cell) for cell in column) + 2 for column in zip(heads, *shown, strict=True)]
    scale = min(CHARACTER, box.width / sum(longest))
    parts, y = [], box.y + 12
    for line, cells in enumerate([heads, *shown]):
        x = box.x
        if y > box.y + box.height:
            break
        for cell, length in zip(cells, longest, strict=True):
            color = {"critical": NAMED["red"], "warning": NAMED["orange"]}.get(cell, INK)
            cut = fitting(cell, length * scale)
            parts.append(text(x, y, cut, color=FAINT if line == 0 else color))
            x += length * scale
        y += 15
    return "".join(parts)


def _replaced(value: str, look: Json) -> str:
    """A cell with the words that the column's mappings put in its place."""
    for mapping in look.get("mappings", []):
        if value in mapping["options"]:
            return str(mapping["options"][value]["text"])
    return value
