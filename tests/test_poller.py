"""The heartbeat, on an event loop where waiting takes no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import now, run_in_virtual_time

from sidecar.exposition import Board
from sidecar.model import Failure, GpuReading, GpuReport, Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.poller import Poller
from sidecar.recordings import Header, Recorder, RecordingError
from sidecar.sources.vllm import Identity, VllmSource

TEXT = 'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
REFUSED = Failure("refused", "http://vllm:8000: connection refused")
TIMEOUT = Failure("timeout", "no page from http://vllm:8000 in 5 s")
RELEASE = Identity("0.33.0", 4096)
UNIX = 1_700_000_000.0

Answer = tuple[float, str | Failure]
"""After how many seconds, and what: a page's text or a failure."""

UP: Answer = (0.01, TEXT)
DOWN: Answer = (0.001, REFUSED)
TIMED_OUT: Answer = (5.0, TIMEOUT)


class ScriptedVllm(VllmSource):
    """Gives the scripted answers in turn and then the last one for ever."""

    def __init__(
        self, *answers: Answer, identity_seconds: float = 0.01, identity: Identity = RELEASE
    ) -> None:
        self.address = "http://vllm:8000"
        self.asked_at: list[float] = []
        self.answered_at: list[float] = []
        self.identified_at: list[float] = []
        self.health_asked_at: list[float] = []
        self.pause_asked_at: list[float] = []
        self.healthy = False
        self.paused: bool | None = None
        self.cancelled = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._answers = list(answers)
        self._identity_seconds = identity_seconds
        self._identity = identity

    async def _take(self, seconds: float) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def read(self) -> Page | Failure:
        self.asked_at.append(now())
        seconds, answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        await self._take(seconds)
        self.answered_at.append(now())
        return answer if isinstance(answer, Failure) else Page(answer, seconds)

    async def identify(self) -> Identity:
        self.identified_at.append(now())
        await self._take(self._identity_seconds)
        return self._identity

    async def is_healthy(self) -> bool:
        self.health_asked_at.append(now())
        await self._take(0.001)
        return self.healthy

    async def is_paused(self) -> bool | None:
        self.pause_asked_at.append(now())
        await self._take(0.001)
        return self.paused

    @property
    def busy_seconds(self) -> float:
        return sum(end - start for start, end in zip(self.asked_at, self.answered_at, strict=False))


class ScriptedGpus:
    """Takes so long for each read, the last for ever. The index counts the reads."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds or (0.002,))
        self.reads = 0

    async def read(self) -> GpuReport | Failure | None:
        seconds = self._seconds.pop(0) if len(self._seconds) > 1 else self._seconds[0]
        self.reads += 1
        index = self.reads
        await asyncio.sleep(seconds)
        return GpuReport((GpuReading(index, "GPU-1", "H200"),), seconds)

    async def close(self) -> None:
        pass


class ListRecorder(Recorder):
    """Keeps polls and when they came; fails as if the disk were full once it has `room` of them."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.polls: list[Poll] = []
        self.times: list[float] = []
        self._room = room

    def add(self, poll: Poll) -> None:
        if len(self.polls) >= self._room:
            raise RecordingError("r.jsonl.gz: cannot be written: No space left on device")
        self.polls.append(poll)
        self.times.append(now())


@dataclass
class Watched:
    """What happened while a poller ran."""

    vllm: ScriptedVllm
    gpus: ScriptedGpus
    recorder: ListRecorder
    pipeline: Pipeline = field(default_factory=Pipeline)
    board: Board = field(default_factory=Board)
    poller: Poller | None = None
    left_in_flight: int | None = None

    @property
    def polls(self) -> list[Poll]:
        return self.recorder.polls

    @property
    def times(self) -> list[float]:
        """When each poll went out."""
        return self.recorder.times


def watch(
    seconds: float,
    vllm: ScriptedVllm,
    gpus: ScriptedGpus | None = None,
    *,
    period_seconds: float = 1.0,
    recorder: ListRecorder | None = None,
    must_record: bool = False,
    wall_clock: Callable[[], float] = lambda: UNIX + now(),
) -> Watched:
    """Run a poller for so many virtual seconds."""
    seen = Watched(vllm, gpus or ScriptedGpus(), recorder or ListRecorder())

    async def main() -> None:
        seen.poller = Poller(
            seen.vllm,
            seen.gpus,
            seen.pipeline,
            seen.board,
            period_seconds=period_seconds,
            recorder=seen.recorder,
            must_record=must_record,
            wall_clock=wall_clock,
            clock=now,
        )
        # Not TimeoutError's way out: the poller must not swallow its cancellation.
        running = asyncio.create_task(seen.poller.run())
        await asyncio.wait({running}, timeout=seconds)
        if running.done():
            running.result()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0.0)
        seen.left_in_flight = vllm.in_flight

    run_in_virtual_time(main())
    return seen


