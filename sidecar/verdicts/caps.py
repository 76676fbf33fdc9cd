"""Requests wait although the KV cache has room: another limit is reached.

`reason="capacity"` of vLLM's waiting queue (0.20 and later) is only the queue's name; it says
nothing about memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.indicators.load import recent, running_plateau
from sidecar.model import Advice, Avoid, Evidence, Histogram, Scope, Verdict
from sidecar.verdicts.rule import AT_ONCE, Hold, Rule
from sidecar.verdicts.situation import Situation

FILL_TO_RATIO = 0.7
SMALLEST_BUDGET_BUCKET = 512.0
PINNED_SHARE = 0.5

_NOT_MEMORY = Avoid(
    "--gpu-memory-utilization", "the KV cache has room; more of it would not be used"
)


def _queue_with_room(engine: EngineHistory) -> bool:
    """Somebody has waited all along for some seconds while the KV cache had room."""
    waiting = engine.waiting.within(engine.at, engine.thresholds.queue_seconds)
    usage = engine.usage.within(engine.at, engine.thresholds.queue_seconds)
    observed = engine.waiting.covered_seconds(engine.at, engine.thresholds.queue_seconds)
    return (
        bool(waiting)
        and bool(usage)
        and observed >= engine.thresholds.queue_seconds
        and min(waiting) > 0
        and max(usage) < engine.thresholds.queue_room_ratio
    )


def judge_sequences(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        cap = running_plateau(engine)
        if cap is None or cap < 1 or not _queue_with_room(engine) or _deferred(engine):
            continue
        stated = situation.flags.whole("max_num_seqs")
        if stated is not None and cap < stated - 1:
            continue
        yield _sequences(situation, engine, scope, cap, stated)


def _sequences(
    situation: Situation, engine: EngineHistory, scope: Scope, cap: float, stated: int | None
) -> Verdict:
    waiting = engine.waiting.values[-1]
    usage = max(engine.usage.within(engine.at, situation.thresholds.queue_seconds))
    limits = [cap + waiting, 2 * cap]
    if usage > 0:
        limits.append(math.floor(FILL_TO_RATIO * cap / usage + 1e-9))
    to = int(min(limits))
    advice: tuple[Advice, ...] = ()
    if to > cap:
        advice = (
            Advice(
                "--max-num-seqs",
                str(to),
                f"{to - cap:.0f} more requests run at once; KV usage about {usage * to / cap:.0%}",
                "one step at a time: step back if tokens per second do not rise or preemptions "
                "begin",
                current=str(stated if stated is not None else int(cap)),
            ),
        )
    return Verdict(
        "seqs_capped",
        "warning",
        "high" if stated is not None else "low",
        f"{waiting:.0f} requests wait while {cap:.0f} run and {1 - usage:.0%} of the KV cache is "
        "free: the number of sequences is the limit.",
        scope,
        evidence=(
            Evidence("requests_waiting", waiting, "requests"),
            Evidence("running_plateau", cap, "requests", stated),
            Evidence("kv_cache_usage_ratio", usage, "ratio", situation.thresholds.queue_room_ratio),
        ),
        advice=advice,
        avoid=(_NOT_MEMORY, Avoid("--block-size", "this is no fragmentation")),
        missing=() if stated is not None else ("max_num_seqs (log)",),
    )


def judge_token_budget(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        if running_plateau(engine) is not None or not _queue_with_room(engine):
            continue
        if _deferred(engine):
            continue
        steps = recent(engine, "iteration_tokens")
        budget = situation.flags.whole("max_num_batched_tokens")
        pinned = pinned_step(steps, budget) if steps is not None else None
        if pinned is None:
            continue
        now = budget if budget is not None else int(pinned)
        yield Verdict(
            "token_budget_capped",
            "warning",
            "high" if budget is not None else "medium",
            f"{engine.waiting.values[-1]:.0f} requests wait, the KV cache has room, and most "
            f"steps are as large as they may be (about {pinned:,.0f} tokens).",
            scope,
            evidence=(
                Evidence("iteration_tokens", pinned, "tokens", budget),
                Evidence("requests_waiting", engine.waiting.values[-1], "requests"),
            ),
            advice=(
                Advice(
                    "--max-num-batched-tokens",
                    str(2 * now),
                    "prompts are read in fewer steps",
                    "costs activation memory and makes single steps longer; if tokens per second "
                    "do not rise, the GPU itself is the limit",
                    current=str(now),
                ),
            ),
            avoid=(_NOT_MEMORY,),
            missing=() if budget is not None else ("max_num_batched_tokens (log)",),
        )


def pinned_step(steps: Histogram, budget: int | None) -> float | None:
    """The largest step size of the last minute, if most steps or most tokens have it."""
    previous_bound, previous = 0.0, 0.0
    largest: tuple[float, float, float] | None = None
    for bound, count in steps.buckets:
        if count > previous:
            largest = (previous_bound, bound, count - previous)
        previous_bound, previous = bound, count
    if largest is None:
        return None
    below, bound, count = largest
    # Few large steps among many small ones still do most of the work.
    most = count >= PINNED_SHARE * steps.count or count * below >= PINNED_SHARE * steps.sum
    if not most or bound < SMALLEST_BUDGET_BUCKET:
        return None
    if budget is not None:
        return float(budget) if below < budget <= bound else None
    return bound if bound != float("inf") else below


def _deferred(engine: EngineHistory) -> float:
    """Requests that wait for something else than a place in the batch (0.20 and later)."""
    reading = engine.reading
    return reading.waiting_by_reason.get("deferred", 0.0) if reading is not None else 0.0


def judge_lora(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        lora = situation.history.server.lora if situation.history.server is not None else None
        if lora is None or not lora.waiting or not _deferred(engine):
            continue
        needed = lora.max_lora + len(lora.waiting)
        yield Verdict(
            "lora_capped",
            "warning",
            "high",
            f"{_deferred(engine):.0f} requests wait for one of {lora.max_lora} adapter slots.",
            scope,
            evidence=(
                Evidence("requests_waiting_deferred", _deferred(engine), "requests"),
                Evidence("max_loras", float(lora.max_lora), "adapters"),
                Evidence("waiting_adapters", float(len(lora.waiting)), "adapters"),
            ),
            advice=(
                Advice(
                    "--max-loras",
                    str(max(needed, 2 * lora.max_lora)),
                    "adapters that wait now run together",
                    "each slot costs memory for the largest rank",
                    current=str(lora.max_lora),
                ),
            ),
            avoid=(_NOT_MEMORY,),
        )


SEQUENCES = Rule("seqs_capped", ("warning",), judge_sequences, AT_ONCE)
TOKEN_BUDGET = Rule("token_budget_capped", ("warning",), judge_token_budget, AT_ONCE)
LORA = Rule("lora_capped", ("warning",), judge_lora, Hold(12.0, 15.0))
