"""KV usage: how much of the pool is in use now, at its peak, and for how long it was low.

Low usage is a fact and no fault: the pool is allocated up front whatever the load, and every
request may still have what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from sidecar.engine_history import EngineHistory
from sidecar.indicators.subject import Outcome, Subject, for_each_engine, outcome
from sidecar.model import Declaration, Histogram
from sidecar.usage_record import USAGE_BOUNDS

USAGE = Declaration(
    "kv_cache_usage_ratio", "Share of the KV cache blocks in use at the last poll, 0 to 1."
)
PEAK = Declaration(
    "kv_cache_usage_peak_ratio",
    "Highest KV usage of any poll in the trailing window, so that a slow scrape misses nothing.",
    labels=("model_name", "engine", "window"),
)
SAMPLES = Declaration(
    "kv_cache_usage_sample_ratio",
    "KV usage of every poll at which requests were running.",
    "histogram",
)
UNDERUSED_SECONDS = Declaration(
    "kv_cache_underused_seconds_total",
    "Seconds with running requests and KV usage below 0.5.",
    "counter",
)
SATURATED_SECONDS = Declaration(
    "kv_cache_saturated_seconds_total",
    "Seconds with running requests and KV usage of 0.95 or more.",
    "counter",
)
SERVING_SECONDS = Declaration(
    "serving_seconds_total", "Seconds in which at least one request was running.", "counter"
)
UNDERUSED = Declaration(
    "kv_cache_underused",
    "1 when KV usage was below 0.5 for 90 % of the serving time of the last 5 minutes. "
    "A fact, not a fault.",
)

PEAK_WINDOWS = (("60s", 60.0), ("1h", 3600.0))


def measure(engine: EngineHistory, labels: tuple[str, str]) -> Iterable[Outcome]:
    reading = engine.reading
    if reading is None or reading.kv_usage_ratio is None:
        yield outcome(USAGE, labels, None, "series_missing")
        return
    yield outcome(USAGE, labels, reading.kv_usage_ratio)
    for window, seconds in PEAK_WINDOWS:
        yield outcome(PEAK, (*labels, window), max(engine.usage.within(engine.at, seconds)))
    cumulative = tuple(accumulate(engine.record.sample_counts))
    yield outcome(
        SAMPLES,
        labels,
        Histogram(
            tuple(zip((*USAGE_BOUNDS, float("inf")), map(float, cumulative), strict=True)),
            engine.record.sample_sum,
            float(cumulative[-1]),
        ),
    )
    serving, underused = engine.record.serving_seconds, engine.record.underused_seconds
    if serving.at(engine.at) is None:
        yield outcome(UNDERUSED, labels, None, "series_missing")
        return
    yield outcome(SERVING_SECONDS, labels, serving.values[-1])
    yield outcome(UNDERUSED_SECONDS, labels, underused.values[-1])
    yield outcome(SATURATED_SECONDS, labels, engine.record.saturated_seconds_total)
    yield outcome(UNDERUSED, labels, underused_state(engine), "too_short_serving")


def underused_state(engine: EngineHistory) -> float | None:
    """Whether most of the recent serving time was below the threshold; None with too little."""
    limits = engine.thresholds
    spans = [
        points.increase(engine.at, limits.kv_underused_window_seconds, at_least_seconds=0.0)
        for points in (engine.record.serving_seconds, engine.record.underused_seconds)
    ]
    serving, underused = spans
    if serving is None or underused is None:
        return None
    if serving.amount < limits.kv_underused_serving_seconds:
        return None
    return float(underused.amount / serving.amount >= limits.kv_underused_share)


SUBJECT = Subject(
    (
        USAGE,
        PEAK,
        SAMPLES,
        UNDERUSED_SECONDS,
        SATURATED_SECONDS,
        SERVING_SECONDS,
        UNDERUSED,
    ),
    for_each_engine(measure),
)
