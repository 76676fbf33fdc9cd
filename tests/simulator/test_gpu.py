from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import GpuReading, GpuReport
from sidecar.simulator.deployment import GIB, Deployment
from sidecar.simulator.drive import Drive
from sidecar.simulator.gpu import SimulatedGpus, engine_memory_bytes
from sidecar.simulator.scenarios import SCENARIOS


class Reader:
    """A GPU over a drive that is advanced by hand."""

    def __init__(self, scenario_name: str) -> None:
        self.drive = Drive((SCENARIOS[scenario_name],), seed=0, seconds_per_scenario=60.0)
        self.now_seconds = 0.0
        self.gpus = SimulatedGpus(self.drive.engine, self._catch_up)

    async def _catch_up(self) -> None:
        self.drive.advance(self.now_seconds)

    async def at(self, now_seconds: float) -> GpuReading:
        self.now_seconds = now_seconds
        report = await self.gpus.read()
        assert isinstance(report, GpuReport)
        (device,) = report.gpus
        return device


async def test_memory_adds_up_to_the_byte_and_stays() -> None:
    reader = Reader("drop-32-4")
    sizes = []
    for second in range(0, 60, 3):
        device = await reader.at(float(second))
        memory = device.memory
        assert memory is not None
        assert memory.reserved_bytes is not None
        assert memory.used_bytes + memory.free_bytes + memory.reserved_bytes == 80 * GIB
        assert memory.total_bytes == 80 * GIB
        assert device.processes is not None
        (process,) = device.processes
        assert process.used_bytes == memory.used_bytes - reader.drive.engine.deployment.driver_bytes
        sizes.append(memory.used_bytes)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 2
    await reader.gpus.close()


@given(st.integers(0, 8192), st.integers(0, 8192))
def test_process_memory_follows_the_largest_step(one: int, other: int) -> None:
    deployment = Deployment()
    small, large = (engine_memory_bytes(deployment, tokens) for tokens in sorted((one, other)))
    assert small <= large
    at_rest = deployment.weights_bytes + deployment.kv_cache_bytes + deployment.context_bytes
    assert at_rest <= small
    # The flags hold: what was profiled for is never exceeded, up to one segment.
    allowed = deployment.gpu_memory_utilization * (80 * GIB - deployment.device_reserved_bytes)
    assert large <= allowed + 2 * 1024**2


@pytest.mark.parametrize(
    ("second", "low", "high"), [(1.0, 0.0, 0.0), (20.0, 0.8, 0.95)], ids=["idle", "serving"]
)
async def test_utilization(second: float, low: float, high: float) -> None:
    reader = Reader("healthy")
    device = await reader.at(second)
    assert device.utilization_ratio is not None
    assert device.memory_bandwidth_ratio is not None
    assert low <= device.utilization_ratio <= high
    assert device.memory_bandwidth_ratio <= device.utilization_ratio


async def test_a_second_read_at_the_same_moment_repeats_the_utilization() -> None:
    reader = Reader("healthy")
    first = await reader.at(20.0)
    second = await reader.at(20.0)
    assert first == second
