"""Polls at a fixed rate and publishes a frame each time, whatever the sources do."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from sidecar.exposition import Board
from sidecar.model import Failure, Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.recordings import Recorder
from sidecar.sources import GpuSource
from sidecar.sources.vllm import Identity, VllmSource

log = logging.getLogger(__name__)

_LONGEST_BACK_OFF_SECONDS = 30.0


class Poller:
    """The heartbeat.

    At most one page of vLLM is awaited at any time. A page that is late does not hold up the
    GPUs: the poll goes out without it, and the page belongs to the poll at which it arrives.
    A server that is slow is asked less often, so that it spends no more than half of its time
    on us; one that times out twice in a row is asked ever more rarely, up to 30 s apart.
    """

    def __init__(
        self,
        vllm: VllmSource,
        gpus: GpuSource,
        pipeline: Pipeline,
        board: Board,
        *,
        period_seconds: float = 1.0,
        recorder: Recorder | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vllm = vllm
        self._gpus = gpus
        self._pipeline = pipeline
        self._board = board
        self._period_seconds = period_seconds
        self._recorder = recorder
        self._wall_clock = wall_clock
        self._clock = clock
        self._page: asyncio.Task[Page | Failure] | None = None
        self._next_page_at = -math.inf
        self._timeouts_in_a_row = 0
        self._identity: Identity | None = None
        self._last_failure: str | None = None
        self.polls = 0
        self.last: Poll | None = None

    async def run(self) -> None:
        """Poll until cancelled. Polls that come late are skipped and counted, never bunched."""
        due = self._clock()
        try:
            while True:
                await self.poll_once()
                due += self._period_seconds
                late = self._clock() - due
                if late > 0:
                    skipped = math.floor(late / self._period_seconds) + 1
                    self._pipeline.telemetry.overruns += skipped
                    due += skipped * self._period_seconds
                await asyncio.sleep(due - self._clock())
        finally:
            if self._page is not None:
                self._page.cancel()

    async def poll_once(self) -> Poll:
        """Read everything once and publish what follows from it."""
        if self._page is None and self._clock() >= self._next_page_at:
            self._page = asyncio.create_task(self._vllm.read())
        gpus = asyncio.create_task(self._gpus.read())
        if self._page is not None:
            await asyncio.wait({self._page}, timeout=0.8 * self._period_seconds)
        poll = Poll(
            at=self._wall_clock(),
            vllm=await self._collect_page(),
            gpus=await gpus,
            vllm_version=self._identity.version if self._identity else None,
            max_model_len=self._identity.max_model_len if self._identity else None,
        )
        self._board.publish(self._pipeline.advance(poll))
        if self._recorder is not None:
            self._recorder.add(poll)
        self.polls += 1
        self.last = poll
        return poll

    async def _collect_page(self) -> Page | Failure | None:
        if self._page is None or not self._page.done():
            return None
        answer, self._page = self._page.result(), None
        now = self._clock()
        if isinstance(answer, Page):
            self._timeouts_in_a_row = 0
            self._next_page_at = (
                now + answer.seconds if answer.seconds > self._period_seconds else now
            )
            if self._identity is None:
                self._identity = await self._vllm.identify()
                log.info("vLLM answers at %s (%s)", self._vllm.address, self._describe())
            self._last_failure = None
            return answer
        self._identity = None
        if answer.reason == "timeout":
            self._timeouts_in_a_row += 1
            back_off = 2.5 * 2.0 ** min(self._timeouts_in_a_row, 10)
            self._next_page_at = (
                now + min(_LONGEST_BACK_OFF_SECONDS, back_off)
                if self._timeouts_in_a_row > 1
                else now
            )
        if answer.reason != self._last_failure:
            self._last_failure = answer.reason
            log.warning("vLLM: %s", answer.detail)
        return answer

    def _describe(self) -> str:
        version = self._identity.version if self._identity else None
        return f"version {version}" if version else "version not stated"
