"""Somebody else holds memory on a GPU of this server."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.memory_history import DeviceHistory
from sidecar.model import Advice, Avoid, Evidence, Scope, Severity, Verdict
from sidecar.verdicts.memory_arithmetic import flag_in_force, gib
from sidecar.verdicts.rule import TWO_POLLS, Rule
from sidecar.verdicts.situation import GIB, Situation

GROWING_SECONDS = 300.0
"""Foreign memory that grew within this time counts as arriving."""
GROWN_BYTES = GIB / 4


def judge(situation: Situation) -> Iterable[Verdict]:
    limits = situation.thresholds
    if situation.suspends_memory:
        return
    for device, scope in situation.devices():
        owners = device.owners
        if owners is None or not owners.other_bytes or owners.other_bytes < limits.neighbour_bytes:
            continue
        yield _verdict(situation, device, scope, owners.other_bytes, owners.assumed)


def _verdict(
    situation: Situation, device: DeviceHistory, scope: Scope, other: int, assumed: bool
) -> Verdict:
    limits = situation.thresholds
    reading = device.reading
    memory = reading.memory if reading is not None else None
    free = memory.free_bytes if memory is not None else 0
    total = memory.total_bytes if memory is not None else 1
    past = device.other.within(situation.at, GROWING_SECONDS)
    grew = bool(past) and (len(past) < 2 or other - min(past) >= GROWN_BYTES)
    severity: Severity = "info"
    if free < limits.neighbour_free_critical_ratio * total:
        severity = "critical"
    elif grew or free < limits.neighbour_free_warning_ratio * total:
        severity = "warning"
    moving = "growing" if grew else "steady"
    return Verdict(
        "co_tenant",
        severity,
        "low" if assumed else "high",
        f"Other processes hold {gib(other)} of GPU {scope.gpu} ({moving}); {gib(free)} are left "
        "for the next large prefill.",
        scope,
        evidence=(
            Evidence(
                "gpu_memory_owner_bytes_other",
                float(other),
                "bytes",
                float(limits.neighbour_bytes),
            ),
            Evidence(
                "gpu_memory_free_bytes",
                float(free),
                "bytes",
                limits.neighbour_free_critical_ratio * total,
            ),
        ),
        advice=(
            Advice(
                "neighbour",
                None,
                "the memory comes back",
                "end or move the other process; where both must share, start the one that takes "
                "a fixed share first",
            ),
            Advice(
                "--kv-cache-memory-bytes"
                if flag_in_force(situation) != "--num-gpu-blocks-override"
                else "--num-gpu-blocks-override",
                None,
                "a KV cache of fixed size, whatever else is on the card",
                "at the next start; leave room for what the neighbour needs and for the first "
                "load, which adds about a GiB",
            ),
        ),
        avoid=(Avoid("expandable_segments", "this memory is another process's"),),
        missing=("processes",) if assumed else (),
    )


RULE = Rule("co_tenant", ("info", "warning", "critical"), judge, TWO_POLLS, level="gpu")
