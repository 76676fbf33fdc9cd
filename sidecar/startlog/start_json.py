"""The JSON form of a start: the `start` of `explain --json`. Its names are a public contract."""

from __future__ import annotations

from sidecar.startlog.failures import LogFailure
from sidecar.startlog.start import Start


def start_json(start: Start, *, starts: int = 1, outcome: str | None = None) -> dict[str, object]:
    """The figures of a start; a figure that the log does not say is None.

    `starts` is the number of starts in the log. `outcome` is the judge's word where there is one,
    else the reader's (see `Start.outcome`). Bytes are on one rank, tokens of one engine.
    """
    failure = start.decisive_failure
    return {
        "vllm_version": start.vllm_version,
        "engine": start.engine,
        "model": start.model,
        "outcome": outcome or start.outcome,
        "starts": starts,
        "started": start.started or start.engine_ready,
        "weights_bytes_per_rank": start.weights_bytes_per_rank,
        "activation_bytes_per_rank": start.activation_bytes_per_rank,
        "non_torch_bytes_per_rank": start.non_torch_bytes_per_rank,
        "cuda_graph_bytes_per_rank": start.cuda_graph_bytes_per_rank,
        "cuda_graph_estimated_bytes_per_rank": start.cuda_graph_estimated_bytes_per_rank,
        "kv_cache_bytes_per_rank": start.kv_cache_bytes_per_rank,
        "kv_cache_tokens": start.capacity_tokens,
        "max_concurrency": start.max_concurrency,
        "gpu_memory_utilization": start.gpu_memory_utilization,
        "max_model_len": start.max_model_len,
        "max_num_seqs": start.max_num_seqs,
        "max_num_batched_tokens": start.max_num_batched_tokens,
        "block_size": start.block_size,
        "tensor_parallel_size": start.tensor_parallel_size,
        "pipeline_parallel_size": start.pipeline_parallel_size,
        "total_bytes": start.total_bytes,
        "free_bytes": start.free_bytes,
        "desired_bytes": start.desired_bytes,
        "padding_waste_ratio": start.padding_waste_ratio,
        "max_kv_usage_ratio": start.serving.max_kv_usage_ratio,
        "preemption_warnings": start.serving.preemption_warnings,
        "failure": None if failure is None else _failure_json(failure),
    }


def _failure_json(failure: LogFailure) -> dict[str, object]:
    memory = failure.out_of_memory
    return {
        "kind": failure.kind,
        "message": failure.message,
        "moment": failure.moment,
        "tried_bytes": None if memory is None else memory.tried_bytes,
        "free_bytes": failure.free_bytes if memory is None else memory.free_bytes,
        "total_bytes": failure.total_bytes if memory is None else memory.total_bytes,
        "desired_bytes": failure.desired_bytes,
        "available_bytes": failure.available_bytes,
        "needed_bytes": failure.needed_bytes,
        "estimated_max_model_len": failure.estimated_max_model_len,
        "reserved_unallocated_bytes": (
            None if memory is None else memory.reserved_unallocated_bytes
        ),
        "arguments": list(failure.arguments),
    }
