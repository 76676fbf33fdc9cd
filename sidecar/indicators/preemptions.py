"""Preemptions: how often the engine throws running requests back into the queue.

vLLM's V1 engine counts a preemption only when the preempted request produces its next output,
and never if its client leaves first (0.8.0 to 0.33.0). The counter is therefore late, and a
suspicion from the queue itself stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.indicators.subject import Outcome, Subject, for_each_engine, outcome
from sidecar.model import Declaration

PREEMPTIONS = Declaration(
    "preemptions_total",
    "Preemptions as vLLM itself counts them; late, and not counted for requests that left.",
    "counter",
)
PER_SECOND = Declaration(
    "preemptions_per_second",
    "Preemptions a second over the trailing window, across restarts of vLLM.",
    labels=("model_name", "engine", "window"),
)
PER_FINISHED = Declaration(
    "preemptions_per_finished_request",
    "Preemptions per finished request over 5 minutes; may exceed 1. Absent below 5 finished.",
)
SUSPECTED = Declaration(
    "preemption_suspected",
    "1 when running requests fell and waiting ones rose by as much within 5 s at KV usage of "
    "0.9 or more, with no finished requests to explain it; else 0.",
)
RECOMPUTE = Declaration(
    "preemption_recompute_tokens_per_second",
    "Estimated tokens a second computed again after preemption, which vLLM's counters hide.",
)
AMPLIFICATION = Declaration(
    "work_amplification",
    "Tokens computed per useful token: 1 without preemption, 2 when half of the work is redone.",
)

WINDOWS = (("10s", 10.0), ("60s", 60.0))
_FINISHED_WINDOW_SECONDS = 300.0


def measure(engine: EngineHistory, labels: tuple[str, str]) -> Iterable[Outcome]:
    reading, limits = engine.reading, engine.thresholds
    yield outcome(SUSPECTED, labels, suspected(engine), "series_missing")
    if reading is None or reading.preemptions_total is None:
        for declaration in (PREEMPTIONS, PER_FINISHED, RECOMPUTE, AMPLIFICATION):
            yield outcome(declaration, labels, None, "series_missing")
        return
    yield outcome(PREEMPTIONS, labels, reading.preemptions_total)
    total = engine.total("preemptions_total")
    shortest = limits.rate_at_least_seconds
    for window, seconds in WINDOWS:
        rate = total.increase(engine.at, seconds, at_least_seconds=shortest)
        yield outcome(
            PER_SECOND, (*labels, window), rate.per_second if rate else None, "too_short_observed"
        )
    yield outcome(PER_FINISHED, labels, per_finished_request(engine), "too_few_finished")
    recent = total.increase(engine.at, WINDOWS[0][1], at_least_seconds=shortest)
    tokens = tokens_per_request(engine)
    useful = engine.tokens_per_second(WINDOWS[0][1])
    if recent is None or useful is None:
        recompute = None
    elif recent.amount == 0:
        recompute = 0.0
    else:
        recompute = recent.per_second * tokens if tokens is not None else None
    yield outcome(RECOMPUTE, labels, recompute, "too_short_observed")
    amplification = 1.0 + recompute / useful if recompute is not None and useful else None
    yield outcome(AMPLIFICATION, labels, amplification, "no_tokens")


def per_finished_request(engine: EngineHistory) -> float | None:
    """Preemptions per finished request over 5 minutes; None when too few have finished."""
    shortest = engine.thresholds.rate_at_least_seconds
    preempted, finished = (
        engine.total(name).increase(engine.at, _FINISHED_WINDOW_SECONDS, at_least_seconds=shortest)
        for name in ("preemptions_total", "finished_total")
    )
    if preempted is None or finished is None:
        return None
    if finished.amount < engine.thresholds.finished_at_least:
        return None
    return preempted.amount / finished.amount


def tokens_per_request(engine: EngineHistory) -> float | None:
    """Token slots that a running request holds on average; None when nothing runs."""
    allocated, reading = engine.allocated_tokens(), engine.reading
    if allocated is None or reading is None or not reading.running:
        return None
    return allocated / reading.running


def suspected(engine: EngineHistory) -> float | None:
    """Whether the queue looks as if requests were thrown back into it. None without a queue."""
    reading = engine.reading
    if reading is None or reading.running is None or reading.waiting is None:
        return None
    return None if reading.kv_usage_ratio is None else engine.suspicions.at(engine.at)


SUBJECT = Subject(
    (PREEMPTIONS, PER_SECOND, PER_FINISHED, SUSPECTED, RECOMPUTE, AMPLIFICATION),
    for_each_engine(measure),
)
