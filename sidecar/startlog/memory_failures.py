"""Recognises failures to get memory in single lines.

Wordings were read from the sources of vLLM 0.2.3 to 0.33.0 and of PyTorch since 1.13. Numbers are
demanded wherever the message has them, so that the source line which a traceback quotes
(`raise ValueError("No available memory ...`) is not taken for more than it says.
"""

from __future__ import annotations

import re

from sidecar.startlog.amounts import COUNT, NUMBER, SIZE, to_bytes, to_count, to_number
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.out_of_memory import parse_out_of_memory

_FREE_BELOW = re.compile(
    r"(?:Free|Available) memory on (?:device|node) ?(\S+)? ?"
    rf"\({NUMBER}/{NUMBER} GiB\) on (?:startup|kv cache).{{0,120}}?less than"
)
_DESIRED = re.compile(rf"\({NUMBER}, {NUMBER} GiB\)")
_DESIRED_FOR_KV = re.compile(rf"\({NUMBER}(?:/{NUMBER})? GiB\)")
_MAX_LEN_V0 = re.compile(
    rf"max seq len \({COUNT}\) is larger than the maximum number of tokens that can be stored in "
    rf"KV cache \({COUNT}\)"
)
_MAX_LEN_V1 = re.compile(
    rf"max seq len \({COUNT}\),? \(?{SIZE} KV cache is needed, which is larger than the available "
    rf"KV cache memory \({SIZE}\)"
)
_ESTIMATED_LEN = re.compile(rf"estimated maximum model length is {COUNT}")
_DISTURBED = re.compile(
    rf"Error in memory profiling\. Initial free memory {NUMBER}( GiB)?, "
    rf"current free memory {NUMBER}( GiB)?"
)
_WARMUP = re.compile(
    r"out of memory occurred when warming up (?:sampler|pooler).{0,80}?(\d+) dummy"
)
_DRIVER_OOM = re.compile(
    r"(?:CUDA|HIP|XPU) error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|OutOfMemoryError: \w+ out of memory"
)
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes"
    r"|^MemoryError\b|Cannot allocate memory"
)


def free_memory(text: str) -> LogFailure | None:
    found = _FREE_BELOW.search(text)
    if found is None:
        return None
    rest = text[found.end() :]
    node = f"node {found[1]}" if found[1] and " node " in found[0] else found[1]
    free, total = to_bytes(found[2]), to_bytes(found[3])
    if desired := _DESIRED.search(rest):
        utilization, wanted = to_number(desired[1]), to_bytes(desired[2])
    else:
        said = _DESIRED_FOR_KV.search(rest)
        utilization, wanted = None, to_bytes(said[1]) if said else None
    return LogFailure(
        "free_memory_below_desired",
        device=node,
        free_bytes=free,
        total_bytes=total,
        utilization=utilization,
        desired_bytes=wanted,
    )


def max_len(text: str) -> LogFailure | None:
    if found := _MAX_LEN_V0.search(text):
        length, capacity = to_count(found[1]), to_count(found[2])
        return LogFailure("max_len_too_long", max_model_len=length, capacity_tokens=capacity)
    if found := _MAX_LEN_V1.search(text):
        estimated = _ESTIMATED_LEN.search(text)
        return LogFailure(
            "max_len_too_long",
            max_model_len=to_count(found[1]),
            needed_bytes=to_bytes(found[2], found[3]),
            available_bytes=to_bytes(found[4], found[5]),
            estimated_max_model_len=to_count(estimated[1]) if estimated else None,
        )
    return None


def no_memory(_text: str) -> LogFailure:
    return LogFailure("no_available_memory")


def disturbed(text: str) -> LogFailure | None:
    found = _DISTURBED.search(text)
    if found is None:
        return None
    unit = "GiB" if found[2] else "bytes"
    return LogFailure(
        "profiling_disturbed",
        initial_free_bytes=to_bytes(found[1], unit),
        free_bytes=to_bytes(found[3], unit),
    )


def load_model(text: str) -> LogFailure:
    return LogFailure("load_model_oom", out_of_memory=parse_out_of_memory(text))


def out_of_memory(text: str) -> LogFailure | None:
    if found := _WARMUP.search(text):
        return LogFailure("sampler_warmup_oom", dummy_requests=to_count(found[1]))
    if figures := parse_out_of_memory(text):
        return LogFailure("cuda_oom", out_of_memory=figures)
    return LogFailure("cuda_oom") if _DRIVER_OOM.search(text) else None


def disguised(text: str) -> LogFailure | None:
    return LogFailure("oom_in_disguise") if "INTERNAL ASSERT" in text else None


def host_memory(text: str) -> LogFailure | None:
    found = _HOST_OOM.search(text)
    if found is None:
        return None
    return LogFailure("host_oom", requested_bytes=to_count(found[1]) if found[1] else None)
