"""Bytes, shares and flags: the arithmetic under advice about memory.

vLLM's own "total" is what NVML calls total less what the driver reserves, and utilisation is a
share of that. Where `--kv-cache-memory-bytes` or `--num-gpu-blocks-override` is set,
`--gpu-memory-utilization` does nothing (vLLM 0.10.2 and 0.4.1 and later), so advice addresses the
flag in force.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sidecar.engine_history import EngineHistory
from sidecar.model import GpuMemory
from sidecar.verdicts.situation import GIB, MIB, Situation

SMALLEST_MARGIN_BYTES = 128 * MIB


def gib(size: float) -> str:
    """Bytes for people, in GiB."""
    return f"{size / GIB:.2f} GiB"


def vllm_total_bytes(memory: GpuMemory) -> int:
    """What vLLM takes as the whole device."""
    return memory.total_bytes - (memory.reserved_bytes or 0)


def margin_bytes(total_bytes: float) -> float:
    """What is left alone at each end of a calculation: 1 % of the device, at least 128 MiB."""
    return max(0.01 * total_bytes, SMALLEST_MARGIN_BYTES)


def round_utilization_down(share: float) -> float:
    """To the 0.01 below; a hair's breadth under a step counts as on it."""
    return math.floor(share * 100 + 1e-6) / 100


def round_utilization_up(share: float) -> float:
    """To the 0.01 above: when lowering, the careful side is the higher one."""
    return math.ceil(share * 100 - 1e-6) / 100


def utilization_in_force(situation: Situation) -> float | None:
    """`--gpu-memory-utilization` as the page, the log or the flags state it."""
    return situation.flags.number("gpu_memory_utilization")


def flag_in_force(situation: Situation) -> str:
    """The flag that sizes the KV cache of this server."""
    if situation.flags.text("num_gpu_blocks_override") is not None:
        return "--num-gpu-blocks-override"
    if situation.flags.text("kv_cache_memory_bytes") is not None:
        return "--kv-cache-memory-bytes"
    return "--gpu-memory-utilization"


def kv_bytes_per_gpu(situation: Situation, engine: EngineHistory) -> float | None:
    """Bytes of the KV cache on one GPU: from the flag that states them, else from the log."""
    config = engine.reading.cache if engine.reading is not None else None
    if config is None or config.num_gpu_blocks_override is not None:
        return None
    if config.kv_cache_memory_bytes is not None:
        return float(config.kv_cache_memory_bytes)
    start = situation.start
    return None if start is None else start.kv_cache_bytes_per_rank


@dataclass(frozen=True, slots=True)
class Room:
    """What could be added to the KV cache on the tightest GPU of the server."""

    gpu: str
    total_bytes: float
    vllm_bytes: float
    free_bytes: float

    @property
    def usable_bytes(self) -> float:
        return max(0.0, self.free_bytes - margin_bytes(self.total_bytes))


def room_for_more(situation: Situation) -> Room | None:
    """The GPU with the least free memory decides; None where memory or owners are not known."""
    rooms = [
        Room(
            scope.gpu,
            float(vllm_total_bytes(device.reading.memory)),
            float(device.owners.vllm_bytes),
            float(device.reading.memory.free_bytes),
        )
        for device, scope in situation.devices()
        if device.reading is not None
        and device.reading.memory is not None
        and device.owners is not None
        and device.owners.vllm_bytes is not None
    ]
    return min(rooms, key=lambda room: room.free_bytes, default=None)
