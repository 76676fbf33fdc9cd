from __future__ import annotations

from itertools import islice

import pytest

from sidecar.simulator.deployment import Deployment
from sidecar.simulator.scenarios import DROP_32_4, HEALTHY, SCENARIOS, TOUR, scenario_named
from sidecar.simulator.scenarios import stretches as stretches_of


def test_an_unknown_name_lists_the_valid_ones_on_one_line() -> None:
    with pytest.raises(ValueError, match="unknown scenario 'helthy'") as raised:
        scenario_named("helthy")
    line = str(raised.value)
    assert "\n" not in line
    assert all(name in line for name in SCENARIOS)


def test_every_scenario_has_a_name_a_description_and_ends() -> None:
    assert list(SCENARIOS) == ["healthy", "preemption-storm", "over-reserved", "drop-32-4"]
    for scenario in TOUR:
        assert scenario_named(scenario.name) is scenario
        assert scenario.description.endswith(".")
        assert scenario.phases[-1].until_share == 1.0


@pytest.mark.parametrize("scenario", TOUR, ids=lambda scenario: scenario.name)
def test_no_request_is_longer_than_the_server_allows(scenario: object) -> None:
    assert isinstance(scenario, type(HEALTHY))
    for phase in scenario.phases:
        longest = phase.load.prompt_tokens.high + phase.load.generation_tokens.high
        assert longest <= Deployment().max_model_len_tokens
        assert phase.load.concurrency <= Deployment().max_num_seqs


def test_a_tour_is_quiet_between_scenarios_and_repeats() -> None:
    seen = list(islice(stretches_of((HEALTHY, DROP_32_4), 60.0), 8))
    assert [(each.scenario_name, round(each.start_seconds, 6)) for each in seen] == [
        ("healthy", 0),
        ("healthy", 2),
        ("healthy", 55),
        ("drop-32-4", 60),
        ("drop-32-4", 62),
        ("drop-32-4", 90),
        ("drop-32-4", 115),
        ("healthy", 120),
    ]
    concurrency = [each.load.concurrency if each.load else 0 for each in seen]
    assert concurrency == [0, 52, 0, 0, 32, 4, 0, 0]
    assert [each.hang_up for each in seen] == [True, False, False, True, False, False, False, True]


def test_a_scenario_alone_goes_on_without_a_break() -> None:
    seen = list(islice(stretches_of((DROP_32_4,), 60.0), 5))
    assert [round(each.start_seconds, 6) for each in seen] == [0, 2, 30, 60, 90]
    concurrency = [each.load.concurrency if each.load else 0 for each in seen]
    assert concurrency == [0, 32, 4, 32, 4]
    assert not any(each.hang_up for each in seen[1:])