def answers(seen: Watched) -> list[str | None]:
    """What each poll said about vLLM: a letter each."""
    return [
        "page" if isinstance(poll.vllm, Page) else poll.vllm.reason if poll.vllm else None
        for poll in seen.polls
    ]


def test_a_healthy_server_is_polled_at_the_period() -> None:
    seen = watch(10.5, ScriptedVllm(UP))
    assert seen.vllm.asked_at == pytest.approx(range(11))
    assert answers(seen) == ["page"] * 11
    assert seen.pipeline.telemetry.overruns == 0
    assert [poll.at for poll in seen.polls] == pytest.approx([UNIX + t for t in seen.times])
    assert seen.poller is not None
    assert (seen.poller.polls, seen.poller.last) == (11, seen.polls[-1])
    assert seen.board.frame is not None
    assert seen.board.frame.at == seen.polls[-1].at


def test_a_slow_page_holds_nothing_up_and_belongs_to_the_poll_at_which_it_comes() -> None:
    seen = watch(8.5, ScriptedVllm((3.3, TEXT), UP))
    assert answers(seen) == [None, None, None, "page", None, None, None, "page", "page"]
    assert seen.gpus.reads == 9
    assert [gpu.index for poll in seen.polls if isinstance(poll.gpus, GpuReport)
            for gpu in poll.gpus.gpus] == list(range(1, 10))  # fmt: skip
    assert seen.pipeline.telemetry.overruns == 0
    assert all(0.0 <= time % 1.0 < 0.9 for time in seen.times)


@pytest.mark.parametrize("seconds", [0.2, 0.45, 0.55, 0.7, 0.9, 1.0, 1.4, 3.3, 4.9])
@pytest.mark.parametrize("answer", [TEXT, Failure("closed", "closed"), Failure("http_status", "")])
def test_a_slow_server_is_busy_with_us_at_most_half_of_the_time(
    seconds: float, answer: str | Failure
) -> None:
    seen = watch(120.0, ScriptedVllm((seconds, answer), identity_seconds=0.0))
    assert seen.vllm.busy_seconds <= 60.0 + seconds
    assert seen.vllm.busy_seconds >= 15.0  # and it is not given up
    assert seen.vllm.most_in_flight == 1


def rests(vllm: ScriptedVllm) -> list[float]:
    """How long the server was left alone after each answer."""
    return [start - end for end, start in zip(vllm.answered_at, vllm.asked_at[1:], strict=False)]


def test_timeouts_back_off() -> None:
    """At once, then after 10, 20 and every 30 s; a poll's rounding may add one."""
    seen = watch(240.0, ScriptedVllm(TIMED_OUT))
    expected = (0, 10, 20, 30, 30, 30)
    found = rests(seen.vllm)
    assert len(found) >= len(expected)
    for rest, least in zip(found, expected, strict=False):
        assert least <= rest <= least + 1.01
    assert seen.vllm.most_in_flight == 1
    assert len(seen.polls) == 240  # the GPUs were read all the same


def test_a_page_ends_the_back_off() -> None:
    seen = watch(60.0, ScriptedVllm(TIMED_OUT, TIMED_OUT, UP, TIMED_OUT, UP))
    assert rests(seen.vllm)[1] >= 10
    assert all(rest <= 1.01 for rest in rests(seen.vllm)[2:])


def test_timeouts_with_another_failure_between_them_are_not_in_a_row() -> None:
    seen = watch(30.0, ScriptedVllm(TIMED_OUT, DOWN, TIMED_OUT, UP))
    assert all(rest <= 1.01 for rest in rests(seen.vllm))


def test_a_refusing_server_is_asked_at_every_poll() -> None:
    """Nothing is there that could be hurt, and its return should be seen at once."""
    seen = watch(10.5, ScriptedVllm(DOWN))
    assert seen.vllm.asked_at == pytest.approx(range(11))
    assert seen.vllm.identified_at == []


# ---------------------------------------------------------------------------------------------
# Lateness.


def test_polls_that_come_late_are_counted_and_never_bunched() -> None:
    seen = watch(30.0, ScriptedVllm(UP), ScriptedGpus(0.0, 0.0, 3.4, 0.0))
    # The poll of second 2 ends at 5.4, so those of 3, 4 and 5 are skipped.
    assert seen.vllm.asked_at[:5] == pytest.approx([0, 1, 2, 6, 7])
    assert seen.pipeline.telemetry.overruns == 3


