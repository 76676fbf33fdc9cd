"""The character of each scenario, in numbers, over a simulated minute or a whole tour."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sidecar.simulator.drive import Drive
from sidecar.simulator.gpu import engine_memory_bytes
from sidecar.simulator.scenarios import SCENARIOS, TOUR, Scenario


@dataclass(frozen=True)
class Observed:
    """What a poll a second sees."""

    second: int
    scenario_name: str
    usage_ratio: float
    running: int
    waiting: int
    preemptions: int
    finished: int
    memory_bytes: int


def observe(drive: Drive, seconds: int) -> list[Observed]:
    engine = drive.engine
    observed = []
    for second in range(1, seconds + 1):
        drive.advance(float(second))
        observed.append(
            Observed(
                second=second,
                scenario_name=drive.scenario_name,
                usage_ratio=engine.pool.usage_ratio,
                running=len(engine.running),
                waiting=len(engine.waiting),
                preemptions=engine.statistics.preemptions,
                finished=engine.statistics.finished_requests,
                memory_bytes=engine_memory_bytes(engine.deployment, engine.largest_step_tokens),
            )
        )
    return observed


def drive_of(*scenarios: Scenario, seed: int = 0) -> Drive:
    return Drive(scenarios, seed=seed, seconds_per_scenario=60.0)


def between(observed: list[Observed], first: int, last: int) -> list[Observed]:
    return [each for each in observed if first <= each.second <= last]


@pytest.fixture(scope="module")
def tour() -> list[Observed]:
    return observe(drive_of(*TOUR), 240)


def test_each_starts_idle_and_shows_its_name(tour: list[Observed]) -> None:
    for turn, scenario in enumerate(TOUR):
        minute = between(tour, 60 * turn + 1, 60 * turn + 59)
        assert {each.scenario_name for each in minute} == {scenario.name}
        assert (minute[0].running, minute[0].waiting, minute[0].usage_ratio) == (0, 0, 0.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_healthy(seed: int) -> None:
    observed = between(observe(drive_of(SCENARIOS["healthy"], seed=seed), 60), 10, 60)
    assert all(0.5 <= each.usage_ratio <= 0.7 for each in observed)
    assert all(each.waiting == 0 for each in observed)
    assert all(48 <= each.running <= 52 for each in observed)
    assert observed[-1].preemptions == 0
    assert observed[-1].finished > 500


def check_storm(observed: list[Observed]) -> None:
    """Ten windows of five seconds: full, crowded, and preempting all the time."""
    assert observed[0].running > 100
    for start in range(10, 50, 5):
        window = between(observed, start, start + 5)
        assert all(each.usage_ratio > 0.95 for each in window)
        assert all(each.waiting > 10 for each in window[1:])
        finished = window[-1].finished - window[0].finished
        assert window[-1].preemptions - window[0].preemptions > 0.5 * finished > 1
    assert min(each.running for each in between(observed, 10, 30)) < 70


@pytest.mark.parametrize("seed", [0, 1])
def test_preemption_storm(seed: int) -> None:
    check_storm(between(observe(drive_of(SCENARIOS["preemption-storm"], seed=seed), 60), 6, 60))


def test_preemption_storm_on_the_tour(tour: list[Observed]) -> None:
    in_its_minute = [
        Observed(**{**vars(each), "second": each.second - 60}) for each in between(tour, 66, 115)
    ]
    check_storm(in_its_minute)


def test_over_reserved(tour: list[Observed]) -> None:
    minute = between(tour, 123, 175)
    assert all(0.0 < each.usage_ratio < 0.05 for each in between(minute, 125, 175))
    assert all(each.running <= 2 and each.waiting == 0 for each in minute)
    assert minute[-1].preemptions == minute[0].preemptions
    assert minute[-1].finished - minute[0].finished >= 40


def test_drop_32_4(tour: list[Observed]) -> None:
    high, low = between(tour, 190, 210), between(tour, 216, 235)
    assert all(28 <= each.running <= 32 and each.waiting == 0 for each in high)
    assert all(3 <= each.running <= 4 and each.waiting == 0 for each in low)
    assert min(each.usage_ratio for each in high) > 4 * max(each.usage_ratio for each in low)
    assert len({each.memory_bytes for each in high + low}) == 1


def test_memory_grows_with_the_first_full_prefill_and_never_shrinks(tour: list[Observed]) -> None:
    sizes = [each.memory_bytes for each in tour]
    assert sizes == sorted(sizes)
    assert 1.0e9 < sizes[-1] - sizes[0] < 1.3e9
    assert sizes[9] == sizes[-1]


def test_equal_seeds_are_equal_histories_however_they_are_read() -> None:
    one, other = drive_of(*TOUR, seed=3), drive_of(*TOUR, seed=3)
    observe(one, 70)
    for third in range(1, 211):
        other.advance(third / 3)
    assert one.clock_seconds == other.clock_seconds
    assert vars(one.engine.statistics)["finished"] == vars(other.engine.statistics)["finished"]
    assert one.engine.statistics.preemptions == other.engine.statistics.preemptions
    assert one.engine.pool.held_blocks == other.engine.pool.held_blocks
    assert (
        one.engine.statistics.inter_token_seconds.histogram()
        == other.engine.statistics.inter_token_seconds.histogram()
    )


def test_other_seeds_are_other_histories() -> None:
    histories = [observe(drive_of(SCENARIOS["healthy"], seed=seed), 10) for seed in (0, 1)]
    assert histories[0] != histories[1]


def test_time_never_runs_back_and_stays_within_a_step() -> None:
    drive = drive_of(SCENARIOS["healthy"])
    for now in (0.5, 2.1, 2.0, 2.4, 5.0):
        before = drive.clock_seconds
        drive.advance(now)
        assert drive.clock_seconds >= max(before, now)
        assert drive.clock_seconds < max(before, now) + 0.3
