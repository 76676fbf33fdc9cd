"""The simulation as a program meets it: over HTTP, in process, on a clock set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.model import GpuReport
from sidecar.simulator import SCENARIOS, Simulation
from sidecar.simulator.server import MAX_CATCH_UP_SECONDS


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def simulation(clock: Clock) -> Simulation:
    return Simulation("healthy", clock=clock, wall_clock=lambda: 1_700_000_000.0)


@pytest.fixture
async def client(simulation: Simulation) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=simulation.application)
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as client:
        yield client


def running(text: str) -> float:
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:num_requests_running"
    ]
    return value


async def test_the_page_follows_the_clock(client: httpx.AsyncClient, clock: Clock) -> None:
    idle = await client.get("/metrics")
    assert idle.status_code == 200
    assert idle.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert running(idle.text) == 0
    clock.seconds += 9.0
    assert running((await client.get("/metrics")).text) >= 48


async def test_what_else_a_vllm_server_answers(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": "0.33.0"}
    assert (await client.get("/health")).status_code == 200
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("simulated/llama-8b", 4096)
    assert (await client.get("/is_paused")).status_code == 404


async def test_page_and_gpu_are_of_one_moment(
    client: httpx.AsyncClient, simulation: Simulation, clock: Clock
) -> None:
    clock.seconds += 5.0
    page, report = await asyncio.gather(client.get("/metrics"), simulation.gpus.read())
    assert isinstance(report, GpuReport)
    assert running(page.text) > 0
    utilization = report.gpus[0].utilization_ratio
    assert utilization is not None
    assert utilization > 0


async def test_a_long_time_without_a_reader_is_not_made_up_for(
    simulation: Simulation, clock: Clock
) -> None:
    clock.seconds += 3600.0
    await simulation.catch_up()
    assert simulation.drive.clock_seconds == pytest.approx(MAX_CATCH_UP_SECONDS, abs=0.5)
    clock.seconds += 1.0
    await simulation.catch_up()
    assert simulation.drive.clock_seconds == pytest.approx(MAX_CATCH_UP_SECONDS + 1.0, abs=0.5)


async def test_catching_up_lets_other_tasks_run(simulation: Simulation, clock: Clock) -> None:
    clock.seconds += MAX_CATCH_UP_SECONDS
    catching_up = asyncio.ensure_future(simulation.catch_up())
    turns = 0
    while not catching_up.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= MAX_CATCH_UP_SECONDS


async def test_the_tour_goes_through_all_scenarios(clock: Clock) -> None:
    simulation = Simulation(seconds_per_scenario=3.0, clock=clock)
    names = []
    for _ in range(5):
        names.append(simulation.scenario_now)
        clock.seconds += 3.0
        await simulation.catch_up()
    assert names == [*SCENARIOS, next(iter(SCENARIOS))]


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of: healthy"):
        Simulation("nonsense")
    with pytest.raises(ValueError, match="positive time"):
        Simulation(seconds_per_scenario=0.0)


async def test_a_second_of_the_storm_costs_little(clock: Clock) -> None:
    simulation = Simulation("preemption-storm", clock=clock)
    spent_seconds = []
    for _ in range(15):
        clock.seconds += 1.0
        started = perf_counter()
        await simulation.catch_up()
        spent_seconds.append(perf_counter() - started)
    # About 5 ms; the median, and a wide margin, because the machine may be busy.
    assert sorted(spent_seconds)[7] < 0.06
