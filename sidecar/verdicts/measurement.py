"""What is not measured, or wrongly: said before anybody reads a zero into it."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Evidence, Failure, Scope, Verdict
from sidecar.verdicts.rule import SHORT, Rule
from sidecar.verdicts.situation import Situation

_NO_ENGINE_SERIES = (
    "the page answers without any series of an engine",
    (
        "log stats are off (drop --disable-log-stats), or this address is a router, a proxy or "
        "another program (ask vLLM itself), or the metrics go to Ray's own exporter (scrape that "
        "port), or vLLM 0.5.4 to 0.6.1 lost them (--disable-frontend-multiprocessing, or upgrade)"
    ),
)


def judge_missing(situation: Situation) -> Iterable[Verdict]:
    server = situation.snapshot.server
    if server is None:
        return
    absent = (*server.missing, *server.empty)
    if not server.engines:
        what, cure = _NO_ENGINE_SERIES
        if server.empty:
            what = "the page declares vLLM's series and has no sample of them"
            cure = (
                "the engine runs without its stats logger: drop --disable-log-stats, or serve "
                "it with `vllm serve` rather than as a library"
            )
        if server.pending and not server.missing and not server.empty:
            return
    elif absent:
        what = f"the page lacks {', '.join(absent)}"
        cure = (
            "renamed, hidden or lost in this release; --show-hidden-metrics-for-version shows "
            "hidden ones for one more release"
        )
    else:
        return
    yield Verdict(
        "metrics_missing",
        "warning",
        "high",
        f"vLLM's metrics are incomplete: {what}.",
        evidence=(
            Evidence("series_missing", ", ".join(absent) or "all"),
            Evidence("name_prefix", server.name_prefix or "none"),
        ),
        advice=(Advice("metrics", None, "the series are there", cure),),
        missing=absent or ("all engine series",),
    )


def judge_invalid(situation: Situation) -> Iterable[Verdict]:
    server = situation.snapshot.server
    if server is None or not server.invalid:
        return
    named = ", ".join(f"{series} ({count})" for series, count in sorted(server.invalid.items()))
    yield Verdict(
        "metrics_invalid",
        "warning",
        "high",
        f"vLLM's page holds values that cannot be: {named}. They are left out.",
        evidence=(Evidence("series_invalid", named),),
        advice=(
            Advice(
                "metrics",
                None,
                "values in range",
                "look at the page itself for these series: a proxy that merges several servers, "
                "a shared PROMETHEUS_MULTIPROC_DIR, or a defect of the release",
            ),
        ),
    )


def judge_gpu(situation: Situation) -> Iterable[Verdict]:
    gpus = situation.snapshot.gpus
    if isinstance(gpus, Failure):
        yield _unreadable(Scope(), gpus.detail or gpus.reason, gpus.reason)
    elif gpus is not None:
        for reading in gpus.gpus:
            if reading.memory is None:
                yield _unreadable(
                    Scope(gpu=str(reading.index)), reading.error or "no reason given", "device"
                )


def _unreadable(scope: Scope, detail: str, reason: str) -> Verdict:
    return Verdict(
        "gpu_unreadable",
        "warning",
        "high",
        f"GPU memory cannot be read: {detail}.",
        scope,
        evidence=(Evidence("error", detail), Evidence("reason", reason)),
        advice=(Advice("nvml", None, "the GPU can be read again", detail),),
        missing=("gpu_memory_used_bytes",),
    )


MISSING = Rule("metrics_missing", ("warning",), judge_missing, SHORT, level="server")
INVALID = Rule("metrics_invalid", ("warning",), judge_invalid, SHORT, level="server")
GPU = Rule("gpu_unreadable", ("warning",), judge_gpu, SHORT, level="gpu")
