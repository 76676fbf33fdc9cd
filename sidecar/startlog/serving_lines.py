"""Reads what a server at work prints: load, preemptions, sleep, pauses.

Wordings of the periodic line: V0 engines say pending and swapped; V1 engines of 0.7.1 and 0.7.2
leave out a comma; "Engine 000: " stands in front from 0.8.3; the device's name replaces "GPU" from
0.30.0; parts come and go in between.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeVar

from sidecar.startlog.amounts import NUMBER, SIZE, most, to_bytes, to_count, to_number
from sidecar.startlog.lines import LogLine
from sidecar.startlog.serving import (
    AllocatorRetry,
    ControlRequest,
    LoadLine,
    Preemption,
    PreemptionMode,
    Serving,
    Sleep,
)

_Event = TypeVar("_Event")

_RUNNING = re.compile(r"Running: (\d+) reqs")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d+) reqs")
_SWAPPED = re.compile(r"Swapped: (\d+) reqs")
_USAGE = re.compile(r"KV cache usage: (\d+(?:\.\d+)?)%")
_PROMPT_RATE = re.compile(rf"Avg prompt throughput: {NUMBER} tokens/s")
_GENERATION_RATE = re.compile(rf"Avg generation throughput: {NUMBER} tokens/s")
_PREEMPTED = re.compile(
    r"is preempted by (?:PreemptionMode\.)?(SWAP|RECOMPUTE) mode"
    r"(?:.{0,600}total_num_cumulative_preemption=(\d+))?"
)
_SLEPT = re.compile(rf"Sleep mode freed {SIZE} memory, {SIZE} memory is still in use")
_REQUEST = re.compile(
    r'"POST (/pause|/resume|/sleep|/wake_up)(?:\?(\S*))? HTTP/[\d.]+"(?: (\d{3}))?'
)
_RETRY = re.compile(
    r"failed with OOM on device (\d+) while trying to (?:allocate|map) (\d+) bytes "
    r"\(free: (\d+), total: (\d+)\)"
)
# A log of months may hold many of them; the newest say most.
_MOST_KEPT = 50


def read_serving(serving: Serving, line: LogLine, stamp: str | None) -> Serving:
    """Adds what a line says; `stamp` is the time of the line or of the last one that had a time."""
    text = line.text
    if "Running: " in text and (load := _load_line(text, stamp)):
        return _with_load(serving, load)
    if "is preempted by" in text and (found := _PREEMPTED.search(text)):
        usage = serving.last_load.kv_usage_ratio if serving.last_load else None
        mode: PreemptionMode = "SWAP" if found[1] == "SWAP" else "RECOMPUTE"
        preemption = Preemption(stamp, mode, to_count(found[2] or ""), usage)
        count = serving.preemption_warnings + 1
        return replace(serving, preemption_warnings=count, last_preemption=preemption)
    if "Sleep mode freed" in text and (found := _SLEPT.search(text)):
        return _with_sleep(serving, found, line.pid, stamp)
    if '"POST /' in text and (found := _REQUEST.search(text)):
        status = int(found[3]) if found[3] else None
        request = ControlRequest(stamp, found[1], found[2] or "", status)
        return replace(serving, control_requests=_newest(serving.control_requests, request))
    if "failed with OOM on device" in text and (found := _RETRY.search(text)):
        device, tried, free, total = (to_count(number) or 0 for number in found.groups())
        retry = AllocatorRetry(device, tried, free, total)
        count = serving.allocator_retries + 1
        return replace(serving, allocator_retries=count, last_allocator_retry=retry)
    if "Counters can only be incremented by non-negative" in text:
        return replace(serving, counter_errors=serving.counter_errors + 1)
    return serving


def _load_line(text: str, stamp: str | None) -> LoadLine | None:
    running = _RUNNING.search(text)
    if running is None:
        return None
    percent = _number(_USAGE, text)
    return LoadLine(
        stamp=stamp,
        running_requests=to_count(running[1]) or 0,
        waiting_requests=_count(_WAITING, text),
        swapped_requests=_count(_SWAPPED, text),
        kv_usage_ratio=None if percent is None else round(percent / 100, 6),
        prompt_tokens_per_second=_number(_PROMPT_RATE, text),
        generation_tokens_per_second=_number(_GENERATION_RATE, text),
    )


def _with_load(serving: Serving, load: LoadLine) -> Serving:
    return replace(
        serving,
        load_lines=serving.load_lines + 1,
        last_load=load,
        max_kv_usage_ratio=most(serving.max_kv_usage_ratio, load.kv_usage_ratio),
        max_running_requests=most(serving.max_running_requests, load.running_requests),
        max_waiting_requests=most(serving.max_waiting_requests, load.waiting_requests),
    )


def _with_sleep(
    serving: Serving, found: re.Match[str], pid: int | None, stamp: str | None
) -> Serving:
    freed, in_use = to_bytes(found[1], found[2]), to_bytes(found[3], found[4])
    if freed is None or in_use is None:
        return serving
    return replace(serving, sleeps=_newest(serving.sleeps, Sleep(stamp, pid, freed, in_use)))


def _newest(kept: tuple[_Event, ...], new: _Event) -> tuple[_Event, ...]:
    return (*kept[1 - _MOST_KEPT :], new)


def _count(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return to_count(found[1]) if found else None


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return to_number(found[1]) if found else None
