"""Turns a few rows of figures into a recording whose counters fit them.

A report gives rates and gauges: tokens per second, running, waiting, KV usage. A `Stretch` is a
time in which they hold; counters integrate the rates, so that whoever takes differences of two
polls gets the figures back. Nothing is random: the same rows give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cases.pages import Engine, Release, Server, render

MIB = 2**20
GIB = 2**30
EPOCH = 1_750_000_000.0
"""When every recording starts: a fixed moment, since no verdict may depend on the date."""

Gauge = int | tuple[int, ...]
Gpus = list[dict[str, Any]]
GpusAt = Callable[[float], Gpus]
HostAt = Callable[[float], dict[str, int]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which figures hold.

    `running` and `waiting`: one value, or values taken in turn at each poll. `usage`: from and
    to, or values taken in turn where there are more than two. Rates are per second. Where
    `finished` is not given, as many finish as generation pays for (`Track.mean_generation`), and
    where `prompt` is not given, each that finishes is replaced by a new prompt, which keeps the
    tokens in the cache level. `ended` counts requests that finish at the first poll, with
    `ended_tokens` of prompt and generation each.
    """

    seconds: float
    running: Gauge = 0
    waiting: Gauge = 0
    usage: tuple[float, ...] = (0.0, 0.0)
    generation: float = 0.0
    prompt: float | None = None
    finished: float | None = None
    preempted: float = 0.0
    deferred: Gauge = 0
    swapped: int = 0
    every: float = 2.0
    phase: str | None = None
    error: str | None = None
    error_each: int = 1
    took: float = 0.008
    sleep: str = "awake"
    arrived: int = 0
    ended: int = 0
    ended_tokens: tuple[float, float] = (0.0, 0.0)
    restarted: bool = False
    gap: float = 0.0
    server: Server | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """One engine: its stretches and what was true before the first.

    `before` is the number of requests that finished earlier, `resident` the prompt and generated
    tokens of those that run at the first poll. `hit_ratio` is the share of prompt tokens found
    in the prefix cache. `budget` is the most tokens of a step, `step_factor` how often each step
    is counted (several API servers count it once each).
    """

    model: str
    stretches: Sequence[Stretch]
    mean_prompt: float = 500.0
    mean_generation: float = 300.0
    before: int = 100
    resident: tuple[float, float] = (0.0, 0.0)
    hit_ratio: float = 0.0
    prefix_caching: bool = False
    budget: int = 2048
    step_factor: int = 1
    index: str = "0"


@dataclass(frozen=True, slots=True)
class Plan:
    """A recording to be written."""

    server: Server
    tracks: Sequence[Track]
    arguments: Sequence[str] = ()
    gpus: GpusAt | None = None
    host: HostAt | None = None
    max_model_len: int | None = None
    version: str | None = None


def version_of(release: Release) -> str:
    """`(0, 25, 1)` as `0.25.1`."""
    return ".".join(map(str, release))


