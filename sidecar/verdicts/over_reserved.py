"""The KV cache is far bigger than what the load ever used.

No fault: it is allocated up front, and if nothing else needs the memory it is best left alone.
The advice appears only after the load was watched for some time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.model import Advice, Avoid, Confidence, Evidence, Scope, Verdict
from sidecar.verdicts.memory_arithmetic import (
    flag_in_force,
    gib,
    kv_bytes_per_gpu,
    margin_bytes,
    round_utilization_up,
    utilization_in_force,
    vllm_total_bytes,
)
from sidecar.verdicts.rule import AT_ONCE, Rule
from sidecar.verdicts.situation import GIB, Situation

NO_QUEUE_SECONDS = 15.0
HEADROOM_FACTOR = 1.5
FIRST_LOAD_GROWTH_BYTES = 1.3 * GIB
"""What the first load adds to vLLM's own memory (1.1 to 1.3 GiB on the recordings)."""


def judge(situation: Situation) -> Iterable[Verdict]:
    limits = situation.thresholds
    for engine, scope in situation.settled_engines():
        peak = engine.record.peak_ratio
        served = engine.serving_seconds_of_life()
        queued = engine.waiting.within(engine.at, NO_QUEUE_SECONDS)
        if peak is None or not queued or max(queued) > 0:
            continue
        if peak >= limits.kv_underused_ratio or served < limits.over_reserved_serving_seconds:
            continue
        yield _verdict(situation, engine, scope, peak, served)


def _verdict(
    situation: Situation, engine: EngineHistory, scope: Scope, peak: float, served: float
) -> Verdict:
    limits = situation.thresholds
    finished = engine.finished_of_life()
    confidence: Confidence = "low"
    if served >= limits.over_reserved_high_seconds:
        confidence = "high"
    elif served >= limits.over_reserved_medium_seconds or (
        finished is not None and finished >= limits.over_reserved_medium_finished
    ):
        confidence = "medium"
    held = kv_bytes_per_gpu(situation, engine)
    evidence = [
        Evidence("kv_cache_usage_peak_ratio", peak, "ratio", limits.kv_underused_ratio),
        Evidence("serving_seconds", served, "seconds", limits.over_reserved_medium_seconds),
    ]
    missing: list[str] = []
    target = needed = None
    if held is None:
        missing.append("kv_cache_bytes (log)")
    else:
        evidence.append(Evidence("kv_cache_bytes", held, "bytes"))
        needed = needed_kv_bytes(situation, engine, held, peak)
        target = target_utilization(situation, held, needed)
        if target is not None:
            evidence.append(
                Evidence(
                    "gpu_memory_utilization_target",
                    target,
                    "ratio",
                    utilization_in_force(situation),
                )
            )
    return Verdict(
        "over_reserved",
        "info",
        confidence,
        f"At most {peak:.1%} of the KV cache was in use in {served:.0f} s of serving. That is no "
        "fault; the rest is reserved for a load that has not come.",
        scope,
        evidence=tuple(evidence),
        advice=tuple(_advice(situation, held, needed, target, confidence)),
        avoid=(
            Avoid("--block-size", "low use is no fragmentation"),
            Avoid("--enforce-eager", "saves little and costs more than half the throughput"),
        ),
        missing=tuple(missing),
    )


def needed_kv_bytes(
    situation: Situation, engine: EngineHistory, held: float, peak: float
) -> float | None:
    """Half as much again as the peak, and no less than one full-length request."""
    if engine.capacity is None or not engine.capacity.tokens:
        return None
    longest = situation.flags.number("max_model_len") or situation.snapshot.max_model_len
    one_request = held * longest / engine.capacity.tokens if longest else 0.0
    return max(HEADROOM_FACTOR * peak * held, one_request)


def target_utilization(situation: Situation, held: float, needed: float | None) -> float | None:
    """The utilisation that leaves so much KV cache, where that flag sizes it at all.

    Never below weights, first-load growth and margin, where the log tells the weights.
    """
    now = utilization_in_force(situation)
    if flag_in_force(situation) != "--gpu-memory-utilization" or needed is None:
        return None
    memories = [
        device.reading.memory
        for device, _ in situation.devices()
        if device.reading is not None and device.reading.memory is not None
    ]
    if now is None or not memories:
        return None
    total = float(min(vllm_total_bytes(memory) for memory in memories))
    target = now - (held - needed) / total
    weights = situation.start.weights_bytes_per_rank if situation.start is not None else None
    if weights is not None:
        floor = (weights + FIRST_LOAD_GROWTH_BYTES + margin_bytes(total)) / total
        target = max(target, floor)
    target = round_utilization_up(target)
    return target if target < now else None


def _advice(
    situation: Situation,
    held: float | None,
    needed: float | None,
    target: float | None,
    confidence: Confidence,
) -> Iterable[Advice]:
    if confidence == "low":
        yield Advice(
            "none", None, "a peak that can be relied on", "watch a longer stretch of the real load"
        )
        return
    flag, now = flag_in_force(situation), utilization_in_force(situation)
    if flag == "--kv-cache-memory-bytes" and held and needed is not None and needed < held:
        yield Advice(
            flag,
            f"{math.ceil(needed)}",
            f"frees about {gib(held - needed)} on each GPU for something else",
            "only if something else needs the memory; this flag is set, so "
            "--gpu-memory-utilization does nothing; the peak so far times 1.5 stays",
            current=f"{held:.0f}",
        )
    if target is not None and now is not None:
        yield Advice(
            flag,
            f"{target:.2f}",
            f"frees about {gib((now - target) * _total(situation))} on each GPU for something else",
            "only if something else needs the memory: one jump, then up again by 0.02 each time a "
            "start is refused or requests are preempted; the peak so far times 1.5 stays",
            current=f"{now:g}",
        )
    yield Advice(
        "--max-num-seqs",
        None,
        "more requests at once, if there are more to serve",
        "the other use of the room: more concurrency or a longer --max-model-len",
        current=situation.flags.text("max_num_seqs"),
    )


def _total(situation: Situation) -> float:
    return min(
        (
            float(vllm_total_bytes(device.reading.memory))
            for device, _ in situation.devices()
            if device.reading is not None and device.reading.memory is not None
        ),
        default=0.0,
    )


RULE = Rule("over_reserved", ("info",), judge, AT_ONCE, linger_seconds=0.0)
