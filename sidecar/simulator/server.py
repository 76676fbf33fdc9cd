"""The simulated server as a program would meet it: an HTTP application and a GPU source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from sidecar.simulator.drive import Drive
from sidecar.simulator.gpu import SimulatedGpus
from sidecar.simulator.page import MetricsPage
from sidecar.simulator.scenarios import TOUR, scenario_named

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SLICE_SECONDS = 1.0
"""Simulated time that is computed before the event loop gets its turn: some 10 ms of work."""

MAX_CATCH_UP_SECONDS = 10.0
"""Most simulated time that one read makes up for; beyond it the simulation stood still."""


class Simulation:
    """A server that works only while it is looked at.

    Every read, of the page or of the GPU, first brings the engine up to the present of `clock`
    (seconds from any origin, never backwards). After a long time without a reader only the last
    `MAX_CATCH_UP_SECONDS` of it are made up for. `wall_clock` (unix seconds) is read once: the
    page's creation stamps and process start come from it.

    Without a scenario all of them are shown in turn; an unknown name raises ValueError.
    """

    def __init__(
        self,
        scenario: str | None = None,
        *,
        seed: int = 0,
        seconds_per_scenario: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if seconds_per_scenario <= 0:
            raise ValueError(f"a scenario lasts a positive time, not {seconds_per_scenario} s")
        scenarios = TOUR if scenario is None else (scenario_named(scenario),)
        self.drive = Drive(scenarios, seed=seed, seconds_per_scenario=seconds_per_scenario)
        self._clock = clock
        self._origin_seconds = clock()
        self._started_at_unix_seconds = wall_clock()
        self._page = MetricsPage(self.drive.engine, self._started_at_unix_seconds)
        self.gpus = SimulatedGpus(self.drive.engine, self.catch_up)
        self.application = self._build_application()

    @property
    def scenario_now(self) -> str:
        """The scenario that the last read showed."""
        return self.drive.scenario_name

    async def catch_up(self) -> None:
        """Bring the engine to the present, in slices between which other tasks run."""
        now_seconds = self._clock() - self._origin_seconds
        excess_seconds = now_seconds - self.drive.clock_seconds - MAX_CATCH_UP_SECONDS
        if excess_seconds > 0:
            self._origin_seconds += excess_seconds
            now_seconds -= excess_seconds
        while self.drive.clock_seconds < now_seconds:
            self.drive.advance(min(now_seconds, self.drive.clock_seconds + SLICE_SECONDS))
            await asyncio.sleep(0)

    def _build_application(self) -> FastAPI:
        application = FastAPI(title="Simulated vLLM", docs_url=None, redoc_url=None)
        deployment = self.drive.engine.deployment

        @application.get("/metrics")
        async def metrics() -> Response:
            await self.catch_up()
            return Response(self._page.render(), media_type=CONTENT_TYPE)

        @application.get("/version")
        async def version() -> JSONResponse:
            return JSONResponse({"version": deployment.vllm_version})

        @application.get("/health")
        async def health() -> Response:
            return Response()

        @application.get("/v1/models")
        async def models() -> JSONResponse:
            model = {
                "id": deployment.model_name,
                "object": "model",
                "created": int(self._started_at_unix_seconds),
                "owned_by": "vllm",
                "root": deployment.model_name,
                "max_model_len": deployment.max_model_len_tokens,
            }
            return JSONResponse({"object": "list", "data": [model]})

        return application
