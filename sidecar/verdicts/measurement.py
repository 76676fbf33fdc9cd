"""What is not measured, or wrongly: said before anybody reads a zero into it."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Evidence, Failure, Scope, Verdict
from sidecar.sources.page_reason import CURES
from sidecar.verdicts.rule import SHORT, Rule
from sidecar.verdicts.situation import Situation

_WHAT = {
    "log_stats_off": "the page has a web server's series and none of an engine",
    "wrong_endpoint": "the page is not vLLM's",
    "router_or_proxy": "the page is that of a router or proxy",
    "ray_exporter": "the page is Ray's and has none of vLLM's series",
    "declared_only": "the page declares vLLM's series and has no sample of them",
    "connector_only": "the page is that of a KV connector or cache server",
}
"""What is seen, by reason, where no engine can be read."""


def judge_missing(situation: Situation) -> Iterable[Verdict]:
    server = situation.snapshot.server
    if server is None:
        return
    absent = (*server.missing, *server.empty)
    if server.engines and not absent:
        return
    if server.pending and not absent:
        return
    reason = server.reason or "renamed_or_hidden"
    what = f"the page lacks {', '.join(absent)}" if absent else "it has no series of an engine"
    if not server.engines or reason in ("router_or_proxy", "connector_only"):
        what = _WHAT.get(reason, what)
    yield Verdict(
        "metrics_missing",
        "warning",
        "high",
        f"vLLM's metrics are incomplete: {what}.",
        evidence=(
            Evidence("series_missing", ", ".join(absent) or "all"),
            Evidence("name_prefix", server.name_prefix or "none"),
            Evidence("reason", reason),
        ),
        advice=(Advice("metrics", None, "the series are there", CURES[reason]),),
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
