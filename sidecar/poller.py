"""Polls at a fixed rate and publishes a frame each time, whatever the sources do."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from sidecar.exposition import Board
from sidecar.lifecycle import GONE
from sidecar.model import Failure, Frame, HostReading, Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.recordings import Recorder, RecordingError
from sidecar.side_questions import FROZEN_SECONDS, SideQuestions
from sidecar.sources import GpuSource
from sidecar.sources.vllm import Identity, VllmSource
from sidecar.startlog import LogFollower

log = logging.getLogger(__name__)

_LONGEST_BACK_OFF_SECONDS = 30.0
_LOG_BYTES_A_POLL = 256 * 1024
"""A long log is caught up with over several polls, a few hundredths of a second each."""


class Poller:
    """The heartbeat.

    At most one answer of vLLM is awaited at any time. One that is late does not hold up the
    GPUs: the poll goes out without it, and the page belongs to the poll at which it arrives.
    A server that is slow is asked less often, so that it spends no more than half of its time
    on us; one that times out twice in a row is asked ever more rarely, up to 30 s apart.

    A recording that cannot be continued ends, and nothing else does, unless `must_record`: then
    `run` raises the `RecordingError`.
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
        must_record: bool = False,
        log_follower: LogFollower | None = None,
        read_host: Callable[[], HostReading | None] = lambda: None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vllm = vllm
        self._gpus = gpus
        self._pipeline = pipeline
        self._board = board
        self._period_seconds = period_seconds
        self._recorder = recorder
        self._must_record = must_record
        self._read_host = read_host
        self._wall_clock = wall_clock
        self._clock = clock
        self._page: asyncio.Task[Page | Failure] | None = None
        self._page_asked_at = -math.inf
        self._next_page_at = -math.inf
        self._timeouts_in_a_row = 0
        self._asking: asyncio.Task[Identity] | None = None
        self._identity: Identity | None = None
        self._last_failure: str | None = None
        self._last_polled_at = -math.inf
        self._questions = SideQuestions(vllm)
        self._log = log_follower
        self._log_error: str | None = None
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
            for task in (self._page, self._asking):
                if task is not None:
                    task.cancel()
            self._questions.cancel()

    async def poll_once(self) -> Poll:
        """Read everything once and publish what follows from it."""
        started = self._clock()
        patience_ends = started + 0.8 * self._period_seconds
        if self._may_ask_for_a_page(started):
            self._page_asked_at = started
            self._page = asyncio.create_task(self._vllm.read())
        gpus = asyncio.create_task(self._gpus.read())
        await self._wait_for(self._page, patience_ends)
        answer = self._collect_page()
        await self._wait_for(self._asking, patience_ends)
        self._collect_identity()
        await self._wait_for(self._questions.pending, patience_ends)
        self._questions.collect()
        self._read_log()
        poll = Poll(
            at=self._wall_time(),
            vllm=answer,
            gpus=await gpus,
            vllm_version=self._identity.version if self._identity else None,
            max_model_len=self._identity.max_model_len if self._identity else None,
            host=self._read_host(),
            health=self._questions.healthy,
            paused=self._questions.paused,
        )
        frame = self._pipeline.advance(poll)
        self._board.publish(frame)
        _tell_changes(frame)
        self._record(poll)
        self.polls += 1
        self.last = poll
        return poll

    def _may_ask_for_a_page(self, now: float) -> bool:
        """Never more than one request at a time, and not before the back-off is over."""
        busy = self._page or self._asking or self._questions.pending
        return busy is None and now >= self._next_page_at

    def _read_log(self) -> None:
        """Take in what vLLM has logged since the last poll."""
        if self._log is None:
            return
        if self._log.read_new(_LOG_BYTES_A_POLL):
            self._pipeline.judge.start = self._log.reader.last
        if self._log.error != self._log_error:
            self._log_error = self._log.error
            if self._log_error is not None:
                log.warning("%s", self._log_error)

    async def _wait_for(self, task: asyncio.Task[Any] | None, until: float) -> None:
        if task is not None:
            await asyncio.wait({task}, timeout=max(0.0, until - self._clock()))

    def _wall_time(self) -> float:
        """Unix time, except that it never goes back: everything later is ordered by it."""
        at, now = self._wall_clock(), self._clock()
        if self.last is not None and at <= self.last.at:
            at = self.last.at + max(now - self._last_polled_at, 1e-3)
        self._last_polled_at = now
        return at

    def _collect_page(self) -> Page | Failure | None:
        if self._page is None or not self._page.done():
            return None
        answer, self._page = self._page.result(), None
        if isinstance(answer, Page):
            self._came_up(answer)
        else:
            self._failed(answer)
        return answer

    def _came_up(self, page: Page) -> None:
        self._timeouts_in_a_row = 0
        self._next_page_at = self._clock() + page.seconds
        if self._identity is None:
            self._asking = asyncio.create_task(self._vllm.identify())
        elif self._last_failure is not None:
            log.info("vLLM answers again at %s", self._vllm.address)
        self._last_failure = None
        self._questions.page_came(frozen=self._is_frozen())

    def _is_frozen(self) -> bool:
        """Whether some batch stood still at the last poll."""
        return any(
            engine.reading is not None
            and bool(engine.reading.running)
            and engine.at - engine.last_progress_at >= FROZEN_SECONDS
            for engine in self._pipeline.history.engines
        )

    def _failed(self, failure: Failure) -> None:
        now = self._clock()
        if failure.reason == "timeout":
            self._timeouts_in_a_row += 1
            self._next_page_at = now + _back_off_seconds(self._timeouts_in_a_row)
        else:
            self._timeouts_in_a_row = 0
            self._next_page_at = now + (now - self._page_asked_at)
        if self._timeouts_in_a_row != 1:  # a single late page is no new server
            self._identity = None
        self._questions.page_failed(gone=failure.reason in GONE)
        if failure.reason != self._last_failure:
            self._last_failure = failure.reason
            log.warning("vLLM: %s", failure.detail)

    def _collect_identity(self) -> None:
        if self._asking is None or not self._asking.done():
            return
        self._identity, self._asking = self._asking.result(), None
        self._questions.came_up()
        version = self._identity.version
        described = f"version {version}" if version else "version not stated"
        log.info("vLLM answers at %s (%s)", self._vllm.address, described)

    def _record(self, poll: Poll) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.add(poll)
        except RecordingError as error:
            if self._must_record:
                raise
            self._recorder = None
            log.error("%s; the recording ends here, everything else goes on", error)


def _tell_changes(frame: Frame) -> None:
    """Each verdict that began or ended at this poll is one line."""
    for change in frame.changes:
        if change.at == frame.at:
            verdict = change.verdict
            told = log.warning if change.began and verdict.severity != "info" else log.info
            what = verdict.summary if change.began else "over"
            told("verdict %s (%s): %s", verdict.code, verdict.severity, what)


def _back_off_seconds(timeouts_in_a_row: int) -> float:
    """At once after the first, for one page may be late; then 10, 20 and 30 s."""
    if timeouts_in_a_row == 1:
        return 0.0
    return min(_LONGEST_BACK_OFF_SECONDS, 10.0 * 2.0 ** (min(timeouts_in_a_row, 4) - 2))
