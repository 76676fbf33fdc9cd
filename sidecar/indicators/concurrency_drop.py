"""Does memory come back when concurrency falls, say from 32 clients to 4?

GPU memory does not, on a healthy server: vLLM allocates its KV pool once. What should fall is
the share of the pool in use, so both are measured side by side between the same two plateaus.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.engine_history import EngineHistory
from sidecar.history import History
from sidecar.indicators.subject import Outcome, Subject, outcome
from sidecar.memory_history import MemoryHistory
from sidecar.model import Declaration

CONCURRENCY_DROP = Declaration(
    "concurrency_drop_ratio",
    "How far running requests fell from the busiest plateau of the last 15 minutes to now, as "
    "a share of it. Present only after a drop of 0.75 or more from at least 8.",
)
MEMORY_DROP = Declaration(
    "gpu_memory_drop_ratio",
    "How far the server's GPU memory fell between the same two plateaus, as a share.",
)
KV_DROP = Declaration(
    "kv_cache_drop_ratio",
    "How far KV usage fell between the same two plateaus, as a share. Near the concurrency "
    "drop: blocks came back and nothing leaks.",
)
MEMORY_TO_CONCURRENCY = Declaration(
    "memory_to_concurrency_drop_ratio",
    "GPU memory drop divided by concurrency drop. Near 0 on a healthy server, whose KV pool is "
    "allocated once.",
)
HELD = Declaration(
    "gpu_memory_held",
    "1 when concurrency fell by 0.75 or more and GPU memory by less than 0.1; by design on a "
    "healthy server.",
)

_UNATTRIBUTED_MOVE_BYTES = 2**30
"""With unknown owners, a device that moves by more than this may be somebody else's move."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The two plateaus compared: shares by which each quantity fell; None = not known."""

    concurrency_ratio: float
    memory_ratio: float | None
    kv_ratio: float | None
    memory_reason: str = ""


def find_drop(engine: EngineHistory, memory: MemoryHistory | None) -> Drop | None:
    """Compare now with the latest of the busiest plateaus; None unless concurrency fell."""
    limits = engine.thresholds
    running_now = engine.plateau_running.at(engine.at)
    if running_now is None:
        return None
    start = max(engine.at - limits.drop_window_seconds, engine.life_started_at, engine.awake_since)
    running = engine.plateau_running.since(start)
    busiest = max(running)
    if busiest < limits.drop_running_at_least:
        return None
    concurrency = 1.0 - running_now / busiest
    if concurrency < limits.drop_concurrency_ratio:
        return None
    from_end = running[::-1].index(busiest) + 1
    at = engine.plateau_running.times[-from_end]
    usage = engine.plateau_usage.values[-from_end]
    kv = 1.0 - engine.plateau_usage.values[-1] / usage if usage > 0 else None
    memory_ratio, reason = _memory_drop(engine, memory, at)
    return Drop(concurrency, memory_ratio, kv, reason)


def _memory_drop(
    engine: EngineHistory, memory: MemoryHistory | None, busiest_at: float
) -> tuple[float | None, str]:
    before = engine.plateau_memory.value_at(busiest_at)
    now = engine.plateau_memory.at(engine.at)
    if memory is None or not before or now is None:
        return None, "gpu_memory_unknown"
    if not memory.owners_known and abs(before - now) > _UNATTRIBUTED_MOVE_BYTES:
        return None, "owners_unknown"
    return 1.0 - now / before, ""


def measure(history: History) -> Iterable[Outcome]:
    for engine in history.engines:
        if engine.reading is None:
            continue
        labels = engine.reading.key
        drop = find_drop(engine, history.memory)
        if drop is None:
            yield outcome(CONCURRENCY_DROP, labels, None, "concurrency_did_not_fall")
            continue
        yield outcome(CONCURRENCY_DROP, labels, drop.concurrency_ratio)
        yield outcome(KV_DROP, labels, drop.kv_ratio, "kv_unused")
        memory = drop.memory_ratio
        if memory is None:
            yield outcome(MEMORY_DROP, labels, None, drop.memory_reason)
            continue
        held = memory < engine.thresholds.drop_memory_held_ratio
        yield outcome(MEMORY_DROP, labels, memory)
        yield outcome(MEMORY_TO_CONCURRENCY, labels, memory / drop.concurrency_ratio)
        yield outcome(HELD, labels, float(held))


SUBJECT = Subject((CONCURRENCY_DROP, MEMORY_DROP, KV_DROP, MEMORY_TO_CONCURRENCY, HELD), measure)