def test_a_poll_that_always_takes_longer_than_the_period() -> None:
    seen = watch(20.0, ScriptedVllm(UP), ScriptedGpus(1.9))
    assert seen.vllm.asked_at == pytest.approx([0, 2, 4, 6, 8, 10, 12, 14, 16, 18])
    assert seen.pipeline.telemetry.overruns == 10


def test_time_never_goes_back() -> None:
    def wall_clock() -> float:
        return UNIX + now() - (3600.0 if now() >= 5.0 else 0.0)  # someone sets the clock

    seen = watch(20.5, ScriptedVllm(UP), wall_clock=wall_clock)
    steps = [later.at - earlier.at for earlier, later in pairwise(seen.polls)]
    assert steps == pytest.approx([1.0] * 20, abs=0.05)


def test_a_clock_that_is_set_forward_is_followed() -> None:
    def wall_clock() -> float:
        return UNIX + now() + (3600.0 if now() >= 5.0 else 0.0)

    seen = watch(10.5, ScriptedVllm(UP), wall_clock=wall_clock)
    assert seen.polls[-1].at == pytest.approx(UNIX + 3610.0, abs=0.05)


# ---------------------------------------------------------------------------------------------
# Who answers.


def versions(seen: Watched) -> list[str | None]:
    return [poll.vllm_version for poll in seen.polls]


def test_who_answers_is_asked_once_after_each_coming_up() -> None:
    seen = watch(9.5, ScriptedVllm(DOWN, UP, UP, UP, DOWN, DOWN, UP))
    assert seen.vllm.identified_at == pytest.approx([1.01, 6.01])
    assert versions(seen) == [None, *["0.33.0"] * 3, None, None, *["0.33.0"] * 4]
    assert [poll.max_model_len for poll in seen.polls][1] == 4096


def test_one_late_page_is_no_new_server_but_two_may_be() -> None:
    once = watch(20.0, ScriptedVllm(UP, TIMED_OUT, UP))
    assert len(once.vllm.identified_at) == 1
    assert set(versions(once)) == {"0.33.0"}
    twice = watch(40.0, ScriptedVllm(UP, TIMED_OUT, TIMED_OUT, UP))
    assert len(twice.vllm.identified_at) == 2


def test_a_server_that_says_nothing_about_itself_is_not_asked_for_ever() -> None:
    seen = watch(10.5, ScriptedVllm(UP, identity=Identity()))
    assert len(seen.vllm.identified_at) == 1
    assert answers(seen) == ["page"] * 11


def test_a_slow_answer_to_who_holds_nothing_up() -> None:
    seen = watch(8.5, ScriptedVllm(UP, identity_seconds=3.2))
    assert seen.pipeline.telemetry.overruns == 0
    assert seen.gpus.reads == len(seen.polls) == 9
    # One question at a time: no page is asked for meanwhile.
    assert answers(seen) == ["page", None, None, None, *["page"] * 5]
    assert versions(seen) == [None, None, None, "0.33.0", *["0.33.0"] * 5]
    assert seen.vllm.most_in_flight == 1


# ---------------------------------------------------------------------------------------------
# Recording.


def test_a_full_disk_ends_the_recording_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = watch(10.5, ScriptedVllm(UP), recorder=ListRecorder(room=3))
    assert len(seen.polls) == 3
    assert seen.gpus.reads == 11
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        "r.jsonl.gz: cannot be written: No space left on device; "
        "the recording ends here, everything else goes on"
    ]
    assert all(record.exc_info is None for record in caplog.records)


def test_a_full_disk_ends_a_poller_whose_only_task_is_to_record() -> None:
    with pytest.raises(RecordingError, match="No space left"):
        watch(10.5, ScriptedVllm(UP), recorder=ListRecorder(room=3), must_record=True)


def test_a_real_recorder_gets_every_page_with_who_answered(tmp_path: Path) -> None:
    from sidecar.recordings import open_recording

    path = tmp_path / "r.jsonl.gz"

    async def main() -> None:
        with Recorder(path, Header("r", UNIX, 1.0)) as recorder:
            poller = Poller(
                ScriptedVllm(DOWN, UP),
                ScriptedGpus(),
                Pipeline(),
                Board(),
                recorder=recorder,
                wall_clock=lambda: UNIX + now(),
                clock=now,
            )
            for _ in range(3):
                await poller.poll_once()
                await asyncio.sleep(1.0)

    run_in_virtual_time(main())
    polls = list(open_recording(path).polls())
    assert [poll.vllm_version for poll in polls] == [None, "0.33.0", "0.33.0"]


# ---------------------------------------------------------------------------------------------
# What is said, and how it ends.


def told(caplog: pytest.LogCaptureFixture, *, verdicts: bool = False) -> list[str]:
    """The poller's lines: those about the source, or those about verdicts."""
    lines = [
        f"{record.levelname}: {record.getMessage()}"
        for record in caplog.records
        if record.name == "sidecar.poller"
    ]
    return [line for line in lines if (": verdict " in line) == verdicts]


