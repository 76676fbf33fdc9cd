"""Figures of a start that several judgements share."""

from __future__ import annotations

from sidecar.model import Evidence
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.start import Start


def start_evidence(start: Start) -> tuple[Evidence, ...]:
    """The figures of the start that are known."""
    named = (
        ("weights_bytes_per_rank", start.weights_bytes_per_rank),
        ("activation_bytes_per_rank", start.activation_bytes_per_rank),
        ("non_torch_bytes_per_rank", start.non_torch_bytes_per_rank),
        ("cuda_graph_bytes_per_rank", start.cuda_graph_bytes_per_rank),
        ("kv_cache_bytes_per_rank", start.kv_cache_bytes_per_rank),
    )
    return tuple(
        Evidence(name, float(value), "bytes") for name, value in named if value is not None
    )


def utilization_of(start: Start, failure: LogFailure | None = None) -> float | None:
    """`--gpu-memory-utilization` as the failure states it, else as the start does."""
    if failure is not None and failure.utilization is not None:
        return failure.utilization
    return start.gpu_memory_utilization
