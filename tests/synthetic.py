"""Small histories made by hand, for tests of one indicator at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sidecar.history import History
from sidecar.indicators import measure
from sidecar.model import (
    CacheConfig,
    EngineReading,
    Failure,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuReport,
    Histogram,
    ServerReading,
    Snapshot,
)
from sidecar.settings import Thresholds

GIB = 2**30
CACHE = CacheConfig(
    block_size=16,
    num_gpu_blocks=1_001,
    kv_cache_size_tokens=16_016,
    kv_cache_memory_bytes=None,
    num_gpu_blocks_override=None,
    gpu_memory_utilization=0.9,
    labels={},
)
IDLE = EngineReading(
    model_name="m",
    engine="0",
    kv_usage_ratio=0.0,
    running=0.0,
    waiting=0.0,
    preemptions_total=0.0,
    prompt_tokens_total=0.0,
    generation_tokens_total=0.0,
    finished_total=0.0,
    first_tokens_total=0.0,
    finished_prompt_tokens_total=0.0,
    finished_generation_tokens_total=0.0,
    prefix_queries_total=0.0,
    prefix_hits_total=0.0,
    sleeping=False,
    cache=CACHE,
)


def engine(**fields: Any) -> EngineReading:
    """An engine that idles, but for the given fields."""
    return replace(IDLE, **fields)


def gpu(used: int, processes: dict[int, int | None] | None = None, *, index: int = 0) -> GpuReading:
    """An 80 GiB device with so many GiB in use, and processes by pid with theirs in bytes."""
    return GpuReading(
        index=index,
        uuid=f"GPU-{index}",
        name="test",
        memory=GpuMemory(80 * GIB, used * GIB, (80 - used) * GIB, 0),
        processes=None
        if processes is None
        else tuple(GpuProcess(pid, held) for pid, held in processes.items()),
    )


def snapshot(
    at: float,
    *engines: EngineReading,
    gpus: Iterable[GpuReading] | None = None,
    started: float | None = 1.0,
    failure: str | None = None,
    version: str | None = "0.25.0",
) -> Snapshot:
    """One poll: a page with these engines, or a failure, or (neither) nothing new."""
    return Snapshot(
        at=at,
        server=ServerReading(engines, started, "vllm:", "kv_cache_usage_perc") if engines else None,
        failure=Failure(failure) if failure else None,
        gpus=None if gpus is None else GpuReport(tuple(gpus), 0.0),
        vllm_version=version,
    )


def history(*snapshots: Snapshot, thresholds: Thresholds | None = None) -> History:
    """A history that has seen these polls."""
    seen = History(thresholds)
    for one in snapshots:
        seen.add(one)
    return seen


def measured(seen: History, name: str, *labels: str) -> float | None:
    """The value of an indicator whose labels end in the given ones, or None."""
    samples, _ = measure(seen)
    found = [
        sample.value
        for sample in samples
        if sample.declaration.name == name
        and sample.labels[len(sample.labels) - len(labels) :] == labels
    ]
    assert len(found) <= 1, f"{name} is ambiguous"
    if not found:
        return None
    assert not isinstance(found[0], Histogram)
    return found[0]


def reason(seen: History, name: str) -> str | None:
    """Why an indicator is not there, or None where it is or does not apply."""
    _, unavailable = measure(seen)
    found = {item.reason for item in unavailable if item.declaration.name == name}
    assert len(found) <= 1
    return found.pop() if found else None
