"""Recordings as the series that Prometheus would have scraped from a sidecar beside the server.

Each recording is played through the real pipeline, with vLLM's own log as a live sidecar would
have it: known once the server has answered, and at its end when it is gone. Times count from the
first poll, so that all recordings can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sidecar.exposition import families
from sidecar.launch import parse_arguments
from sidecar.model import Frame, Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.recordings import open_recording
from sidecar.startlog import read_log

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "captures" / "recordings"
NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))
SCRAPE_SECONDS = 5
JOB = "vllm-sidecar"

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


def play(
    name: str, *, slower: float = 1.0, change: Callable[[Poll], Poll] | None = None
) -> Iterator[tuple[float, Frame]]:
    """Seconds since the first poll, and the frame of it.

    With `slower` the whole recording is that many times as slow, which stretches a short storm
    over the minutes that alerts wait for. `change` may alter what a poll brought.
    """
    recording = open_recording(RECORDINGS / f"{name}.jsonl.gz")
    log = read_log(RECORDINGS / f"{name}.vllm.log.gz").last
    pipeline = Pipeline(flags=parse_arguments(recording.header.vllm_args))
    polls = list(recording.polls())
    comes_up = any(isinstance(poll.vllm, Page) for poll in polls)
    began = polls[0].at
    for recorded in polls:
        if pipeline.judge.lifecycle.ever_up or not comes_up:
            pipeline.judge.start = log
        seconds = (recorded.at - began) * slower
        poll = replace(recorded, at=began + seconds)
        yield seconds, pipeline.advance(change(poll) if change is not None else poll)


def scrapes(
    name: str,
    *,
    slower: float = 1.0,
    change: Callable[[Poll], Poll] | None = None,
    every: int = SCRAPE_SECONDS,
) -> Iterator[tuple[int, Frame]]:
    """What a scrape every few seconds sees: the newest frame at each."""
    due = 0
    newest: Frame | None = None
    for seconds, frame in play(name, slower=slower, change=change):
        while newest is not None and due < seconds:
            yield due, newest
            due += every
        newest = frame
    if newest is not None:
        yield due, newest


def samples(frame: Frame, instance: str) -> Iterator[tuple[Series, float]]:
    """Every sample of one scrape, with the labels that Prometheus adds, and `up`."""
    added = (("job", JOB), ("instance", instance))
    yield ("up", added), 1.0
    for family in families(frame):
        for sample in family.samples:
            yield (sample.name, (*added, *sample.labels.items())), float(sample.value)


def written(series: Series) -> str:
    """A series as PromQL and the text formats write it; empty labels are none."""
    name, labels = series
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels if value)
    return f"{name}{{{inside}}}"


def open_metrics(scraped: Iterable[tuple[int, Frame]], instance: str, start: int) -> Iterator[str]:
    """Lines for `promtool tsdb create-blocks-from openmetrics`, moved to begin at `start`."""
    for due, frame in scraped:
        shift = start + due - frame.at
        for series, value in samples(frame, instance):
            moved = value + shift if series[0].endswith("_timestamp_seconds") else value
            yield f"{written(series)} {moved!r} {start + due}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