def test_each_change_of_a_verdict_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch(20.0, ScriptedVllm(*[DOWN] * 2, *[UP] * 3, DOWN))
    about = [line for line in told(caplog, verdicts=True) if "metrics_missing" not in line]
    assert about == [
        "INFO: verdict starting (info): Nobody has answered here yet: the server may be starting, "
        "or the address may be wrong.",
        "INFO: verdict starting (info): over",
        "WARNING: verdict vllm_down (critical): The server was up and does not answer any more "
        "(refused).",
    ]


def test_health_is_asked_after_a_failed_page_and_not_of_nobody() -> None:
    vllm = ScriptedVllm(UP, (0.01, Failure("http_status", "500")), (0.01, REFUSED))
    vllm.healthy = True
    seen = watch(6.0, vllm)
    assert len(vllm.health_asked_at) == 1
    assert [poll.health for poll in seen.polls][:4] == [None, True, None, None]
    assert vllm.most_in_flight == 1


@pytest.mark.parametrize("paused", [True, None])
def test_a_frozen_batch_is_asked_about_once(paused: bool | None) -> None:
    """The scripted page never moves although three requests run on it."""
    vllm = ScriptedVllm(UP)
    vllm.paused = paused
    seen = watch(40.0, vllm)
    assert len(vllm.pause_asked_at) == 1
    assert 5.0 <= vllm.pause_asked_at[0] <= 8.0
    assert seen.polls[-1].paused is paused
    codes = {verdict.code for verdict in seen.board.frame.verdicts} if seen.board.frame else set()
    assert ("paused" in codes) == (paused is True)
    assert ("stalled" in codes) == (paused is None)


def test_only_changes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch(
        60.0,
        ScriptedVllm(*[DOWN] * 4, *[UP] * 4, TIMED_OUT, *[UP] * 3, *[DOWN] * 3, TIMED_OUT, UP),
    )
    assert told(caplog) == [
        "WARNING: vLLM: http://vllm:8000: connection refused",
        "INFO: vLLM answers at http://vllm:8000 (version 0.33.0)",
        "WARNING: vLLM: no page from http://vllm:8000 in 5 s",
        "INFO: vLLM answers again at http://vllm:8000",
        "WARNING: vLLM: http://vllm:8000: connection refused",
        "WARNING: vLLM: no page from http://vllm:8000 in 5 s",
        "INFO: vLLM answers at http://vllm:8000 (version 0.33.0)",
    ]


def test_an_unknown_version_is_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch(5.0, ScriptedVllm(UP, identity=Identity()))
    assert told(caplog) == ["INFO: vLLM answers at http://vllm:8000 (version not stated)"]


@pytest.mark.parametrize(
    "vllm",
    [
        pytest.param(ScriptedVllm((9.0, TEXT)), id="waiting for a page"),
        pytest.param(ScriptedVllm(UP, identity_seconds=9.0), id="waiting for who"),
    ],
)
def test_what_is_in_flight_is_cancelled_with_the_poller(vllm: ScriptedVllm) -> None:
    seen = watch(2.5, vllm)
    assert vllm.cancelled == 1
    assert seen.left_in_flight == 0


# ---------------------------------------------------------------------------------------------
# Whatever the sources do.

DURATIONS = st.sampled_from([0.0, 0.01, 0.5, 0.79, 0.81, 1.0, 1.5, 2.0, 5.0])
ANSWERS: st.SearchStrategy[Iterable[Answer]] = st.lists(
    st.tuples(DURATIONS, st.sampled_from([TEXT, TIMEOUT, REFUSED])), min_size=1, max_size=8
)


@given(ANSWERS, DURATIONS, st.lists(DURATIONS, min_size=1, max_size=4), st.sampled_from([0.5, 1.0]))
@settings(max_examples=40, deadline=None)
def test_whatever_the_sources_do(
    script: Iterable[Answer], identity_seconds: float, gpu_seconds: list[float], period: float
) -> None:
    vllm = ScriptedVllm(*script, identity_seconds=identity_seconds)
    gpus = ScriptedGpus(*gpu_seconds, 0.001)
    seen = watch(25.0, vllm, gpus, period_seconds=period)
    assert vllm.most_in_flight == 1
    assert all(later.at > earlier.at for earlier, later in pairwise(seen.polls))
    assert len(seen.polls) + seen.pipeline.telemetry.overruns >= 25.0 / period - 12
    collected = sum(poll.vllm is not None for poll in seen.polls)
    assert len(vllm.answered_at) - 1 <= collected <= len(vllm.answered_at)
