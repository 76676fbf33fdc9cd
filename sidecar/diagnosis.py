"""A report over something that lies before us: saved pages, a recording, a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from sidecar.launch import parse_arguments
from sidecar.model import Frame, Page, Poll, Scope, Verdict
from sidecar.pipeline import Pipeline
from sidecar.recordings import Recording, RecordingError
from sidecar.settings import Thresholds
from sidecar.startlog.start import Start
from sidecar.verdicts.keeper import sort_by_gravity
from sidecar.verdicts.start import judge_start

_SEVERITIES = ("info", "warning", "critical")
STATES = frozenset(
    {"starting", "idle", "healthy", "asleep", "restarted", "paused", "vllm_down", "vllm_blind"}
)
UNDECIDED = frozenset({"starting", "incomplete"})
"""Codes that say that it is too early, or too little is there, to judge anything."""
ENDING_SECONDS = 5.0
"""A server that goes away this shortly before a recording ends was stopped with it."""


class DiagnosisError(Exception):
    """Input that cannot be judged; the message is one line that names it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was concluded. `at` is the last moment looked at; `start` what the log said; `damage`
    a line about where the input could not be read any further."""

    at: float
    verdicts: tuple[Verdict, ...]
    start: Start | None = None
    damage: str | None = None

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 nothing is wrong, 1 a warning or critical verdict held,
        3 nothing could be judged, which is no good news."""
        if any(verdict.severity != "info" for verdict in self.verdicts):
            return 1
        return 0 if any(verdict.code not in UNDECIDED for verdict in self.verdicts) else 3


def explain(start: Start, thresholds: Thresholds, at: float = 0.0) -> Report:
    """What a log says by itself."""
    return Report(at, judge_start(start, thresholds), start)


def diagnose_pages(
    pages: Iterable[tuple[float, str]], thresholds: Thresholds, start: Start | None = None
) -> Report:
    """Judge one page, or two of the same server: `(unix seconds, text)` in order.

    A single page gives what is true at that moment, with low confidence and rates named missing.
    """
    given = list(pages)
    pipeline = Pipeline(thresholds, instant=len(given) == 1, log_is_complete=True)
    pipeline.judge.start = start
    frames = [
        pipeline.advance(Poll(at=at, vllm=Page(text, 0.0), gpus=None, vllm_version=_version(start)))
        for at, text in given
    ]
    report = _with_log(summarise(frames), start, thresholds)
    if len(given) > 1:
        return report
    return replace(report, verdicts=tuple(_instant(verdict) for verdict in report.verdicts))


def _version(start: Start | None) -> str | None:
    return start.vllm_version if start is not None else None


def _instant(verdict: Verdict) -> Verdict:
    if verdict.code in STATES or verdict.code in ("metrics_missing", "metrics_invalid"):
        return replace(verdict, missing=(*verdict.missing, "rates"))
    return replace(verdict, confidence="low", missing=(*verdict.missing, "rates"))


def diagnose_recording(
    recording: Recording, thresholds: Thresholds, start: Start | None = None
) -> Report:
    """Judge a whole recording: every verdict that held at any time, at its strongest moment.

    Of a damaged one, all that precedes the damage: whoever records until the machine dies wants
    to know what led to it. Raises `RecordingError` where nothing precedes it.
    """
    flags = parse_arguments(recording.header.vllm_args)
    pipeline = Pipeline(thresholds, flags, log_is_complete=True)
    pipeline.judge.start = start
    faults: list[RecordingError] = []

    def readable() -> Iterator[Frame]:
        try:
            for poll in recording.polls():
                yield pipeline.advance(poll)
        except RecordingError as error:
            faults.append(error)

    try:
        report = summarise(readable())
    except DiagnosisError:
        if faults:
            raise faults[0] from None
        raise
    damage = str(faults[0]) if faults else None
    return _with_log(replace(report, damage=damage), start, thresholds)


def _with_log(report: Report, start: Start | None, thresholds: Thresholds) -> Report:
    """What the log says of the start, too."""
    if start is None:
        return report
    verdicts = (*report.verdicts, *judge_start(start, thresholds))
    return replace(report, verdicts=sort_by_gravity(verdicts), start=start)


def summarise(frames: Iterable[Frame]) -> Report:
    """All verdicts of these frames, once for each code and scope.

    Of a verdict that held several times the gravest moment is kept, of equally grave ones the
    last, which has seen the most. A state that is over stays listed; a server that went away just
    as the frames end was stopped with them, and is not called down.
    """
    strongest: dict[tuple[str, Scope], Verdict] = {}
    spans: dict[tuple[str, Scope], tuple[float, float]] = {}
    last: Frame | None = None
    for frame in frames:
        last = frame
        for verdict in frame.verdicts:
            key = (verdict.code, verdict.scope)
            known = strongest.get(key)
            if known is None or _gravity(verdict) >= _gravity(known):
                strongest[key] = verdict
            began = spans[key][0] if key in spans else verdict.since or frame.at
            spans[key] = (began, frame.at)
    if last is None:
        raise DiagnosisError("nothing to judge: there is no poll in it")
    found = [
        replace(verdict, since=spans[key][0], until=_end(spans[key][1], last.at))
        for key, verdict in strongest.items()
        if verdict.code != "vllm_down" or last.at - spans[key][0] > ENDING_SECONDS
    ]
    return Report(last.at, sort_by_gravity(found))


def _end(last_seen_at: float, at: float) -> float | None:
    return last_seen_at if last_seen_at < at else None


def _gravity(verdict: Verdict) -> int:
    return _SEVERITIES.index(verdict.severity)


def read_page_file(path: Path) -> str:
    """The text of a saved page. Raises `DiagnosisError` with one line."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError as error:
        raise DiagnosisError(f"{path}: cannot be read: {error.strerror}") from error


def page_times(paths: Iterable[Path], interval_seconds: float | None) -> Iterator[float]:
    """When the pages were fetched: by their files' times, or so far apart as was said."""
    known = [path.stat().st_mtime for path in paths]
    if interval_seconds is not None:
        yield from (known[0] + index * interval_seconds for index in range(len(known)))
        return
    for earlier, later in pairwise(known):
        if later <= earlier:
            raise DiagnosisError(
                "the second page is not younger than the first; give --interval-seconds"
            )
    yield from known
