"""Draws docs/images/three-indicators.svg from two recordings of a real server.

    python tools/picture.py            draws the picture
    python tools/picture.py --check    exits 1 when the committed picture differs

What is drawn are the sidecar's own figures, made by playing the recordings through it. The colours
are readable on white and on black, since nobody knows what the page behind is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

from generated import ROOT, main

from sidecar.model import Frame, Histogram
from sidecar.recordings import open_recording
from sidecar.replay import frames
from sidecar.settings import Thresholds

PATH = ROOT / "docs" / "images" / "three-indicators.svg"
RECORDINGS = ROOT / "tests" / "captures" / "recordings"

WIDTH, HEIGHT = 1020, 366
PLOT_WIDTH, PLOT_TOP, PLOT_BOTTOM = 264, 104, 290
PANEL_LEFTS = (44, 384, 724)
TEXT, GRID = "#6e7781", "#8c959f"
BLUE, ORANGE, RED, GREEN, PURPLE = "#218bff", "#d4761c", "#e5534b", "#2da44e", "#a371f7"

Points = list[tuple[float, float]]
STORM = {"c16": "16", "c128": "128 clients", "c8": "8"}


# -------------------------------------------------------------------------------------------------
# Figures


@dataclass(frozen=True, slots=True)
class Track:
    """The polls of a recording between two phases, with seconds counted from the first."""

    frames: Sequence[Frame]

    @property
    def seconds(self) -> float:
        return self.frames[-1].at - self.frames[0].at

    def points(self, name: str, *tail: str) -> Points:
        """An indicator over time, where it has a value. `tail` are the labels after the engine."""
        return [
            (frame.at - self.frames[0].at, sample.value)
            for frame in self.frames
            for sample in frame.samples
            if sample.declaration.name == name
            and sample.labels[2:] == tail
            and not isinstance(sample.value, Histogram)
        ]

    def starts(self, phase: str) -> float:
        """When a phase began."""
        return next(
            frame.at - self.frames[0].at for frame in self.frames if frame.snapshot.phase == phase
        )


def track(name: str, *phases: str) -> Track:
    """Play a recording and keep these phases of it."""
    played = frames(open_recording(RECORDINGS / f"{name}.jsonl.gz"), Thresholds())
    return Track([frame for frame in played if frame.snapshot.phase in phases])


def as_share(points: Points, until: float) -> Points:
    """Each value as a share of the median before `until`: of its plateau."""
    plateau = median(value for at, value in points if at < until)
    return [(at, value / plateau) for at, value in points]


# -------------------------------------------------------------------------------------------------
# Drawing


@dataclass(frozen=True, slots=True)
class Axes:
    """Where a plot is, and how seconds and values become places in it."""

    left: float
    seconds: float
    highest: float
    top: float = PLOT_TOP
    bottom: float = PLOT_BOTTOM

    def x(self, at: float) -> float:
        return self.left + PLOT_WIDTH * at / self.seconds

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.highest

    def frame(self, ticks: Iterable[tuple[float, str]]) -> str:
        """Horizontal lines with their values at the left."""
        right = self.left + PLOT_WIDTH
        return "".join(
            f'<path d="M{self.left} {self.y(value):.1f}H{right}" class="grid"/>'
            + label(self.left - 6, self.y(value) + 4, text, "end")
            for value, text in ticks
        )

    def line(self, points: Points, color: str) -> str:
        """A curve."""
        return f'<path d="{self._path(points)}" class="line" stroke="{color}"/>'

    def area(self, points: Points, color: str, base: float = 0.0) -> str:
        """What lies between a curve and a level."""
        start, end = self.x(points[0][0]), self.x(points[-1][0])
        level = self.y(base)
        outline = f"{self._path(points)}L{end:.1f} {level:.1f}L{start:.1f} {level:.1f}Z"
        return f'<path d="{outline}" fill="{color}" fill-opacity="0.25"/>'

    def dashed(self, value: float, color: str) -> str:
        """A level that something is judged by."""
        right = self.left + PLOT_WIDTH
        return (
            f'<path d="M{self.left} {self.y(value):.1f}H{right}" class="dashed" stroke="{color}"/>'
        )

    def loads(self, recorded: Track, names: Mapping[str, str]) -> str:
        """A vertical line where the load of a phase begins, with its name below."""
        end = label(self.left + PLOT_WIDTH, PLOT_BOTTOM + 16, f"{recorded.seconds:.0f} s", "end")
        return end + "".join(
            f'<path d="M{x:.1f} {PLOT_TOP}V{PLOT_BOTTOM + 5}" class="grid"/>'
            + label(x + 3, PLOT_BOTTOM + 16, name)
            for x, name in ((self.x(recorded.starts(phase)), name) for phase, name in names.items())
        )

    def _path(self, points: Points) -> str:
        places = [f"{self.x(at):.1f} {self.y(value):.1f}" for at, value in points]
        return "M" + "L".join(places)


def label(
    x: float, y: float, text: str, anchor: str = "start", *, kind: str = "", color: str = ""
) -> str:
    """A piece of text."""
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    attributes += f' fill="{color}"' if color else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'


def heading(left: float, title: str, saying: str) -> str:
    """The title of a plot and the sentence below it."""
    return label(left, 62, title, kind="title") + label(left, 80, saying)


def preemptions(left: float) -> str:
    """Running and waiting requests above, the preemption rate below."""
    storm = track("preempt-storm", "c16", "c128", "c8")
    requests = Axes(left, storm.seconds, 128, PLOT_TOP, 204)
    rate = Axes(left, storm.seconds, 6.5, 226, PLOT_BOTTOM)
    running, waiting = storm.points("requests_running"), storm.points("requests_waiting")
    preempted = storm.points("preemptions_per_second", "10s")
    return "".join(
        [
            heading(left, "1. Preemption rate", "128 long requests where 29 fit"),
            requests.loads(storm, STORM),
            requests.frame([(0, "0"), (64, "64"), (128, "128")]),
            requests.line(waiting, ORANGE),
            requests.line(running, BLUE),
            label(requests.x(15.5), requests.y(112), "running", color=BLUE),
            label(requests.x(26.5), requests.y(100), "waiting", color=ORANGE),
            rate.frame([(0, "0"), (6, "6/s")]),
            rate.area(preempted, RED),
            rate.line(preempted, RED),
            label(rate.x(27), rate.y(4.4), "preemptions/s", color=RED),
        ]
    )


def usage(left: float) -> str:
    """KV usage with the 50 % line; what is below it while requests run is under-use."""
    storm = track("preempt-storm", "c16", "c128", "c8")
    axes = Axes(left, storm.seconds, 1.0)
    points = storm.points("kv_cache_usage_ratio")
    spells: list[Points] = [[]]
    for at, value in points:
        if value < 0.5:
            spells[-1].append((at, value))
        elif spells[-1]:
            spells.append([])
    return "".join(
        [
            heading(left, "2. KV usage against 50 %", "low use is a fact, no fault"),
            axes.loads(storm, STORM),
            axes.frame([(0, "0"), (0.5, "50 %"), (1, "100 %")]),
            *(axes.area(spell, GREEN, 0.5) for spell in spells if spell),
            axes.dashed(0.5, TEXT),
            axes.line(points, GREEN),
            label(axes.x(11.5), axes.y(0.54), "below 50 %: under-use"),
            label(axes.x(17), axes.y(0.9), "KV usage", color=GREEN),
        ]
    )


def drop(left: float) -> str:
    """Concurrency, KV usage and GPU memory as shares of their plateau with 32 clients."""
    recorded = track("graphs-32-4-0", "c32", "c4")
    axes = Axes(left, recorded.seconds, 1.25)
    falls = recorded.starts("c4")
    return "".join(
        [
            heading(left, "3. Concurrency 32 to 4", "KV blocks come back, GPU memory stays"),
            axes.loads(recorded, {"c32": "32 clients", "c4": "4 clients"}),
            axes.frame([(0, "0"), (0.5, "50 %"), (1, "100 %")]),
            axes.line(as_share(recorded.points("kv_cache_usage_ratio"), falls), GREEN),
            axes.line(as_share(recorded.points("requests_running"), falls), BLUE),
            axes.line(as_share(_gpu_memory(recorded), falls), PURPLE),
            label(axes.x(23.5), axes.y(1.06), "GPU memory", color=PURPLE),
            label(axes.x(23.5), axes.y(0.42), "running", color=BLUE),
            label(axes.x(23.5), axes.y(0.29), "KV usage", color=GREEN),
        ]
    )


def _gpu_memory(recorded: Track) -> Points:
    start = recorded.frames[0].at
    return [
        (frame.at - start, sample.value)
        for frame in recorded.frames
        for sample in frame.samples
        if sample.declaration.name == "gpu_memory_used_bytes"
        and not isinstance(sample.value, Histogram)
    ]


def picture() -> str:
    """The whole SVG."""
    style = (
        "text{font:12px system-ui,sans-serif}"
        ".title{font-size:14px;font-weight:600}.head{font-size:17px;font-weight:600}"
        f".grid{{stroke:{GRID};stroke-opacity:.35;fill:none}}"
        ".line{fill:none;stroke-width:2;stroke-linejoin:round}"
        ".dashed{fill:none;stroke-width:1.5;stroke-dasharray:5 4}"
    )
    title = "Three indicators, recorded on a real H200, vLLM 0.25.0"
    spoken = (
        "Three plots over some forty seconds. First: with 128 clients, running requests fall from "
        "128 to 40 while waiting ones rise to 88 and up to 6 preemptions a second are counted. "
        "Second: KV usage is about a fifth with 16 clients, full with 128, an eighth with 8; below "
        "50 percent is shaded. Third: when 32 clients become 4, running requests and KV usage fall "
        "by about nine tenths and GPU memory does not move."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'fill="{TEXT}">',
        f"<title>{escape(title)}</title><desc>{escape(spoken)}</desc><style>{style}</style>",
        label(PANEL_LEFTS[0] - 28, 28, title, kind="head"),
        *(draw(left) for draw, left in zip((preemptions, usage, drop), PANEL_LEFTS, strict=True)),
        label(
            PANEL_LEFTS[0] - 28,
            HEIGHT - 18,
            "One poll a second; plots 1 and 2: preempt-storm, plot 3: graphs-32-4-0, "
            "each value as a share of its median with 32 clients.",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main(PATH, picture(), "Draw the picture of the three indicators."))
