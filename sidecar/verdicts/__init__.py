"""What the sidecar concludes. A new verdict is a file here and a line below."""

from __future__ import annotations

from sidecar.verdicts import (
    caps,
    co_tenant,
    fragmentation,
    gpu_memory,
    host_memory,
    kv_exhausted,
    kv_leaked,
    kv_pressure,
    measurement,
    memory_held,
    over_reserved,
    runaway,
    stalled,
    states,
)
from sidecar.verdicts.rule import Rule

RULES: tuple[Rule, ...] = (
    states.STARTING,
    states.DOWN,
    states.BLIND,
    states.ASLEEP,
    states.RESTARTED,
    states.PAUSED,
    kv_exhausted.RULE,
    stalled.RULE,
    co_tenant.RULE,
    gpu_memory.ORPHAN,
    gpu_memory.GROWTH,
    gpu_memory.HEADROOM,
    host_memory.RULE,
    caps.SEQUENCES,
    caps.TOKEN_BUDGET,
    caps.LORA,
    kv_leaked.RULE,
    fragmentation.RULE,
    runaway.RUNAWAY,
    runaway.UNEXPLAINED,
    kv_pressure.RULE,
    over_reserved.RULE,
    memory_held.RULE,
    measurement.MISSING,
    measurement.INVALID,
    measurement.GPU,
)
