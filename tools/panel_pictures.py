"""Draws the dashboards' panels from real data: docs/images/dashboard-*.svg.

    python tools/panel_pictures.py

A Prometheus is filled with the recordings of a real server and asked every panel's own queries; it
must be installed. The pictures show what the panels show, not how Grafana draws it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import check_dashboards
from dashboard_parts import ENGINE_NAME
from panel_drawing import draw
from panel_shapes import FAINT, INK, PAPER, Box, Curve, text
from recorded_prometheus import Recorded, recorded_prometheus

ROOT = Path(__file__).resolve().parent.parent
DASHBOARDS = ROOT / "dashboards"
IMAGES = ROOT / "docs" / "images"
CELL_WIDTH, CELL_HEIGHT, GAP, TOP = 50.0, 26.0, 4.0, 46.0
ROW_HEIGHT = 26.0
DRAWN_BY = "drawn by tools/panel_pictures.py from Prometheus, not by Grafana"
LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a dashboard is shown with: a recording, and the seconds of it that are in view."""

    recording: str
    first: int
    last: int


SCENES = {
    "vllm-memory": Scene("preempt-storm", 45, 104),
    "vllm-kv-cache": Scene("preempt-storm", 45, 104),
    "vllm-gpu-memory": Scene("neighbour-grows", 60, 103),
    "vllm-sidecar": Scene("kill-restart", 40, 122),
}


def main() -> int:
    """Draw everything anew."""
    with tempfile.TemporaryDirectory() as folder, recorded_prometheus(Path(folder), every=1) as run:
        for slug, scene in SCENES.items():
            document = json.loads((DASHBOARDS / f"{slug}.json").read_text(encoding="utf-8"))
            path = IMAGES / f"dashboard-{slug.removeprefix('vllm-')}.svg"
            path.write_text(picture(document, scene, run), encoding="utf-8")
            print(f"{path.relative_to(ROOT)} written")
    return 0


def picture(document: dict[str, Any], scene: Scene, run: Recorded) -> str:
    """The whole dashboard as it would be at the end of the scene."""
    parts, bottom, shift = [], 0.0, TOP
    for panel in check_dashboards.panels(document):
        place = panel["gridPos"]
        y = shift + place["y"] * CELL_HEIGHT
        if panel["type"] == "row":
            parts.append(text(6, y + 17, panel["title"], size=13, weight=600))
            bottom = max(bottom, y + ROW_HEIGHT)
            continue
        box = Box(
            place["x"] * CELL_WIDTH + GAP / 2,
            y + GAP / 2,
            place["w"] * CELL_WIDTH - GAP,
            place["h"] * CELL_HEIGHT - GAP,
        )
        parts.append(draw(panel, list(_curves(panel, scene, run)), box, (scene.first, scene.last)))
        bottom = max(bottom, box.y + box.height)
    return _document(document["title"], scene, parts, bottom)


def _curves(panel: dict[str, Any], scene: Scene, run: Recorded) -> Iterator[Curve]:
    for target in panel["targets"]:
        expression = _asked(target["expr"], scene)
        if target["instant"]:
            found = run.instant(expression, scene.last)
        else:
            found = run.range(expression, scene.last - scene.first, step=1, first=scene.first)
        for series in found:
            labels = series["metric"]
            points = [(at - run.start, float(value)) for at, value in series["values"]]
            yield Curve(_name(target["legendFormat"], labels), points, labels)


def _asked(expression: str, scene: Scene) -> str:
    """The query of the scene's server, all engines and GPUs selected."""
    expression = expression.replace('instance=~"$instance"', f'instance=~"{scene.recording}"')
    expression = expression.replace("$__rate_interval", "5s")
    expression = expression.replace("$__range", f"{scene.last - scene.first}s")
    return check_dashboards.substituted(expression)


def _name(legend: str, labels: dict[str, str]) -> str:
    """The legend of a series without the server's name, which is the same for all."""
    legend = legend.replace(ENGINE_NAME, "engine {{engine}}")
    legend = re.sub(r"\{\{instance\}\} ?[/:]? ?", "", legend)
    named = LEGEND_LABEL.sub(lambda found: labels.get(found[1], ""), legend)
    return " ".join(named.replace("models/", "").split())


def _document(title: str, scene: Scene, parts: list[str], bottom: float) -> str:
    width, height = 24 * CELL_WIDTH, bottom + 8
    origin = (
        f"recording {scene.recording} of a real vLLM 0.25.0 on H200, "
        f"seconds {scene.first} to {scene.last}; {DRAWN_BY}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'role="img" font-family="system-ui,sans-serif" font-size="10" fill="{INK}">',
            f"<title>{escape(title)}</title><desc>{escape(origin)}</desc>",
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="{PAPER}"/>',
            text(6, 20, title, size=16, weight=600),
            text(6, 36, origin, size=11, color=FAINT),
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
