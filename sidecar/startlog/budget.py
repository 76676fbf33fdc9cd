"""The memory of a start, piece by piece: weights, KV cache, CUDA graphs.

Read from the sources of vLLM 0.2.3 to 0.33.0. "GB" in old releases is a GiB (see `amounts`).
"""

from __future__ import annotations

import re
from dataclasses import replace

from sidecar.startlog.amounts import (
    COUNT,
    NUMBER,
    SIZE,
    least,
    most,
    to_bytes,
    to_count,
    to_number,
)
from sidecar.startlog.start import Start

_WEIGHTS = re.compile(rf"(?:Loading model weights|Model loading) took {SIZE}")
_AVAILABLE = re.compile(rf"Available KV cache memory: {SIZE}")
_RESERVED = re.compile(rf"reserved {SIZE} memory for KV Cache as specified")
_ON_CPU = re.compile(rf"(?:Auto|Explicitly) set \({NUMBER}/{NUMBER}\) GiB for KV cache")
_TOKENS = re.compile(rf"KV cache size: {COUNT} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {COUNT} tokens per request: {NUMBER}x")
_BLOCKS = re.compile(rf"# (?!CPU)\w+ blocks: {COUNT}(?:, # CPU blocks: {COUNT})?")
_OVERRIDE = re.compile(r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(\d+)")
_CAPTURED = re.compile(rf"Graph capturing finished in {NUMBER} secs(?:\.|, took {SIZE})?")
_ESTIMATED = re.compile(rf"Estimated CUDA graph memory: {SIZE}")
_POOL = re.compile(rf"CUDA graph pool memory: {SIZE} \(actual\), {SIZE} \(estimated\)")
_EQUIVALENT = re.compile(
    rf"current --gpu-memory-utilization={NUMBER} is equivalent to "
    rf"--gpu-memory-utilization={NUMBER} without"
)
_SUGGESTED = re.compile(
    rf"increas(?:e|ing) --gpu-memory-utilization (?:from {NUMBER} )?to {NUMBER}"
)
_PADDING = re.compile(rf"may waste at most {NUMBER}% KV cache memory")


def read_budget(start: Start, text: str) -> Start:
    """Adds what a line says about memory; figures said before are kept where they are finer."""
    if "took" in text or "Graph capturing" in text:
        start = _weights_and_capture(start, text)
    if "KV" in text or "# " in text or "Maximum concurrency" in text or "num_gpu_blocks" in text:
        start = _cache(start, text)
    if "CUDA graph" in text or "gpu-memory-utilization" in text:
        start = _graphs(start, text)
    return start


def _weights_and_capture(start: Start, text: str) -> Start:
    if found := _WEIGHTS.search(text):
        weights = most(start.weights_bytes_per_rank, to_bytes(found[1], found[2]))
        start = replace(start, weights_bytes_per_rank=weights)
    if found := _CAPTURED.search(text):
        taken = to_bytes(found[2], found[3]) if found[2] else None
        start = replace(
            start,
            cuda_graph_capture_seconds=most(start.cuda_graph_capture_seconds, to_number(found[1])),
            cuda_graph_bytes_per_rank=most(start.cuda_graph_bytes_per_rank, taken),
        )
    return start


def _cache(start: Start, text: str) -> Start:
    found = _AVAILABLE.search(text) or _RESERVED.search(text)
    if found or (found := _ON_CPU.search(text)):
        unit = found[2] if found.re is not _ON_CPU else "GiB"
        room = least(start.kv_cache_bytes_per_rank, to_bytes(found[1], unit))
        start = replace(start, kv_cache_bytes_per_rank=room)
    if found := _TOKENS.search(text):
        tokens = least(start.kv_cache_tokens, to_count(found[1]))
        start = replace(start, kv_cache_tokens=tokens, engine=start.engine or "V1")
    if found := _CONCURRENCY.search(text):
        times = least(start.max_concurrency, to_number(found[2]))
        start = replace(start, max_concurrency=times, max_model_len=to_count(found[1]))
    if found := _BLOCKS.search(text):
        cpu = to_count(found[2]) if found[2] else None
        engine = start.engine or ("V0" if cpu is not None else None)
        start = replace(start, gpu_blocks=to_count(found[1]), cpu_blocks=cpu, engine=engine)
    if found := _OVERRIDE.search(text):
        blocks = to_count(found[1])
        start = replace(start, gpu_blocks=blocks, num_gpu_blocks_override=blocks)
    if found := _PADDING.search(text):
        share = to_number(found[1])
        waste = None if share is None else round(share / 100, 6)
        start = replace(start, padding_waste_ratio=most(start.padding_waste_ratio, waste))
    return start


def _graphs(start: Start, text: str) -> Start:
    if found := _ESTIMATED.search(text):
        estimate = most(start.cuda_graph_estimated_bytes_per_rank, to_bytes(found[1], found[2]))
        start = replace(start, cuda_graph_estimated_bytes_per_rank=estimate)
    if found := _POOL.search(text):
        actual = most(start.cuda_graph_bytes_per_rank, to_bytes(found[1], found[2]))
        estimate = most(start.cuda_graph_estimated_bytes_per_rank, to_bytes(found[3], found[4]))
        start = replace(
            start,
            cuda_graph_bytes_per_rank=actual,
            cuda_graph_estimated_bytes_per_rank=estimate,
        )
    if found := _EQUIVALENT.search(text):
        start = replace(
            start,
            gpu_memory_utilization=start.gpu_memory_utilization or to_number(found[1]),
            equivalent_utilization=to_number(found[2]),
        )
    if found := _SUGGESTED.search(text):
        said = to_number(found[1]) if found[1] else None
        start = replace(
            start,
            gpu_memory_utilization=start.gpu_memory_utilization or said,
            suggested_utilization=to_number(found[2]),
        )
    return start
