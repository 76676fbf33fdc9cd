"""The device had less free memory than the server may take, or not reliably so."""

from __future__ import annotations

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.startlog.failures import LogFailure
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.memory_arithmetic import gib, margin_bytes, round_utilization_down
from sidecar.verdicts.situation import MIB
from sidecar.verdicts.start_figures import utilization_of


def not_enough_free(case: FailedStart) -> Verdict:
    """The check at the start: less is free than utilization x total (0.9.1 and later)."""
    start, failure = case.start, case.failure
    free, total, wanted = failure.free_bytes, failure.total_bytes, failure.desired_bytes
    now = utilization_of(start, failure)
    if (start.cuda_graph_estimated_bytes_per_rank or 0) < 0:
        return _estimate_at_fault(failure)
    if free is None or total is None or wanted is None:
        return _plain("not_enough_free", failure, "Less memory is free than the server may take.")
    to = round_utilization_down((free - margin_bytes(total)) / total)
    taken = total - free
    neighbour = taken > case.thresholds.driver_and_display_ratio * total
    held_by = (
        f"other processes hold about {gib(taken)}"
        if neighbour
        else f"{gib(taken)} are taken by the driver, a display or the host system"
    )
    advice: list[Advice] = []
    if to > (start.weights_bytes_per_rank or 0) / total:
        advice.append(
            Advice(
                "--gpu-memory-utilization",
                f"{to:.2f}",
                f"asks for {gib(to * total)} instead of {gib(wanted)}",
                f"{gib(free)} of {gib(total)} are free, {gib(margin_bytes(total))} stay as "
                "margin; that much KV cache is lost",
                current=None if now is None else f"{now:g}",
            )
        )
    if neighbour:
        advice.append(
            Advice(
                "neighbour",
                None,
                f"{gib(wanted - free)} more are free and the value can stay",
                "end or move the other process; a former vLLM may have left a worker behind",
            )
        )
    return Verdict(
        "not_enough_free",
        "critical",
        "high",
        f"{gib(free)} are free and {gib(wanted)} are wanted: {(wanted - free) / MIB:,.0f} MiB "
        f"short; {held_by}.",
        evidence=(
            Evidence("free_bytes", float(free), "bytes", float(wanted)),
            Evidence("total_bytes", float(total), "bytes"),
            Evidence("taken_bytes", float(taken), "bytes"),
        ),
        advice=tuple(advice),
        avoid=(Avoid("expandable_segments", "nothing was allocated yet that could fragment"),),
    )


def _estimate_at_fault(failure: LogFailure) -> Verdict:
    """A negative estimate of graph memory spoils every figure that follows from it."""
    return Verdict(
        "graph_memory",
        "critical",
        "high",
        "The estimate of CUDA graph memory came out negative, so the figures of this start cannot "
        "be trusted: the estimator is at fault, not the capacity.",
        evidence=(Evidence("message", failure.message),),
        advice=(
            Advice(
                "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",
                None,
                "a start without the estimate",
                "an environment variable; known on ROCm, where graph pools are accounted "
                "differently",
            ),
        ),
        avoid=(Avoid("--gpu-memory-utilization", "the figure it would follow is wrong"),),
    )


def neighbour_left(case: FailedStart) -> Verdict:
    """Memory came back while vLLM measured, so its measurement failed."""
    failure = case.failure
    return Verdict(
        "neighbour_left",
        "warning",
        "high",
        "Another process gave memory back while the server measured what it needs, so the "
        "measurement is worth nothing.",
        evidence=tuple(
            Evidence(name, float(value), "bytes")
            for name, value in (
                ("initial_free_bytes", failure.initial_free_bytes),
                ("free_bytes", failure.free_bytes),
            )
            if value is not None
        ),
        advice=(
            Advice(
                "retry",
                None,
                "it starts",
                "start again once the other process is gone or settled; start servers one after "
                "the other",
            ),
        ),
    )


def _plain(code: str, failure: LogFailure, summary: str) -> Verdict:
    return Verdict(
        code, "critical", "medium", summary, evidence=(Evidence("message", failure.message),)
    )
