"""Plays a recording through the pipeline: as lines, as a summary, or served as if live."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

from sidecar.exposition import Board
from sidecar.frame_json import replay_line
from sidecar.launch import parse_arguments
from sidecar.model import Frame, Histogram
from sidecar.pipeline import Pipeline
from sidecar.recordings import Recording, RecordingError
from sidecar.runtime import Site, address_of, listen, run_together
from sidecar.settings import Settings, Thresholds
from sidecar.web.application import build_application

log = logging.getLogger(__name__)

_SUMMARY = (
    ("KV used", "kv_cache_usage_ratio", ()),
    ("running", "requests_running", ()),
    ("waiting", "requests_waiting", ()),
    ("preempted/s", "preemptions_per_second", ("60s",)),
    ("KV drop", "kv_cache_drop_ratio", ()),
    ("GPU drop", "gpu_memory_drop_ratio", ()),
)


def parse_speed(text: str | None, *, serve: bool) -> float:
    """How many times faster than it happened; infinity for `max`. Raises ValueError."""
    if text is None:
        return 1.0 if serve else math.inf
    if text == "max":
        return math.inf
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (0.0 < speed < math.inf):
        raise ValueError(f"{text!r} is neither a positive number nor max")
    return speed


def frames(recording: Recording, thresholds: Thresholds) -> Iterator[Frame]:
    """All frames of a recording, in order."""
    pipeline = Pipeline(thresholds, parse_arguments(recording.header.vllm_args))
    return (pipeline.advance(poll) for poll in recording.polls())


def write_json_lines(
    recording: Recording, thresholds: Thresholds, speed: float, out: TextIO
) -> None:
    """One JSON object a poll, as it would have been known then."""
    for frame in _paced(frames(recording, thresholds), speed):
        out.write(json.dumps(replay_line(frame), allow_nan=False) + "\n")
        if speed != math.inf:
            out.flush()


def print_summary(recording: Recording, thresholds: Thresholds, speed: float, out: TextIO) -> None:
    """A line for the last poll of each phase. What precedes a fault in the file is shown."""
    header = recording.header
    out.write(f"{header.name}, vLLM {header.vllm_version or 'of unknown release'}\n")
    titles = "".join(f"{title:>13}" for title, _, _ in _SUMMARY)
    out.write(f"{'seconds':>8}  {'phase':<10}{titles}\n")
    last: Frame | None = None
    try:
        for frame in _paced(frames(recording, thresholds), speed):
            if last is not None and frame.snapshot.phase != last.snapshot.phase:
                out.write(_summary_line(last, header.started_at))
            last = frame
    finally:
        if last is not None:
            out.write(_summary_line(last, header.started_at))


def _summary_line(frame: Frame, started_at: float) -> str:
    cells = "".join(f"{_cell(frame, name, tail):>13}" for _, name, tail in _SUMMARY)
    return f"{frame.at - started_at:>8.0f}  {frame.snapshot.phase or '-':<10}{cells}\n"


def _cell(frame: Frame, name: str, tail: tuple[str, ...]) -> str:
    """The largest value over engines, or a dash: a summary has one column for all of them."""
    values = [
        sample.value
        for sample in frame.samples
        if sample.declaration.name == name
        and sample.labels[2:] == tail
        and not isinstance(sample.value, Histogram)
    ]
    return f"{max(values):.3g}" if values else "-"


def _paced(source: Iterator[Frame], speed: float) -> Iterator[Frame]:
    previous: float | None = None
    for frame in source:
        if previous is not None and speed != math.inf:
            time.sleep(max(0.0, (frame.at - previous) / speed))
        previous = frame.at
        yield frame


async def run_replay_server(settings: Settings, recording: Recording, speed: float) -> int:
    """Serve a recording as if it happened now: times are moved to the present.

    At speed `max` its last frame is served at once. After the end, also one in the middle of an
    interrupted file, the last frame stays until a signal ends the command.
    """
    listener = listen(settings.host, settings.port)
    board = Board()
    log.info("replaying %s at %s", recording.header.name, address_of(listener))
    return await run_together(
        [("replay", _play(settings, recording, speed, board))],
        [Site(build_application(board), listener)],
    )


async def _play(settings: Settings, recording: Recording, speed: float, board: Board) -> None:
    pipeline = Pipeline(settings.thresholds, parse_arguments(recording.header.vllm_args))
    shift: float | None = None
    previous: float | None = None
    try:
        for poll in recording.polls():
            # Even without a pause, so that readers and signals get their turn.
            await asyncio.sleep(max(0.0, (poll.at - previous) / speed) if previous else 0.0)
            previous = poll.at
            shift = time.time() - poll.at if shift is None else shift
            frame = pipeline.advance(poll)
            board.publish(replace(frame, at=frame.at + shift))
    except RecordingError as error:
        if board.frame is None:
            raise
        log.error("%s; the last frame before it stays", error)
    else:
        log.info("the recording has ended; its last frame stays")
    await asyncio.Event().wait()
