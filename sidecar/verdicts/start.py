"""What a start of the server, or its end, says in its own log.

Judged from the log alone: the last start counts. All figures are per rank, that is per GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sidecar.launch import with_known_flags
from sidecar.model import Evidence, Severity, Verdict
from sidecar.settings import Thresholds
from sidecar.sources.releases import parse_release
from sidecar.startlog.failures import FailureKind
from sidecar.startlog.start import Start
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.out_of_memory import judge_out_of_memory
from sidecar.verdicts.start_figures import start_evidence
from sidecar.verdicts.start_findings import findings
from sidecar.verdicts.start_kv import max_len_too_long, no_kv_memory
from sidecar.verdicts.start_other import (
    bad_argument,
    config_rejected,
    engine_dead,
    host_oom,
    not_memory,
)
from sidecar.verdicts.start_room import neighbour_left, not_enough_free

SEVERITIES: Mapping[str, tuple[Severity, ...]] = {
    "started": ("info",),
    "incomplete": ("info", "critical"),
    "no_kv_memory": ("critical",),
    "max_len_too_long": ("critical",),
    "not_enough_free": ("critical",),
    "graph_memory": ("warning", "critical"),
    "weights_too_big": ("critical",),
    "activation_peak": ("critical",),
    "single_allocation": ("critical",),
    "allocator_slack": ("critical",),
    "neighbour_left": ("warning",),
    "runtime_oom": ("critical",),
    "host_oom": ("critical",),
    "bad_argument": ("critical",),
    "not_memory": ("critical",),
}
"""All codes that a log leads to, with the severities they may take."""


def judge_start(start: Start, thresholds: Thresholds) -> tuple[Verdict, ...]:
    """All that one start says; the decisive failure first. Never empty."""
    release = parse_release(start.vllm_version)
    failure = start.decisive_failure
    if failure is not None:
        outcome = _FAILURES[failure.kind](FailedStart(start, failure, release, thresholds))
    else:
        outcome = _started(start) if start.outcome == "started" else _incomplete(start)
    beside = (finding for finding in findings(start, thresholds) if finding.code != outcome.code)
    return tuple(with_known_flags(verdict, release) for verdict in (outcome, *beside))


def _started(start: Start) -> Verdict:
    evidence = list(start_evidence(start))
    if start.capacity_tokens is not None:
        evidence.append(Evidence("kv_cache_tokens", float(start.capacity_tokens), "tokens"))
    if start.max_concurrency is not None:
        evidence.append(Evidence("max_concurrency", start.max_concurrency, "requests"))
    return Verdict("started", "info", "high", "The server started.", evidence=tuple(evidence))


def _incomplete(start: Start) -> Verdict:
    return Verdict(
        "incomplete",
        "info",
        "low",
        "The log ends before the server was up and before it failed: too short to judge.",
        evidence=start_evidence(start),
        missing=("the rest of the log",),
    )


_FAILURES: Mapping[FailureKind, Callable[[FailedStart], Verdict]] = {
    "free_memory_below_desired": not_enough_free,
    "no_available_memory": no_kv_memory,
    "max_len_too_long": max_len_too_long,
    "profiling_disturbed": neighbour_left,
    "load_model_oom": judge_out_of_memory,
    "sampler_warmup_oom": judge_out_of_memory,
    "cuda_oom": judge_out_of_memory,
    "oom_in_disguise": judge_out_of_memory,
    "host_oom": host_oom,
    "killed": host_oom,
    "argument_error": bad_argument,
    "config_rejected": config_rejected,
    "device_error": not_memory,
    "exception": not_memory,
    "engine_dead": engine_dead,
}
