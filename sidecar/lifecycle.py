"""Is the server starting, up, down, or just back? Judged from polls alone."""

from __future__ import annotations

from sidecar.history import History
from sidecar.model import Snapshot
from sidecar.settings import Thresholds

GONE = frozenset({"refused", "closed", "unreachable", "unresolved"})
"""Reasons of a failed page that mean that nobody is there."""

FOREIGN = frozenset({"tls", "protocol"})
"""Reasons that mean that somebody is there and does not speak as vLLM does at this address."""


class Lifecycle:
    """What the polls say about the life of the server.

    A refused or closed connection means that nobody is there; a time-out only that nobody
    answered. `health` is what `/health` last said: asked only after a failed page, None where
    it was not.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or Thresholds()
        self.began_at: float | None = None
        self.ever_up = False
        self.up = False
        self.last_up_at: float | None = None
        self.restarted_at: float | None = None
        self.gone_in_a_row = 0
        self.gone_since: float | None = None
        self.failing_since: float | None = None
        self.failure_reason: str | None = None
        self.health: bool | None = None
        self.new_process_since: float | None = None
        self._pids_when_up: frozenset[int] = frozenset()

    def add(self, snapshot: Snapshot, history: History) -> None:
        at = snapshot.at
        self.began_at = at if self.began_at is None else self.began_at
        if snapshot.server is not None:
            if history.restarted_at == at:
                self.restarted_at = at
            self.up = self.ever_up = True
            self.last_up_at = at
            self.gone_in_a_row = 0
            self.failing_since = self.failure_reason = self.gone_since = None
            self.health = None
            self.new_process_since = None
            self._pids_when_up = history.present_pids
        elif snapshot.failure is not None:
            self.up = False
            self.failure_reason = snapshot.failure.reason
            self.failing_since = at if self.failing_since is None else self.failing_since
            self._count_gone(at, snapshot.failure.reason)
            self.health = snapshot.health
            if self.is_gone:
                self._look_for_a_new_process(at, history)

    def _count_gone(self, at: float, reason: str) -> None:
        if reason not in GONE:
            self.gone_in_a_row, self.gone_since = 0, None
            return
        self.gone_in_a_row += 1
        self.gone_since = at if self.gone_since is None else self.gone_since

    def _look_for_a_new_process(self, at: float, history: History) -> None:
        """Processes that were not there while the server was up may be its next life, as long
        as they live."""
        if history.memory is None:
            return
        if not history.present_pids - self._pids_when_up:
            self.new_process_since = None
        elif self.new_process_since is None:
            self.new_process_since = at

    @property
    def new_process_seen(self) -> bool:
        """Whether a process lives that was not there while the server was up."""
        return self.new_process_since is not None

    @property
    def is_blind(self) -> bool:
        """Somebody answers and the page cannot be read: an answer with an error status is an
        answer, unless `/health` fails, too."""
        if self.up or self.failure_reason is None:
            return False
        if self.answers_foreign:
            return True
        answers = self.failure_reason in ("http_status", "redirect", "too_large")
        return self.health is True or (answers and self.health is None)

    @property
    def answers_foreign(self) -> bool:
        """The answer is not one that a vLLM server gives, so it may be another program's."""
        return not self.up and self.failure_reason in FOREIGN

    @property
    def is_gone(self) -> bool:
        """Nobody listens any more."""
        return self.gone_in_a_row >= self._thresholds.down_failures

    def is_down(self, at: float) -> bool:
        """Was up, and is not any more."""
        if not self.ever_up or self.up:
            return False
        silent = self.failure_reason == "timeout" and self.health is not True
        sick = self.failure_reason == "http_status" and self.health is False
        patience = self._thresholds.down_silent_seconds
        long = self.failing_since is not None and at - self.failing_since >= patience
        return self.is_gone or ((silent or sick) and long)

    def never_came(self, at: float) -> bool:
        """Nobody has answered since the sidecar began, for longer than starts usually take."""
        if self.ever_up or self.is_blind or self.began_at is None or self.failure_reason is None:
            return False
        return at - self.began_at > self._thresholds.starting_seconds

    def is_starting(self, at: float) -> bool:
        """Not up yet in this life: never since the sidecar began, or its next process is there.

        No start takes longer than a quarter of an hour: a process that is there for longer and
        has not made the server answer is somebody else's.
        """
        if self.up or self.is_blind or self.began_at is None:
            return False
        since = self.new_process_since if self.ever_up else self.began_at
        if since is None or at - since > self._thresholds.starting_seconds:
            return False
        return not self.ever_up or self.is_gone

    def just_restarted(self, at: float) -> bool:
        return (
            self.restarted_at is not None
            and at - self.restarted_at < self._thresholds.restarted_seconds
        )
