"""The engine under the load of the scenarios, on simulated time."""

from __future__ import annotations

from random import Random

from sidecar.simulator.clients import ClosedLoopClients
from sidecar.simulator.deployment import Deployment
from sidecar.simulator.engine import Engine
from sidecar.simulator.scenarios import Scenario, stretches


class Drive:
    """Brings the engine and its clients forward in time; equal seeds give equal histories."""

    def __init__(
        self,
        scenarios: tuple[Scenario, ...],
        *,
        seed: int,
        seconds_per_scenario: float,
        deployment: Deployment | None = None,
    ) -> None:
        self.engine = Engine(deployment or Deployment())
        self._clients = ClosedLoopClients(Random(seed))  # noqa: S311 - a load, not a secret
        self._stretches = stretches(scenarios, seconds_per_scenario)
        self._stretch = next(self._stretches)
        self._next_stretch = next(self._stretches)

    @property
    def scenario_name(self) -> str:
        """The scenario that is being played."""
        return self._stretch.scenario_name

    @property
    def clock_seconds(self) -> float:
        """Simulated seconds since the start."""
        return self.engine.clock_seconds

    def advance(self, now_seconds: float) -> None:
        """Run every step that starts before `now_seconds`.

        The last one may end a little later, by at most the length of a step: a reader then sees
        a step's result that early, which at a poll a second nobody can tell.
        """
        engine, clients = self.engine, self._clients
        while engine.clock_seconds < now_seconds:
            self._follow_the_scenario()
            for request in clients.due(engine.clock_seconds):
                engine.submit(request)
            if engine.has_requests:
                for _ in engine.step():
                    clients.answered(engine.clock_seconds)
            else:
                next_events = [now_seconds, self._next_stretch.start_seconds]
                if clients.next_send_at_seconds is not None:
                    next_events.append(clients.next_send_at_seconds)
                engine.idle_until(min(next_events))
        self._follow_the_scenario()

    def _follow_the_scenario(self) -> None:
        while self._next_stretch.start_seconds <= self.engine.clock_seconds:
            self._stretch, self._next_stretch = self._next_stretch, next(self._stretches)
            if self._stretch.hang_up:
                self.engine.hang_up_all()
                self._clients.hang_up_all()
            self._clients.set_load(self._stretch.load, self.engine.clock_seconds)
