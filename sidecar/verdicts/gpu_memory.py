"""Trouble with GPU memory itself: left behind, growing without end, or nearly gone."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.memory_history import HOUR, DeviceHistory
from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.verdicts.memory_arithmetic import (
    flag_in_force,
    gib,
    margin_bytes,
    round_utilization_down,
    utilization_in_force,
    vllm_total_bytes,
)
from sidecar.verdicts.rule import AT_ONCE, SHORT, Rule
from sidecar.verdicts.situation import Situation

KV_FLAT_RATIO = 0.1


def judge_orphan(situation: Situation) -> Iterable[Verdict]:
    """Processes of the server that hold memory although nobody listens any more."""
    limits = situation.thresholds
    life, memory = situation.lifecycle, situation.history.memory
    if not life.is_gone or memory is None or life.new_process_seen or life.gone_since is None:
        return
    if situation.at - life.gone_since < limits.orphan_seconds:
        return
    for device, scope in situation.devices():
        owners = device.owners
        if owners is None or not owners.vllm_bytes or owners.assumed:
            continue
        pids = sorted(device.pids & (memory.own_pids or frozenset()))
        listed = ", ".join(str(pid) for pid in pids) or "unknown"
        yield Verdict(
            "orphan",
            "warning",
            "high",
            f"The server is gone and its processes still hold {gib(owners.vllm_bytes)} of GPU "
            f"{scope.gpu} (pids {listed}).",
            scope,
            evidence=(
                Evidence("gpu_memory_owner_bytes_vllm", float(owners.vllm_bytes), "bytes", 0.0),
                Evidence("pids", listed),
            ),
            advice=(
                Advice(
                    "end processes",
                    None,
                    f"{gib(owners.vllm_bytes)} come back",
                    f"end pids {listed}, which outlived their API server; a new start would find "
                    "no memory until then",
                ),
            ),
            avoid=(Avoid("--gpu-memory-utilization", "the memory is held by a dead server"),),
        )


def judge_growth(situation: Situation) -> Iterable[Verdict]:
    """vLLM's own bytes rise for half an hour without a plateau while the KV cache does not."""
    limits = situation.thresholds
    memory = situation.history.memory
    if memory is None or not _kv_is_flat(situation):
        return
    for device, scope in situation.devices():
        slope = memory.growth_bytes_per_hour(device, at_least_seconds=HOUR / 2 - 60.0)
        if slope is None or device.warmup_peak_bytes is None or device.reading is None:
            continue
        sizes = device.reading.memory
        owners = device.owners
        if sizes is None or owners is None or owners.vllm_bytes is None:
            continue
        grown = owners.vllm_bytes - device.warmup_peak_bytes
        if (
            slope <= 0
            or grown < limits.growth_ratio * sizes.total_bytes
            or _has_plateau(situation, device)
        ):
            continue
        left = sizes.free_bytes / slope * HOUR
        yield Verdict(
            "memory_growth",
            "warning",
            "medium",
            f"vLLM's memory on GPU {scope.gpu} has grown {gib(grown)} beyond its first load and "
            f"goes on by {gib(slope)} an hour while the KV cache does not.",
            scope,
            evidence=(
                Evidence(
                    "gpu_memory_growth_bytes",
                    float(grown),
                    "bytes",
                    limits.growth_ratio * sizes.total_bytes,
                ),
                Evidence("gpu_memory_growth_bytes_per_hour", slope, "bytes"),
                Evidence("gpu_memory_exhaustion_seconds", left, "seconds"),
            ),
            advice=tuple(_less(situation, 0.02, "gains time; find what grows meanwhile")),
            avoid=(Avoid("--max-num-seqs", "the KV cache is not what grows"),),
        )


def _kv_is_flat(situation: Situation) -> bool:
    """The KV cache cannot be the reason: it is allocated once, and its use has not risen much."""
    for engine, _ in situation.engines():
        values = engine.usage.within(engine.at, HOUR / 2)
        if values and values[-1] - values[0] > KV_FLAT_RATIO and engine.reading is not None:
            return False
    return any(True for _ in situation.settled_engines())


def _has_plateau(situation: Situation, device: DeviceHistory) -> bool:
    """The last third of the half hour brought no new maximum."""
    values = device.vllm.within(situation.at, HOUR / 2)
    third = max(1, len(values) // 3)
    return len(values) < 3 or max(values[-third:]) <= max(values[:-third])


def judge_headroom(situation: Situation) -> Iterable[Verdict]:
    """So little is free that the next allocation outside the pool may fail."""
    limits = situation.thresholds
    serving = any(
        e.reading is not None and e.reading.running for e, _ in situation.settled_engines()
    )
    if not serving:
        return
    for device, scope in situation.devices():
        sizes = device.reading.memory if device.reading is not None else None
        if sizes is None:
            continue
        limit = max(limits.headroom_bytes, 0.01 * sizes.total_bytes)
        if sizes.free_bytes >= limit:
            continue
        short = limit - sizes.free_bytes
        yield Verdict(
            "headroom_low",
            "warning",
            "high",
            f"GPU {scope.gpu} has {gib(sizes.free_bytes)} left while serving; a large prefill, a "
            "new adapter or a graph may need more.",
            scope,
            evidence=(Evidence("gpu_memory_free_bytes", float(sizes.free_bytes), "bytes", limit),),
            advice=tuple(
                _less(
                    situation,
                    max(0.01, (short + margin_bytes(sizes.total_bytes)) / vllm_total_bytes(sizes)),
                    f"{gib(short + margin_bytes(sizes.total_bytes))} more stay free",
                )
            ),
        )


def _less(situation: Situation, by: float, expect: str) -> Iterable[Advice]:
    """A smaller share for vLLM, by the flag in force."""
    flag, now = flag_in_force(situation), utilization_in_force(situation)
    if flag == "--gpu-memory-utilization" and now is not None:
        yield Advice(
            flag,
            f"{round_utilization_down(now - by):.2f}",
            expect,
            "costs that much KV cache; go back by 0.02 once it is stable",
            current=f"{now:g}",
        )
    else:
        yield Advice(flag, None, expect, "lower what this flag sets by what is missing")


ORPHAN = Rule("orphan", ("warning",), judge_orphan, AT_ONCE, level="gpu")
GROWTH = Rule("memory_growth", ("warning",), judge_growth, AT_ONCE, level="gpu")
HEADROOM = Rule("headroom_low", ("warning",), judge_headroom, SHORT, level="gpu")
