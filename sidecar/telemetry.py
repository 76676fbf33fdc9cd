"""The sidecar about itself: which sources answer, how long they take, what is missing."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar import __version__
from sidecar.model import Declaration, Failure, GpuReport, Sample, ServerReading, Snapshot
from sidecar.sources.nvml_errors import FAILURE_REASONS as NVML_REASONS
from sidecar.sources.vllm import FAILURE_REASONS as VLLM_REASONS

UP = Declaration(
    "source_up", "1 when the source answered at its last read, else 0.", labels=("source",)
)
READ_SECONDS = Declaration(
    "source_read_seconds", "How long the last successful read took.", labels=("source",)
)
LAST_SUCCESS = Declaration(
    "source_last_success_timestamp_seconds",
    "Unix time of the last successful read.",
    labels=("source",),
)
FAILURES = Declaration(
    "source_failures_total", "Failed reads by reason.", "counter", ("source", "reason")
)
PERIOD = Declaration(
    "poll_period_seconds", "Time between the last two polls, as achieved.", labels=()
)
OVERRUNS = Declaration(
    "poll_overruns_total", "Polls skipped because the one before took too long.", "counter", ()
)
BUILD = Declaration("build_info", "Always 1; names the sidecar's release.", labels=("version",))
TARGET = Declaration(
    "target_info",
    "Always 1; names the release of vLLM, its name prefix and the series KV usage is read from.",
    labels=("vllm_version", "name_prefix", "kv_usage_name"),
)
SERIES_MISSING = Declaration(
    "series_missing",
    "1 for each series that this release of vLLM should show and does not.",
    labels=("series",),
)
PAGE_REASON = Declaration(
    "metrics_page_info",
    "Always 1; why vLLM's page is not whole, from a closed set, absent where it is.",
    labels=("reason",),
)
SERIES_INVALID = Declaration(
    "series_invalid_total",
    "Samples of vLLM that could not be used, by series.",
    "counter",
    ("series",),
)

DECLARATIONS = (
    UP,
    READ_SECONDS,
    LAST_SUCCESS,
    FAILURES,
    PERIOD,
    OVERRUNS,
    BUILD,
    TARGET,
    SERIES_MISSING,
    PAGE_REASON,
    SERIES_INVALID,
)

_REASONS = {"vllm": VLLM_REASONS, "nvml": NVML_REASONS}


class Telemetry:
    """Counts over the life of the sidecar. `overruns` is kept by whoever polls."""

    def __init__(self) -> None:
        self.overruns = 0
        self._failures: dict[tuple[str, str], int] = {}
        self._last_success: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._up: dict[str, bool] = {}
        self._invalid: dict[str, int] = {}
        self._last_at: float | None = None
        self._period: float | None = None
        self._server: ServerReading | None = None
        self._version: str | None = None

    def add(self, snapshot: Snapshot) -> None:
        if self._last_at is not None:
            self._period = snapshot.at - self._last_at
        self._last_at = snapshot.at
        self._version = snapshot.vllm_version or self._version
        if snapshot.server is not None:
            self._succeed("vllm", snapshot.at, snapshot.vllm_seconds)
            for series, count in snapshot.server.invalid.items():
                self._invalid[series] = self._invalid.get(series, 0) + count
        elif snapshot.failure is not None:
            self._fail("vllm", snapshot.failure)
        if snapshot.server is not None or snapshot.failure is not None:
            self._server = snapshot.server
        if isinstance(snapshot.gpus, GpuReport):
            self._succeed("nvml", snapshot.at, snapshot.gpus.seconds)
        elif snapshot.gpus is not None:
            self._fail("nvml", snapshot.gpus)

    def _succeed(self, source: str, at: float, seconds: float | None) -> None:
        self._know(source)
        self._up[source] = True
        self._last_success[source] = at
        if seconds is not None:
            self._seconds[source] = seconds

    def _fail(self, source: str, failure: Failure) -> None:
        self._know(source)
        self._up[source] = False
        reason = failure.reason if failure.reason in _REASONS[source] else "other"
        self._failures[source, reason] += 1

    def _know(self, source: str) -> None:
        """Start the failure counters of a source at zero, so that a first failure is a rise."""
        if source not in self._up:
            self._failures |= {(source, reason): 0 for reason in _REASONS[source]}

    def samples(self) -> Iterable[Sample]:
        yield Sample(BUILD, (__version__,), 1.0)
        yield Sample(OVERRUNS, (), float(self.overruns))
        if self._period is not None:
            yield Sample(PERIOD, (), self._period)
        for source, up in self._up.items():
            yield Sample(UP, (source,), float(up))
            if up and source in self._seconds:
                yield Sample(READ_SECONDS, (source,), self._seconds[source])
        for source, at in self._last_success.items():
            yield Sample(LAST_SUCCESS, (source,), at)
        for labels, count in self._failures.items():
            yield Sample(FAILURES, labels, float(count))
        for series, count in self._invalid.items():
            yield Sample(SERIES_INVALID, (series,), float(count))
        if self._server is not None:
            names = (self._server.name_prefix or "", self._server.kv_usage_name or "")
            yield Sample(TARGET, (self._version or "", *names), 1.0)
            for series in (*self._server.missing, *self._server.empty):
                yield Sample(SERIES_MISSING, (series,), 1.0)
            if self._server.reason is not None:
                yield Sample(PAGE_REASON, (self._server.reason,), 1.0)
