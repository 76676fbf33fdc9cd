"""Load and progress: what is asked of the engine, and what it gets done."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from sidecar.engine_history import EngineHistory
from sidecar.indicators.subject import Outcome, Subject, for_each_engine, outcome
from sidecar.model import Declaration, Histogram
from sidecar.usage_record import HOUR

RUNNING = Declaration("requests_running", "Requests in the batch at the last poll.")
WAITING = Declaration(
    "requests_waiting", "Requests that wait, those swapped out by older releases included."
)
WAITING_BY_REASON = Declaration(
    "requests_waiting_by_reason",
    "Requests that wait by vLLM's own name for their queue (0.20 and later). `capacity` is only "
    "that queue's name and proves no shortage of memory.",
    labels=("model_name", "engine", "reason"),
)
RUNNING_PLATEAU = Declaration(
    "running_plateau",
    "Running requests, when they stayed within 1 for 15 s while others waited: a cap at work.",
)
GENERATION = Declaration("generation_tokens_per_second", "Generated tokens a second over 10 s.")
PROMPT = Declaration(
    "prompt_tokens_per_second",
    "Prompt tokens a second over 10 s, counted at each request's first token.",
)
BEST = Declaration(
    "tokens_per_second_plateau",
    "Best prompt and generation tokens a second over any 10 s of the last hour.",
)
BEST_RUNNING = Declaration(
    "tokens_per_second_plateau_running", "Running requests at which that best rate was seen."
)
FINISHED = Declaration("finished_requests_per_second", "Finished requests a second over 60 s.")
HIT_RATIO = Declaration(
    "prefix_cache_hit_ratio", "Share of prefix-cache queries that hit over 60 s, 0 to 1."
)
STEP_P95 = Declaration(
    "iteration_tokens_p95", "95th percentile of tokens in an engine step over 60 s."
)
STEP_LARGEST = Declaration(
    "iteration_tokens_largest",
    "Upper bound of the largest step-size bucket that a step of the last 60 s fell into.",
)
QUEUE_P95 = Declaration(
    "queue_time_p95_seconds",
    "95th percentile of the queueing time of requests that finished in the last 60 s.",
)
SLEEPING = Declaration("engine_sleeping", "1 while the engine says that it sleeps.")
STALLED = Declaration(
    "engine_stalled",
    "1 when requests run and nothing at all has moved for 30 s; a paused server looks the same.",
)
RESTARTS = Declaration(
    "engine_restarts_total", "Restarts of the engine that the sidecar has seen.", "counter"
)


def measure(engine: EngineHistory, labels: tuple[str, str]) -> Iterable[Outcome]:
    reading, limits = engine.reading, engine.thresholds
    if reading is None:
        return
    yield outcome(RESTARTS, labels, float(engine.restarts))
    yield outcome(RUNNING, labels, reading.running, "series_missing")
    yield outcome(WAITING, labels, reading.waiting, "series_missing")
    for reason, count in sorted(reading.waiting_by_reason.items()):
        yield outcome(WAITING_BY_REASON, (*labels, reason), count)
    plateau = running_plateau(engine)
    if plateau is not None:
        yield outcome(RUNNING_PLATEAU, labels, plateau)
    for declaration, name, seconds in (
        (GENERATION, "generation_tokens_total", 10.0),
        (PROMPT, "prompt_tokens_total", 10.0),
        (FINISHED, "finished_total", 60.0),
    ):
        rate = engine.total(name).increase(
            engine.at, seconds, at_least_seconds=limits.rate_at_least_seconds
        )
        yield outcome(declaration, labels, rate.per_second if rate else None, "too_short_observed")
    best = best_rate(engine)
    yield outcome(BEST, labels, best[0] if best else None, "too_short_observed")
    if best is not None:
        yield outcome(BEST_RUNNING, labels, best[1])
    yield outcome(HIT_RATIO, labels, prefix_cache_hit_ratio(engine), "no_queries")
    steps = recent(engine, "iteration_tokens")
    yield outcome(STEP_P95, labels, quantile(steps, 0.95) if steps else None, "no_steps")
    if steps is not None:
        yield outcome(STEP_LARGEST, labels, largest_bucket(steps), "no_steps")
    queue = recent(engine, "queue_seconds")
    yield outcome(QUEUE_P95, labels, quantile(queue, 0.95) if queue else None, "none_finished")
    if reading.sleeping is not None:
        yield outcome(SLEEPING, labels, float(reading.sleeping))
    yield outcome(STALLED, labels, stalled(engine), "series_missing")


def running_plateau(engine: EngineHistory) -> float | None:
    """The value that running requests have kept to while others waited, or None."""
    seconds = engine.thresholds.running_plateau_seconds
    if engine.at - engine.life_started_at < seconds:
        return None
    running = engine.running.within(engine.at, seconds)
    waiting = engine.waiting.within(engine.at, seconds)
    if not running or not waiting or min(waiting) <= 0 or max(running) - min(running) > 1:
        return None
    return max(running)


def best_rate(engine: EngineHistory) -> tuple[float, float] | None:
    """The best 10 s token rate of the last hour of this life, and the running requests then."""
    start = max(engine.at - HOUR, engine.life_started_at)
    rates = engine.token_rate.since(start)
    if not rates:
        return None
    running = engine.token_rate_running.values[-len(rates) :]
    best = max(range(len(rates)), key=rates.__getitem__)
    return rates[best], running[best]


def throughput_loss(engine: EngineHistory) -> float | None:
    """How far tokens per second are below their best, at no lower demand; None if demand fell."""
    reading, best, now = engine.reading, best_rate(engine), engine.tokens_per_second(10.0)
    if reading is None or best is None or now is None or best[0] <= 0:
        return None
    demand = (reading.running or 0.0) + (reading.waiting or 0.0)
    return 1.0 - now / best[0] if demand >= best[1] else None


def prefix_cache_hit_ratio(engine: EngineHistory) -> float | None:
    shortest = engine.thresholds.rate_at_least_seconds
    hits, queries = (
        engine.total(name).increase(engine.at, 60.0, at_least_seconds=shortest)
        for name in ("prefix_hits_total", "prefix_queries_total")
    )
    if hits is None or queries is None or queries.amount <= 0:
        return None
    return min(1.0, hits.amount / queries.amount)


def stalled(engine: EngineHistory) -> float | None:
    """Whether requests run and nothing moves; None where running is not known."""
    reading = engine.reading
    if reading is None or reading.running is None:
        return None
    still = engine.at - engine.last_progress_at
    return float(reading.running > 0 and still >= engine.thresholds.stalled_seconds)


def recent(engine: EngineHistory, name: str) -> Histogram | None:
    """What a histogram gained over the last minute, or None if it gained nothing."""
    kept = engine.histograms.get(name, [])
    if not kept or kept[-1][0] != engine.at:
        return None
    first, last = kept[0][1], kept[-1][1]
    if last.count <= first.count:
        return None
    before = dict(first.buckets)
    return Histogram(
        tuple((bound, count - before.get(bound, 0.0)) for bound, count in last.buckets),
        last.sum - first.sum,
        last.count - first.count,
    )


def quantile(histogram: Histogram, share: float) -> float | None:
    """Linear interpolation inside the bucket, as Prometheus does; never beyond a known bound."""
    rank = share * histogram.count
    lower_bound, lower_count = 0.0, 0.0
    for bound, count in histogram.buckets:
        if count >= rank and count > lower_count:
            if bound == float("inf"):
                return lower_bound
            return lower_bound + (bound - lower_bound) * (rank - lower_count) / (
                count - lower_count
            )
        lower_bound, lower_count = bound, count
    return None


def largest_bucket(histogram: Histogram) -> float | None:
    """The upper bound of the highest bucket that holds anything, +Inf left out."""
    filled = [
        bound
        for (_, below), (bound, count) in pairwise(((0.0, 0.0), *histogram.buckets))
        if count > below and bound != float("inf")
    ]
    return max(filled, default=None)


SUBJECT = Subject(
    (
        RUNNING,
        WAITING,
        WAITING_BY_REASON,
        RUNNING_PLATEAU,
        GENERATION,
        PROMPT,
        BEST,
        BEST_RUNNING,
        FINISHED,
        HIT_RATIO,
        STEP_P95,
        STEP_LARGEST,
        QUEUE_P95,
        SLEEPING,
        STALLED,
        RESTARTS,
    ),
    for_each_engine(measure),
)
