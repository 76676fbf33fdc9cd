"""Poll in, frame out: the whole of the sidecar's thinking, without I/O and without a clock."""

from __future__ import annotations

from dataclasses import replace

from sidecar.history import History
from sidecar.indicators import measure
from sidecar.judge import Judge
from sidecar.launch import LaunchFlags
from sidecar.model import Failure, Frame, Page, Poll, Snapshot
from sidecar.settings import Thresholds
from sidecar.sources.releases import parse_release
from sidecar.sources.vllm_text import read_page
from sidecar.telemetry import Telemetry
from sidecar.verdict_samples import verdict_samples


def understand(poll: Poll) -> Snapshot:
    """Parse what a poll brought. Pure."""
    snapshot = Snapshot(
        at=poll.at,
        server=None,
        failure=poll.vllm if isinstance(poll.vllm, Failure) else None,
        gpus=poll.gpus,
        vllm_version=poll.vllm_version,
        max_model_len=poll.max_model_len,
        phase=poll.phase,
        host=poll.host,
        health=poll.health,
        paused=poll.paused,
    )
    if not isinstance(poll.vllm, Page):
        return snapshot
    server = read_page(poll.vllm.text, parse_release(poll.vllm_version))
    return replace(snapshot, server=server, vllm_seconds=poll.vllm.seconds)


class Pipeline:
    """The same for a live server, a simulation and a recording: only polls differ."""

    def __init__(
        self,
        thresholds: Thresholds | None = None,
        flags: LaunchFlags | None = None,
        *,
        instant: bool = False,
        log_is_complete: bool = False,
    ) -> None:
        self.history = History(thresholds)
        self.telemetry = Telemetry()
        self.judge = Judge(flags, thresholds, instant=instant, log_is_complete=log_is_complete)

    def advance(self, poll: Poll) -> Frame:
        snapshot = understand(poll)
        self.history.start = self.judge.start
        self.history.add(snapshot)
        self.telemetry.add(snapshot)
        samples, unavailable = measure(self.history)
        verdicts = self.judge.judge(snapshot, self.history)
        return Frame(
            at=poll.at,
            snapshot=snapshot,
            samples=(
                *samples,
                *verdict_samples(self.history, verdicts),
                *self.telemetry.samples(),
            ),
            unavailable=unavailable,
            verdicts=verdicts,
            changes=self.judge.changes,
        )
