"""The KV pool: its size, what a request takes of it, and how long it will last."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.capacity import used_blocks
from sidecar.engine_history import EngineHistory
from sidecar.history import History
from sidecar.indicators.preemptions import tokens_per_request
from sidecar.indicators.subject import Outcome, Subject, outcome
from sidecar.model import Declaration
from sidecar.startlog.start import Start
from sidecar.usage_record import HOUR

BLOCKS = Declaration(
    "kv_cache_blocks",
    "KV cache blocks of the engine in use and free, without the placeholder block.",
    labels=("model_name", "engine", "state"),
)
CAPACITY_BLOCKS = Declaration(
    "kv_cache_capacity_blocks", "KV cache blocks of the engine that requests can use."
)
CAPACITY_TOKENS = Declaration(
    "kv_cache_capacity_tokens",
    "Tokens that the engine's KV cache holds, as vLLM states it (0.24 and later) or blocks "
    "times block size where attention is uniform.",
)
BYTES = Declaration("kv_cache_bytes", "Bytes of the engine's KV cache, where vLLM states them.")
RESERVED_UNUSED = Declaration(
    "kv_cache_reserved_unused_bytes",
    "Bytes of the KV cache that no request used at any poll of the last hour.",
)
PER_REQUEST = Declaration(
    "kv_cache_tokens_per_request",
    "Token slots that a running request holds on average.",
)
HELD_WHILE_IDLE = Declaration(
    "kv_cache_held_while_idle_ratio",
    "KV usage while nothing has run or waited for 5 s. Anything here is held by no request.",
)
EXHAUSTION = Declaration(
    "kv_cache_exhaustion_seconds",
    "Seconds until the KV cache is full at the slope of the last minute. Absent when usage does "
    "not grow.",
)

_FIT_SECONDS = 60.0
_FIT_AT_LEAST_SECONDS = 10.0
_FARTHEST_SECONDS = 86_400.0


def measure(history: History) -> Iterable[Outcome]:
    for engine in history.engines:
        if engine.reading is not None:
            yield from _measure_engine(engine, history.start, engine.reading.key)


def _measure_engine(
    engine: EngineHistory, start: Start | None, labels: tuple[str, str]
) -> Iterable[Outcome]:
    reading, capacity = engine.reading, engine.capacity
    if reading is None:
        return
    usage = reading.kv_usage_ratio
    if capacity is None:
        yield outcome(CAPACITY_BLOCKS, labels, None, "block_count_not_stated")
    else:
        yield outcome(CAPACITY_BLOCKS, labels, float(capacity.blocks))
        tokens = capacity.tokens
        if tokens is None and start is not None:
            tokens = start.capacity_tokens
        yield outcome(CAPACITY_TOKENS, labels, tokens, "attention_not_uniform")
        if usage is not None:
            used = round(used_blocks(usage, capacity))
            yield outcome(BLOCKS, (*labels, "used"), float(used))
            yield outcome(BLOCKS, (*labels, "free"), float(capacity.blocks - used))
    size = kv_bytes(engine, start)
    yield outcome(BYTES, labels, size, "bytes_not_stated")
    if size is not None and usage is not None:
        peak = max(engine.usage.within(engine.at, HOUR))
        yield outcome(RESERVED_UNUSED, labels, (1.0 - peak) * size)
    yield outcome(PER_REQUEST, labels, tokens_per_request(engine), "nothing_running")
    held = held_while_idle_ratio(engine)
    if held is not None:
        yield outcome(HELD_WHILE_IDLE, labels, held)
    yield outcome(EXHAUSTION, labels, exhaustion_seconds(engine), "usage_does_not_grow")


def kv_bytes(engine: EngineHistory, start: Start | None) -> int | None:
    """Bytes of the engine's KV cache: as the page states them, else the log's figure, which is of
    one rank, for all ranks of the engine.

    With `--num-gpu-blocks-override` either is of the pool that vLLM would have made (seen on
    0.32.0: 1 GiB stated, 10 MiB in use), so they say nothing.
    """
    config = engine.reading.cache if engine.reading is not None else None
    if config is None or config.num_gpu_blocks_override is not None:
        return None
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    if start is None or start.kv_cache_bytes_per_rank is None:
        return None
    ranks = (start.tensor_parallel_size or 1) * (start.pipeline_parallel_size or 1)
    return start.kv_cache_bytes_per_rank * ranks


def held_while_idle_ratio(engine: EngineHistory) -> float | None:
    """KV usage above the release's idle floor with nothing running for long enough."""
    reading = engine.reading
    if reading is None or reading.kv_usage_ratio is None or engine.idle_since is None:
        return None
    if engine.at - engine.idle_since < engine.thresholds.idle_seconds:
        return None
    floor = engine.capacity.idle_usage_ratio if engine.capacity is not None else 0.0
    return reading.kv_usage_ratio if reading.kv_usage_ratio > floor + 1e-9 else None


def exhaustion_seconds(engine: EngineHistory) -> float | None:
    """Time to a full pool by a straight line through the last minute of this life."""
    reading = engine.reading
    start = max(engine.at - _FIT_SECONDS, engine.life_started_at)
    values = engine.usage.since(start)
    if reading is None or reading.kv_usage_ratio is None or len(values) < 2:
        return None
    times = engine.usage.times[-len(values) :]
    if times[-1] - times[0] < _FIT_AT_LEAST_SECONDS:
        return None
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in times)
    slope = (
        sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True))
        / spread
    )
    if slope <= 0.0:
        return None
    seconds = (1.0 - reading.kv_usage_ratio) / slope
    return seconds if seconds <= _FARTHEST_SECONDS else None


SUBJECT = Subject(
    (
        BLOCKS,
        CAPACITY_BLOCKS,
        CAPACITY_TOKENS,
        BYTES,
        RESERVED_UNUSED,
        PER_REQUEST,
        HELD_WHILE_IDLE,
        EXHAUSTION,
    ),
    measure,
)
