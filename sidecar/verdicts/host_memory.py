"""The host runs out of memory; on unified memory that is the GPU's memory, too."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Evidence, Severity, Verdict
from sidecar.verdicts.memory_arithmetic import flag_in_force, gib
from sidecar.verdicts.rule import SHORT, Rule
from sidecar.verdicts.situation import Situation


def judge(situation: Situation) -> Iterable[Verdict]:
    limits = situation.thresholds
    host = situation.snapshot.host
    if host is None:
        return
    memory = situation.history.memory
    unified = memory is not None and any(
        device.reading is not None and device.reading.unified for device in memory.devices.values()
    )
    left, total = host.memory_available_bytes, host.memory_total_bytes
    warning = limits.unified_warning_bytes if unified else limits.host_warning_ratio * total
    critical = limits.unified_critical_bytes if unified else limits.host_critical_ratio * total
    if left >= warning:
        return
    severity: Severity = "critical" if left < critical else "warning"
    where = "shared by CPU and GPU" if unified else "of the host"
    yield Verdict(
        "host_memory_low",
        severity,
        "high",
        f"{gib(left)} of {gib(total)} memory {where} are left; below that the kernel ends "
        "processes, or the machine stands still.",
        evidence=(
            Evidence("host_memory_available_bytes", float(left), "bytes", float(warning)),
            Evidence("unified", str(unified).lower()),
        ),
        advice=(
            Advice(
                flag_in_force(situation) if unified else "host",
                None,
                "memory for everything else",
                "on unified memory the pool, the page cache and every program share one memory: "
                "set --kv-cache-memory-bytes lower and --max-num-batched-tokens smaller"
                if unified
                else "end what else runs on the host; smaller --swap-space or "
                "--kv-offloading-size where they are set",
            ),
        ),
        avoid=(
            Avoid(
                "--gpu-memory-utilization",
                "it is no ceiling for what is taken while starting"
                if unified
                else "it does not change host memory",
            ),
        ),
    )


RULE = Rule("host_memory_low", ("warning", "critical"), judge, SHORT, level="server")
