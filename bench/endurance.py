"""Whether memory stays flat: recordings played over and over, a poll a second, for hours.

    python bench/endurance.py            three hours of polls, in about a minute
    python bench/endurance.py --day      86,400 polls

Every server of the recordings comes and goes again and again, so that starts, restarts, silence,
storms and sleep all happen. Times move forward a second a poll. Prints what the process holds and
what a poll costs, each half hour of polls; exits 1 if it grew by 10 MB or more after the first
hour, which the history keeps.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sidecar.exposition import Board
from sidecar.model import Poll
from sidecar.pipeline import Pipeline
from sidecar.recordings import open_recording

RECORDINGS = Path(__file__).parents[1] / "tests/captures/recordings"
HOUR = 3_600
DAY = 24 * HOUR
PERIOD = HOUR // 2
"""Polls between two lines."""
MOST_GROWTH_MB = 10.0


def polls() -> Iterator[Poll]:
    """All recordings in a row, again and again, a second apart."""
    kept = [
        poll
        for path in sorted(RECORDINGS.glob("*.jsonl.gz"))
        for poll in open_recording(path).polls()
    ]
    for second, poll in enumerate(itertools.cycle(kept)):
        yield replace(poll, at=1.7e9 + second)


def resident_mb() -> float:
    """What the process holds in memory, by the kernel's account (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description="Play recordings for hours and watch memory.")
    parser.add_argument("--day", action="store_true", help="86,400 polls instead of 10,800")
    parser.add_argument("--trace", action="store_true", help="show Python's own account, slower")
    given = parser.parse_args()
    if given.trace:
        tracemalloc.start()
    pipeline, board = Pipeline(), Board()
    before, after_an_hour, grown = time.process_time(), 0.0, 0.0
    for number, poll in enumerate(itertools.islice(polls(), DAY if given.day else 3 * HOUR), 1):
        board.publish(pipeline.advance(poll))
        board.render("")
        if number % PERIOD:
            continue
        held = resident_mb()
        after_an_hour = held if number == HOUR else after_an_hour
        grown = held - after_an_hour if number > HOUR else 0.0
        spent = (time.process_time() - before) / PERIOD * 1e3
        before = time.process_time()
        traced = (
            f", Python {tracemalloc.get_traced_memory()[0] / 1e6:.1f} MB" if given.trace else ""
        )
        print(
            f"{number / HOUR:5.1f} h: {held:6.1f} MB{traced}, {spent:.2f} ms of CPU a poll",
            flush=True,
        )
    print(f"grew by {grown:.1f} MB after the first hour")
    return int(grown >= MOST_GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
