"""What the clients of the simulated server do: the load of each scenario, and the tour of all.

Figures in the descriptions follow for the one simulated server (about 80,000 KV tokens, 128
sequences at most); its tests hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, cycle

QUIET_SHARE = 1 / 30
"""Share of a scenario's time before its first request: an observer sees an idle server."""

DRAIN_SHARE = 1 / 12
"""Share of it, at its end, in which clients of a tour send nothing new and answers run out."""


@dataclass(frozen=True, slots=True)
class Span:
    """A whole number drawn evenly from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Load:
    """So many clients at once, and the lengths of what they send and get."""

    concurrency: int
    prompt_tokens: Span
    generation_tokens: Span


@dataclass(frozen=True, slots=True)
class Phase:
    """A load that lasts until `until_share` (0-1) of the scenario's time has passed."""

    until_share: float
    load: Load


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name, what there is to see, and the phases; the last one ends at share 1."""

    name: str
    description: str
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of simulated time with one load; None: nobody sends.

    `hang_up` says that the clients of the stretch before leave at its start, answered or not.
    """

    scenario_name: str
    start_seconds: float
    load: Load | None
    hang_up: bool = False


HEALTHY = Scenario(
    name="healthy",
    description="52 clients: KV usage between 50 and 70 %, nothing waits, nothing is preempted.",
    # 52 of the longest requests (1,350 tokens) fit at once, so a preemption is impossible.
    phases=(Phase(1.0, Load(52, Span(600, 1000), Span(150, 350))),),
)

PREEMPTION_STORM = Scenario(
    name="preemption-storm",
    description="128 clients with long answers: the KV pool is full, running requests are thrown "
    "out and computed again, and waiting ones pile up.",
    phases=(Phase(1.0, Load(128, Span(300, 700), Span(300, 1700))),),
)

OVER_RESERVED = Scenario(
    name="over-reserved",
    description="2 clients: a few per cent of the reserved KV pool are ever used.",
    phases=(Phase(1.0, Load(2, Span(200, 800), Span(100, 300))),),
)

_MODERATE_PROMPTS, _SHORT_ANSWERS = Span(800, 1200), Span(100, 250)

DROP_32_4 = Scenario(
    name="drop-32-4",
    description="32 clients, then 4: KV usage falls with them, GPU memory stays where it was.",
    phases=(
        Phase(0.5, Load(32, _MODERATE_PROMPTS, _SHORT_ANSWERS)),
        Phase(1.0, Load(4, _MODERATE_PROMPTS, _SHORT_ANSWERS)),
    ),
)

TOUR = (HEALTHY, PREEMPTION_STORM, OVER_RESERVED, DROP_32_4)
"""All scenarios in the order in which a tour shows them."""

SCENARIOS = {scenario.name: scenario for scenario in TOUR}
"""The scenarios by name."""


def scenario_named(name: str) -> Scenario:
    """The scenario of that name. Raises ValueError with one line that lists the names there are."""
    try:
        return SCENARIOS[name]
    except KeyError:
        valid = ", ".join(SCENARIOS)
        raise ValueError(f"unknown scenario {name!r}; choose one of: {valid}") from None


def stretches(scenarios: tuple[Scenario, ...], seconds_per_scenario: float) -> Iterator[Stretch]:
    """The scenarios in turn, for ever, as consecutive stretches of simulated time.

    Between two scenarios the clients of the first stop sending and have a while to get their
    answers; whoever still waits at the switch hangs up, and a quiet moment follows. A scenario
    that repeats alone just goes on.
    """
    alone = len(scenarios) == 1
    for turn, scenario in zip(count(), cycle(scenarios)):
        start = turn * seconds_per_scenario
        quiet_share = 0.0 if alone and turn else QUIET_SHARE
        drain_from_share = 1.0 if alone else 1.0 - DRAIN_SHARE
        if quiet_share:
            yield Stretch(scenario.name, start, None, hang_up=True)
        from_share = quiet_share
        for phase in scenario.phases:
            yield Stretch(scenario.name, start + from_share * seconds_per_scenario, phase.load)
            from_share = phase.until_share
        if drain_from_share < 1.0:
            drain_at_seconds = start + drain_from_share * seconds_per_scenario
            yield Stretch(scenario.name, drain_at_seconds, None)
