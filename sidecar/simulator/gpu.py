"""The device under the simulated server, read like a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

from sidecar.model import Failure, GpuMemory, GpuProcess, GpuReading, GpuReport
from sidecar.simulator.deployment import MIB, Deployment
from sidecar.simulator.engine import Engine

ENGINE_PROCESS_ID = 4242
"""The process that the device names as the holder of the server's memory."""

DRIVER_VERSION = "580.0 (simulated)"

# Shares of a busy second in which a kernel runs, and in which memory is read or written: what
# NVML said of an 8B model with 32 requests running (95 % and 61 %, vLLM 0.25 on an H200).
_KERNEL_SHARE = 0.95
_MEMORY_SHARE = 0.61

_SEGMENT_BYTES = 2 * MIB  # what the device allocates in


def engine_memory_bytes(deployment: Deployment, largest_step_tokens: int) -> int:
    """Device bytes of the server's process.

    Weights, KV pool and context are taken at the start. The buffers of a step come with the first
    steps, in proportion to the tokens in them, and the allocator keeps the largest it ever needed:
    a server grows by about 1 GiB at its first full prefill and never shrinks after.
    """
    share_of_budget = largest_step_tokens / deployment.max_num_batched_tokens
    segments = -(-int(deployment.activation_peak_bytes * share_of_budget) // _SEGMENT_BYTES)
    at_start = deployment.weights_bytes + deployment.kv_cache_bytes + deployment.context_bytes
    return at_start + segments * _SEGMENT_BYTES


class SimulatedGpus:
    """One 80 GiB device. `read` first brings the simulation up to the present."""

    def __init__(self, engine: Engine, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._catch_up = catch_up
        self._read_at_seconds = 0.0
        self._busy_seconds = 0.0
        self._busy_ratio = 0.0

    async def read(self) -> GpuReport | Failure:
        """The device now; of the kinds of answer a source may give, this one never fails."""
        started = perf_counter()
        await self._catch_up()
        deployment = self._engine.deployment
        process_bytes = engine_memory_bytes(deployment, self._engine.largest_step_tokens)
        used_bytes = process_bytes + deployment.driver_bytes
        reserved_bytes = deployment.device_reserved_bytes
        busy_ratio = self._busy_since_last_read()
        device = GpuReading(
            index=0,
            uuid="GPU-00000000-0000-4000-8000-000000000080",
            name="Simulated GPU 80 GiB",
            memory=GpuMemory(
                total_bytes=deployment.device_total_bytes,
                used_bytes=used_bytes,
                free_bytes=deployment.device_total_bytes - used_bytes - reserved_bytes,
                reserved_bytes=reserved_bytes,
            ),
            utilization_ratio=_KERNEL_SHARE * busy_ratio,
            memory_bandwidth_ratio=_MEMORY_SHARE * busy_ratio,
            processes=(GpuProcess(pid=ENGINE_PROCESS_ID, used_bytes=process_bytes),),
        )
        return GpuReport(
            gpus=(device,), seconds=perf_counter() - started, driver_version=DRIVER_VERSION
        )

    async def close(self) -> None:
        """Nothing to let go of."""

    def _busy_since_last_read(self) -> float:
        """Share of the simulated time since the last read that was spent in steps (0-1)."""
        passed_seconds = self._engine.clock_seconds - self._read_at_seconds
        if passed_seconds > 0:
            worked_seconds = self._engine.busy_seconds - self._busy_seconds
            self._busy_ratio = min(1.0, max(0.0, worked_seconds / passed_seconds))
            self._read_at_seconds = self._engine.clock_seconds
            self._busy_seconds = self._engine.busy_seconds
        return self._busy_ratio
