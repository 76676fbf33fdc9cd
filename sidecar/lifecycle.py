"""Is the server starting, up, down, or just back? Judged from polls alone."""

from __future__ import annotations

from sidecar.history import History
from sidecar.model import Snapshot

RESTARTED_SECONDS = 60.0
STARTING_SECONDS = 900.0
DOWN_AFTER_FAILURES = 3
DOWN_AFTER_TIMEOUT_SECONDS = 30.0
_GONE = frozenset({"refused", "closed", "unreachable", "unresolved"})


class Lifecycle:
    """What the polls say about the life of the server.

    A refused or closed connection means that nobody is there; a time-out only that nobody
    answered. `health` is what `/health` last said: asked only after a failed page, None where
    it was not.
    """

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.ever_up = False
        self.up = False
        self.last_up_at: float | None = None
        self.restarted_at: float | None = None
        self.gone_in_a_row = 0
        self.failing_since: float | None = None
        self.failure_reason: str | None = None
        self.health: bool | None = None
        self.new_process_seen = False
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
            self.failing_since = self.failure_reason = None
            self.health = None
            self.new_process_seen = False
            self._pids_when_up = history.present_pids
        elif snapshot.failure is not None:
            self.up = False
            self.failure_reason = snapshot.failure.reason
            self.failing_since = at if self.failing_since is None else self.failing_since
            self.gone_in_a_row = self.gone_in_a_row + 1 if snapshot.failure.reason in _GONE else 0
            self.health = snapshot.health
            if self.is_gone:
                self._look_for_a_new_process(history)

    def _look_for_a_new_process(self, history: History) -> None:
        """Processes that were not there while the server was up may be its next life."""
        if history.present_pids - self._pids_when_up:
            self.new_process_seen = True

    @property
    def is_blind(self) -> bool:
        """The server lives and its page cannot be read: an answer with an error status is an
        answer, unless `/health` fails, too."""
        if self.up or self.failure_reason is None:
            return False
        answers = self.failure_reason in ("http_status", "redirect", "too_large")
        return self.health is True or (answers and self.health is None)

    @property
    def is_gone(self) -> bool:
        """Nobody listens any more."""
        return self.gone_in_a_row >= DOWN_AFTER_FAILURES

    def is_down(self, at: float) -> bool:
        """Was up, and is not any more."""
        if not self.ever_up or self.up:
            return False
        silent = (
            self.failure_reason == "timeout"
            and self.health is not True
            and self.failing_since is not None
            and at - self.failing_since >= DOWN_AFTER_TIMEOUT_SECONDS
        )
        return self.is_gone or silent

    def is_starting(self, at: float) -> bool:
        """Not up yet in this life: never since the sidecar began, or its next process is there."""
        if self.up or self.is_blind or self.began_at is None:
            return False
        if not self.ever_up:
            return at - self.began_at <= STARTING_SECONDS
        return self.is_gone and self.new_process_seen

    def just_restarted(self, at: float) -> bool:
        return self.restarted_at is not None and at - self.restarted_at < RESTARTED_SECONDS
