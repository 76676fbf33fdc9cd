"""Patience: turns what is true at single moments into verdicts that hold, linger and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sidecar.engine_history import LONGEST_STEP_SECONDS
from sidecar.launch import with_known_flags
from sidecar.model import Change, Scope, Verdict
from sidecar.verdicts.rule import Rule
from sidecar.verdicts.situation import Situation

_SEVERITIES = ("critical", "warning", "info")
_CONFIDENCES = ("high", "medium", "low")
CHANGES_KEPT = 50


@dataclass(slots=True)
class _Candidate:
    """One code and scope: the seconds in which it was true lately."""

    true_spans: deque[tuple[float, float]] = field(default_factory=deque)
    last_true_at: float = float("-inf")
    verdict: Verdict | None = None
    since: float | None = None


class Keeper:
    """Judges each moment by all rules and says which verdicts hold.

    Time is counted in seconds of data: a poll answers for the time since the poll before it, up
    to half a minute, so polls a second or ten seconds apart are judged alike. With `instant`
    (a single page) every condition that is true counts.
    """

    def __init__(self, rules: Iterable[Rule], *, instant: bool = False) -> None:
        self._rules = tuple(rules)
        self._instant = instant
        self._candidates: dict[tuple[str, Scope], _Candidate] = {}
        self._at: float | None = None
        self.changes: deque[Change] = deque(maxlen=CHANGES_KEPT)

    def judge(self, situation: Situation) -> tuple[Verdict, ...]:
        """The verdicts that hold now, the gravest first."""
        at = situation.at
        present = {scope.engine for _, scope in situation.engines()}
        step = 0.0 if self._at is None else min(at - self._at, LONGEST_STEP_SECONDS)
        self._at = at
        holding: list[Verdict] = []
        for rule in self._rules:
            true_now = {
                verdict.scope: with_known_flags(verdict, situation.release)
                for verdict in rule.judge(situation)
            }
            known = [scope for code, scope in self._candidates if code == rule.code]
            for scope in dict.fromkeys((*true_now, *known)):
                candidate = self._candidates.setdefault((rule.code, scope), _Candidate())
                gone = bool(scope.engine) and scope.engine not in present
                lingers = 0.0 if gone else rule.linger_seconds
                held = self._advance(rule, candidate, true_now.get(scope), at, step, lingers)
                if held is not None:
                    holding.append(held)
                elif scope not in true_now and not candidate.true_spans:
                    del self._candidates[rule.code, scope]
        return sort_by_gravity(holding)

    def _advance(
        self,
        rule: Rule,
        candidate: _Candidate,
        verdict: Verdict | None,
        at: float,
        step: float,
        linger_seconds: float,
    ) -> Verdict | None:
        spans, window = candidate.true_spans, rule.hold.window_seconds
        while spans and spans[0][1] <= at - window:
            spans.popleft()
        if verdict is not None:
            spans.append((at - step, at))
            seconds = sum(end - max(start, at - window) for start, end in spans)
            if self._instant or seconds >= rule.hold.seconds or candidate.since is not None:
                candidate.last_true_at = at
                return self._hold(candidate, verdict, at)
        elif candidate.verdict is not None and at - candidate.last_true_at < linger_seconds:
            return replace(candidate.verdict, since=candidate.since)
        if candidate.verdict is not None and verdict is None:
            ended = replace(candidate.verdict, since=candidate.since, until=at)
            self.changes.append(Change(at, ended, began=False))
            candidate.verdict = candidate.since = None
        return None

    def _hold(self, candidate: _Candidate, verdict: Verdict, at: float) -> Verdict:
        before = candidate.verdict
        if candidate.since is None:
            candidate.since = at
        held = replace(verdict, since=candidate.since)
        candidate.verdict = held
        if before is None or before.severity != held.severity:
            self.changes.append(Change(at, held, began=True))
        return held


def sort_by_gravity(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Ordered by severity, then confidence, then as the rules stand."""
    return tuple(
        sorted(
            verdicts,
            key=lambda v: (_SEVERITIES.index(v.severity), _CONFIDENCES.index(v.confidence)),
        )
    )
