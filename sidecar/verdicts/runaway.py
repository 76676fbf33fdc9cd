"""Few requests grow and never finish, or hold more than what they can have generated."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.indicators.preemptions import tokens_per_request
from sidecar.model import Advice, Avoid, Evidence, Scope, Verdict
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.situation import Situation

LEAST_USAGE_RATIO = 0.05
EXPLAINED_RATIO = 0.5
"""Generated tokens must make up at least this share of the growth of KV usage."""


def judge_runaway(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        found = _suspect(situation, engine)
        if found is not None and _explained(engine) is not False:
            yield _runaway(situation, engine, scope, *found)


def judge_unexplained(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        found = _suspect(situation, engine)
        if found is None or _explained(engine) is not False:
            continue
        held, threshold = found
        yield Verdict(
            "kv_unexplained",
            "info",
            "low",
            f"A running request holds {held:,.0f} token slots, and what was generated does not "
            "explain it.",
            scope,
            evidence=(Evidence("kv_cache_tokens_per_request", held, "tokens", threshold),),
            advice=(
                Advice(
                    "none",
                    None,
                    "the cause",
                    "look at the prompt lengths of what runs and at any KV connector",
                ),
            ),
            missing=situation.missing(),
        )


def _suspect(situation: Situation, engine: EngineHistory) -> tuple[float, float] | None:
    """Slots a request holds and the threshold it exceeds, where few run and none finishes."""
    limits = situation.thresholds
    reading, held = engine.reading, tokens_per_request(engine)
    if reading is None or held is None or reading.running is None:
        return None
    if (
        reading.running > limits.runaway_running
        or (reading.kv_usage_ratio or 0.0) < LEAST_USAGE_RATIO
    ):
        return None
    finished = engine.total("finished_total").increase(
        engine.at,
        limits.runaway_seconds,
        at_least_seconds=limits.runaway_seconds - 1.0,
    )
    if finished is None or finished.amount > 0:
        return None
    longest = situation.flags.number("max_model_len") or situation.snapshot.max_model_len
    mean = engine.finished_mean_tokens()
    bounds = [
        bound
        for bound in (
            limits.runaway_times_mean * mean if mean else None,
            longest / 2 if longest else None,
        )
        if bound is not None
    ]
    if not bounds or held < max(bounds):
        return None
    return held, max(bounds)


def _explained(engine: EngineHistory) -> bool | None:
    """Whether generation accounts for the growth of KV usage over two minutes."""
    generated = engine.total("generation_tokens_total").increase(
        engine.at, engine.thresholds.runaway_seconds, at_least_seconds=5.0
    )
    values = engine.usage.within(engine.at, engine.thresholds.runaway_seconds)
    if generated is None or engine.capacity is None or engine.capacity.usable_tokens is None:
        return None
    grown = (values[-1] - values[0]) * engine.capacity.usable_tokens
    return grown <= 0 or generated.amount >= EXPLAINED_RATIO * grown


def _runaway(
    situation: Situation, engine: EngineHistory, scope: Scope, held: float, threshold: float
) -> Verdict:
    limits = situation.thresholds
    running = engine.reading.running if engine.reading is not None else None
    return Verdict(
        "runaway_request",
        "info",
        "medium",
        f"{running:.0f} running request(s) hold {held:,.0f} token slots each and none has finished "
        "for two minutes: they go on generating.",
        scope,
        evidence=(
            Evidence("kv_cache_tokens_per_request", held, "tokens", threshold),
            Evidence(
                "requests_running",
                running or 0.0,
                "requests",
                float(limits.runaway_running),
            ),
        ),
        advice=(
            Advice(
                "max_tokens",
                None,
                "requests end",
                "set max_tokens and stop conditions in the requests; abort the client if it has "
                "gone astray",
            ),
        ),
        avoid=(Avoid("restart", "nothing leaks: what grows is what is generated"),),
        missing=situation.missing(),
    )


RUNAWAY = Rule("runaway_request", ("info",), judge_runaway)
UNEXPLAINED = Rule("kv_unexplained", ("info",), judge_unexplained)
