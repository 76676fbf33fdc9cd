"""A frame as JSON: for `/api/v1/snapshot` and for `replay --json`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

from sidecar.exposition import OWN_NAMES
from sidecar.model import Frame, GpuReport, Histogram, Sample
from sidecar.verdict_json import change_json, verdict_json
from sidecar.verdict_samples import VERDICT

LEFT_OUT = OWN_NAMES | {VERDICT.name}
"""Not an indicator: the sidecar's own state, and verdicts, which have a place of their own."""


def replay_line(frame: Frame) -> dict[str, Any]:
    """One line of a replay: what was measured, without the sidecar's own state."""
    return {
        "at": frame.at,
        "phase": frame.snapshot.phase,
        "indicators": indicators(s for s in frame.samples if s.declaration.name not in LEFT_OUT),
        "verdicts": [verdict.code for verdict in frame.verdicts],
    }


def diagnosis(frame: Frame) -> dict[str, Any]:
    """What is concluded at this moment, and the newest verdicts that began or ended."""
    return {
        "at": frame.at,
        "verdicts": [verdict_json(verdict) for verdict in frame.verdicts],
        "changes": [change_json(change) for change in frame.changes],
    }


def snapshot(frame: Frame) -> dict[str, Any]:
    """Everything that is known at this moment, with what could not be computed and why."""
    seen = frame.snapshot
    return {
        "at": frame.at,
        "vllm": {
            "version": seen.vllm_version,
            "max_model_len": seen.max_model_len,
            "failure": None
            if seen.failure is None
            else {"reason": seen.failure.reason, "detail": seen.failure.detail},
        },
        "gpus": None
        if not isinstance(seen.gpus, GpuReport)
        else [
            {"gpu": str(gpu.index), "uuid": gpu.uuid, "name": gpu.name, "error": gpu.error}
            for gpu in seen.gpus.gpus
        ],
        "server": server_totals(frame.samples),
        "indicators": indicators(s for s in frame.samples if s.declaration.name != VERDICT.name),
        "verdicts": [verdict.code for verdict in frame.verdicts],
        "unavailable": [
            {
                "indicator": item.declaration.name,
                "labels": dict(zip(item.declaration.labels, item.labels, strict=False)),
                "reason": item.reason,
            }
            for item in frame.unavailable
        ],
    }


def server_totals(samples: Iterable[Sample]) -> dict[str, float | None]:
    """All engines together: counts are summed, of ratios only the mean and the largest say
    anything."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        if not isinstance(sample.value, Histogram):
            values.setdefault(sample.declaration.name, []).append(sample.value)
    usage = values.get("kv_cache_usage_ratio", [])
    summed = ("requests_running", "requests_waiting", "preemptions_total")
    return {
        **{name: sum(values[name]) if name in values else None for name in summed},
        "kv_cache_usage_ratio_mean": mean(usage) if usage else None,
        "kv_cache_usage_ratio_max": max(usage, default=None),
    }


def indicators(samples: Iterable[Sample]) -> dict[str, list[dict[str, Any]]]:
    """Samples by name. A histogram's value is its buckets by upper bound, its sum and count."""
    named: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        labels = dict(zip(sample.declaration.labels, sample.labels, strict=True))
        value: Any = sample.value
        if isinstance(sample.value, Histogram):
            value = {
                "buckets": {f"{bound:g}": count for bound, count in sample.value.buckets},
                "sum": sample.value.sum,
                "count": sample.value.count,
            }
        named.setdefault(sample.declaration.name, []).append({"labels": labels, "value": value})
    return named
