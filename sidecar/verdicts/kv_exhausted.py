"""The KV cache is full and running requests are thrown back into the queue."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.indicators.load import throughput_loss
from sidecar.indicators.preemptions import per_finished_request
from sidecar.model import Evidence, Scope, Severity, Verdict
from sidecar.verdicts.kv_remedies import remedies, tempting
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.situation import Situation

MOVING_SECONDS = 30.0
LEAST_MOVED = 3.0
APART_SECONDS = 5.0


def judge(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        verdict = _judge_engine(situation, engine, scope)
        if verdict is not None:
            yield verdict


def _judge_engine(situation: Situation, engine: EngineHistory, scope: Scope) -> Verdict | None:
    limits = situation.thresholds
    usage = engine.usage.within(engine.at, 60.0)
    peak = max(usage, default=0.0)
    if peak < limits.kv_saturated_ratio or not preemptions_move(engine):
        return None
    loss = throughput_loss(engine)
    severity: Severity = "warning"
    if loss is not None and loss >= limits.throughput_loss_ratio:
        severity = "critical"
    per_finished = per_finished_request(engine)
    moved = engine.total("preemptions_total").increase(
        engine.at, MOVING_SECONDS, at_least_seconds=0.0
    )
    evidence = [
        Evidence("kv_cache_usage_peak_ratio", peak, "ratio", limits.kv_saturated_ratio),
        Evidence("preemptions_30s", moved.amount if moved else 0.0, "preemptions", LEAST_MOVED),
    ]
    if per_finished is not None:
        evidence.append(
            Evidence(
                "preemptions_per_finished_request",
                per_finished,
                "ratio",
                limits.preemptions_per_finished,
            )
        )
    if loss is not None:
        evidence.append(
            Evidence("throughput_loss_ratio", loss, "ratio", limits.throughput_loss_ratio)
        )
    if loss is None:
        cost = "; what it costs cannot be told, since less is asked for than at the best rate"
    elif severity == "critical":
        cost = f", and tokens per second are {loss:.0%} below the best of this load"
    else:
        cost = "; throughput still holds"
    just_now = engine.usage.within(engine.at, 10.0)
    full_now = max(just_now, default=0.0) >= limits.preemption_kv_usage_ratio
    return Verdict(
        "kv_exhausted",
        severity,
        "high" if per_finished is not None else "medium",
        f"The KV cache is full and running requests are preempted{cost}."
        if full_now
        else "The KV cache was full within the last minute, and running requests were preempted.",
        scope,
        evidence=tuple(evidence),
        advice=tuple(remedies(situation, engine, per_finished)),
        avoid=tuple(tempting(engine)),
        missing=situation.missing(),
    )


def preemptions_move(engine: EngineHistory) -> bool:
    """Preemptions are more than an occasional one: relative to finished requests, or several
    within half a minute in different polls, or twice suspected from the queue."""
    limits = engine.thresholds
    moved = engine.total("preemptions_total").increase(
        engine.at, MOVING_SECONDS, at_least_seconds=0.0
    )
    if moved is None or moved.amount <= 0:
        return engine.suspicions_within(MOVING_SECONDS) >= 2
    per_finished = per_finished_request(engine)
    if per_finished is not None:
        return per_finished >= limits.preemptions_per_finished
    several = moved.amount >= LEAST_MOVED and _rising_seconds(engine) >= APART_SECONDS
    return several or engine.suspicions_within(MOVING_SECONDS) >= 2


def _rising_seconds(engine: EngineHistory) -> float:
    """Time between the first and the last poll of half a minute at which the counter rose: a
    single jump, as after a pause, is none."""
    points = engine.total("preemptions_total")
    rises = [
        at
        for before, (at, value) in zip(
            points.values, zip(points.times[1:], points.values[1:], strict=True), strict=False
        )
        if value > before and at > engine.at - MOVING_SECONDS
    ]
    return rises[-1] - rises[0] if rises else 0.0


RULE = Rule("kv_exhausted", ("warning", "critical"), judge)
