"""What it costs when ten clients read the sidecar's /metrics instead of one.

    python bench/readers.py

A frame is rendered once, whoever reads it, so the cost of a frame must not grow with its readers.
Exits 1 if ten readers cost more than half again as much as one, or read different texts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sidecar.exposition import Board
from sidecar.model import Frame, Page, Poll
from sidecar.pipeline import Pipeline

PAGE = Path(__file__).parents[1] / "tests/captures/pages/vllm-0.32.0-cpu-preempting.prom"
FRAMES = 200
MOST_RATIO = 1.5


def frames() -> list[Frame]:
    pipeline = Pipeline()
    page = Page(PAGE.read_text("utf-8"), 0.005)
    return [pipeline.advance(Poll(1.7e9 + n, page, None, "0.32.0")) for n in range(FRAMES)]


def milliseconds_a_frame(published: list[Frame], readers: int) -> float:
    """The best of three rounds, each on a board of its own."""
    best = float("inf")
    for _ in range(3):
        board = Board()
        began = time.perf_counter()
        for frame in published:
            board.publish(frame)
            texts = {board.render("text/plain")[0] for _ in range(readers)}
            if len(texts) != 1:
                raise AssertionError("readers of one frame got different texts")
        best = min(best, time.perf_counter() - began)
    return best * 1e3 / len(published)


def main() -> int:
    published = frames()
    one, ten = (milliseconds_a_frame(published, readers) for readers in (1, 10))
    print(f"one reader {one:.3f} ms a frame, ten readers {ten:.3f} ms: {ten / one:.2f} times")
    return int(ten > MOST_RATIO * one)


if __name__ == "__main__":
    sys.exit(main())
