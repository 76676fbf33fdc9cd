"""What drawn panels are made of: places, pieces of text, and values as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

Json = dict[str, Any]
Points = list[tuple[float, float]]

INK, FAINT, EDGE, BACK, PAPER = "#24292f", "#6e7781", "#d0d7de", "#ffffff", "#f6f8fa"
PALETTE = (
    "#0969da", "#d4761c", "#2da44e", "#8250df", "#cf222e", "#1b7c83", "#bf8700", "#bf3989",
    "#57606a", "#4d7c0f",
)  # fmt: skip
NAMED = {
    "green": "#1a7f37",
    "blue": "#0969da",
    "orange": "#d4761c",
    "yellow": "#bf8700",
    "red": "#cf222e",
    "text": FAINT,
    "transparent": "#eaeef2",
}
HEADER, PADDING, LEGEND_LINE, CHARACTER = 22.0, 8.0, 13.0, 5.6
MOST_LEGENDS, MOST_ROWS = 8, 9


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a panel: its name in the legend, and `(seconds, value)`."""

    name: str
    points: Points
    labels: dict[str, str]

    @property
    def last(self) -> float:
        return self.points[-1][1] if self.points else math.nan


@dataclass(frozen=True, slots=True)
class Box:
    """Where a panel is, in pixels."""

    x: float
    y: float
    width: float
    height: float

    def inner(self) -> Box:
        """Without the title and the margin."""
        return Box(
            self.x + PADDING,
            self.y + HEADER,
            self.width - 2 * PADDING,
            self.height - HEADER - PADDING,
        )


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 10,
    color: str = INK,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    """A piece of text; the size and the colour of most of it are the document's."""
    extra = f' font-size="{size}"' if size != 10 else ""
    extra += f' fill="{color}"' if color != INK else ""
    extra += f' text-anchor="{anchor}"' if anchor != "start" else ""
    extra += f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{extra}>{escape(words)}</text>'


def said(value: float, unit: str) -> str:
    """A value as a person writes it in that unit."""
    if math.isnan(value):
        return "not available"
    value = 0.0 if abs(value) < 5e-4 and unit == "percentunit" else value
    if unit == "percentunit":
        return f"{value:.1%}" if 0 < abs(value) < 0.1 else f"{value:.0%}"
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit == "s":
        return f"{value * 1000:.1f} ms" if 0 < abs(value) < 1 else f"{value:,.3g} s"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return shown + (" /s" if unit == "reqps" else "")


def fitting(words: str, width: float) -> str:
    """The text, cut where it would not fit into so many pixels."""
    most = max(1, int(width / CHARACTER))
    return words if len(words) <= most else words[: most - 1] + "…"


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while abs(value) >= step and power < len(units) - 1:
        value /= step
        power += 1
    return f"{value:.3g} {units[power]}"


def words(box: Box, what: str) -> str:
    """What stands in the middle of a panel that has nothing to draw."""
    middle = box.x + box.width / 2
    return text(middle, box.y + box.height / 2, what, size=12, color=FAINT, anchor="middle")


def meaning(panel: Json, value: float) -> tuple[str | None, str]:
    """The word for a value, where it has one, and its colour."""
    defaults = panel["fieldConfig"]["defaults"]
    if math.isnan(value):
        return "not available", FAINT
    for mapping in defaults.get("mappings", []):
        if mapping["type"] == "value" and (found := mapping["options"].get(f"{value:g}")):
            return found["text"], NAMED[found["color"]]
    color = "blue"
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return None, NAMED[color]
