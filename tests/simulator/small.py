"""Deployments and requests small enough to follow by hand."""

from __future__ import annotations

from sidecar.simulator.deployment import Deployment
from sidecar.simulator.requests import Request


def small_deployment(
    *,
    num_gpu_blocks: int = 9,
    block_size_tokens: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
) -> Deployment:
    """A device of which every byte is KV: one byte a token, the null block included."""
    return Deployment(
        block_size_tokens=block_size_tokens,
        max_model_len_tokens=1000,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=1.0,
        kv_bytes_per_token=1,
        weights_bytes=0,
        activation_peak_bytes=0,
        context_bytes=0,
        device_total_bytes=num_gpu_blocks * block_size_tokens,
        device_reserved_bytes=0,
        driver_bytes=0,
    )


def request(prompt_tokens: int, generation_tokens: int, *, max_tokens: int = 1000) -> Request:
    """A request that arrived at time zero."""
    return Request(
        prompt_tokens=prompt_tokens,
        generation_tokens=generation_tokens,
        max_tokens=max_tokens,
        arrived_at_seconds=0.0,
    )