def recording(name: str, plan: Plan) -> bytes:
    """The gzipped JSON lines of the recording format, version 1."""
    lines = [_header(name, plan), *_polls(plan)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def _header(name: str, plan: Plan) -> dict[str, Any]:
    return {
        "format": "vllm-sidecar-recording",
        "version": 1,
        "name": name,
        "started_at": EPOCH,
        "period_seconds": plan.tracks[0].stretches[0].every,
        "vllm_version": plan.version or version_of(plan.server.release),
        "vllm_args": list(plan.arguments),
        "load": [],
    }


def _polls(plan: Plan) -> Iterator[dict[str, Any]]:
    engines = [_Running(track) for track in plan.tracks]
    server = plan.server
    at = 0.0
    for number, lead in enumerate(plan.tracks[0].stretches):
        server = lead.server or server
        at += lead.gap
        polls = max(1, round(lead.seconds / lead.every))
        for poll in range(polls):
            for engine in engines:
                engine.advance(engine.track.stretches[number], poll, polls)
            line: dict[str, Any] = {"at": round(EPOCH + at, 3)}
            if lead.phase is not None:
                line["phase"] = lead.phase
            if plan.max_model_len is not None:
                line["max_model_len"] = plan.max_model_len
            if lead.error is not None and poll % lead.error_each == lead.error_each - 1:
                line["vllm"] = {"error": lead.error}
            else:
                text = render(server, [engine.state for engine in engines])
                line["vllm"] = {"text": text, "seconds": lead.took}
            if plan.gpus is not None:
                line["gpus"] = plan.gpus(at)
            if plan.host is not None:
                line["host"] = plan.host(at)
            yield line
            at += lead.every


@dataclass(slots=True)
class _Running:
    track: Track
    state: Engine = field(init=False)
    _exact_finished: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin(self.track.before, self.track.resident)

    def _begin(self, before: int, resident: tuple[float, float]) -> None:
        track = self.track
        running = _in_turn(track.stretches[0].running, 0)
        self.state = Engine(
            track.model,
            track.index,
            prefix_caching=track.prefix_caching,
            prompt=before * track.mean_prompt + resident[0],
            generation=before * track.mean_generation + resident[1],
            finished=before,
            finished_prompt=before * track.mean_prompt,
            finished_generation=before * track.mean_generation,
            first_tokens=before + (running if any(resident) else 0),
        )
        self.state.hits = self.state.prompt * track.hit_ratio
        self._exact_finished = float(before)
        self._count_steps(self.state.prompt, self.state.generation, 8)

    def advance(self, stretch: Stretch, poll: int, polls: int) -> None:
        """Bring the state to this poll: the gauges of now, the counters of the time until now."""
        track, state = self.track, self.state
        if stretch.restarted and poll == 0:
            self._begin(0, (0.0, 0.0))
            state = self.state
        state.running = _in_turn(stretch.running, poll)
        state.waiting = _in_turn(stretch.waiting, poll)
        state.deferred = _in_turn(stretch.deferred, poll)
        state.swapped = stretch.swapped
        state.sleep = stretch.sleep
        state.usage = _usage(stretch.usage, poll, polls)
        seconds = stretch.every
        finished = stretch.finished
        if finished is None:
            finished = stretch.generation / track.mean_generation
        prompt = finished * track.mean_prompt if stretch.prompt is None else stretch.prompt
        arrived = stretch.arrived if poll == 0 else 0
        new_prompt = prompt * seconds + arrived * track.mean_prompt
        new_generation = stretch.generation * seconds
        state.prompt += new_prompt
        state.generation += new_generation
        state.hits += new_prompt * track.hit_ratio
        state.preemptions += stretch.preempted * seconds
        state.first_tokens += arrived + prompt * seconds / track.mean_prompt
        self._count_steps(new_prompt, new_generation, state.running)
        self._finish(finished * seconds, (track.mean_prompt, track.mean_generation))
        if poll == 0 and stretch.ended:
            self._finish(stretch.ended, stretch.ended_tokens)

    def _finish(self, requests: float, tokens: tuple[float, float]) -> None:
        """Whole requests only: their lengths enter the sums when they are counted."""
        self._exact_finished += requests
        whole = int(self._exact_finished + 1e-9) - int(self.state.finished)
        self.state.finished += whole
        self.state.finished_prompt += whole * tokens[0]
        self.state.finished_generation += whole * tokens[1]

    def _count_steps(self, prompt: float, generation: float, running: int) -> None:
        """Decoding steps give each running request a token; prompts fill steps to the budget."""
        factor = self.track.step_factor
        if running:
            self.state.step(running, generation / running * factor)
        chunk = min(self.track.budget, self.track.mean_prompt)
        self.state.step(chunk, prompt / chunk * factor)


def _in_turn(values: Gauge, poll: int) -> int:
    return values if isinstance(values, int) else values[poll % len(values)]


def _usage(values: tuple[float, ...], poll: int, polls: int) -> float:
    if len(values) == 2:
        start, end = values
        return start + (end - start) * (poll + 1) / polls
    return values[poll % len(values)]


def gpu(
    index: int,
    name: str,
    total_mib: float,
    processes: Mapping[int, float | None] | None,
    *,
    unowned_mib: float = 0.0,
    reserved_mib: float | None = 0.0,
    busy_percent: int = 0,
    titles: Mapping[int, str] | None = None,
    unified: bool = False,
) -> dict[str, Any]:
    """A device as a recording has it. `unowned_mib` is in use by no listed process."""
    total = round(total_mib * MIB)
    reserved = 0 if reserved_mib is None else round(reserved_mib * MIB)
    held = sum(mib or 0.0 for mib in (processes or {}).values())
    used = round((held + unowned_mib) * MIB)
    line: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08d}-0000-4000-8000-000000000000",
        "name": name,
        "memory": {
            "total": total,
            "reserved": None if reserved_mib is None else reserved,
            "used": used,
            "free": total - reserved - used,
        },
        "utilization": {"gpu": busy_percent, "memory": busy_percent // 3},
    }
    if processes is not None:
        line["processes"] = [
            {"pid": pid, "used": None if mib is None else round(mib * MIB)}
            | ({"title": titles[pid]} if titles and pid in titles else {})
            for pid, mib in processes.items()
        ]
    if unified:
        line["unified"] = True
    return line


def host(total_mib: float, available_mib: float, swap_used_mib: float) -> dict[str, int]:
    """The host's memory as a recording has it, with 16 GiB of swap."""
    swap = 16 * GIB
    return {
        "total": round(total_mib * MIB),
        "available": round(available_mib * MIB),
        "swap_total": swap,
        "swap_free": swap - round(swap_used_mib * MIB),
    }


def broken_gpu(index: int, name: str, error: str) -> dict[str, Any]:
    """A device of which nothing can be read."""
    return {
        "index": index,
        "uuid": f"GPU-{index:08d}-0000-4000-8000-000000000000",
        "name": name,
        "error": error,
    }
