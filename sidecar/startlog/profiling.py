"""The summaries of vLLM's memory profiling: the whole budget in one message.

V0 0.6.4            Memory profiling results: total_gpu_memory=79.10GiB ...
V0 0.6.5 to 0.10.2  the current vLLM instance can use total_gpu_memory (79.10GiB) x ...
V1 0.9.1 and later  ... torch peak memory increase: 1.20GiB; ... (at DEBUG)
V1 0.10.2 and later Free memory on device (78.6/79.1 GiB) on startup. Desired ... Actual usage
                    is ... (at INFO in 0.10.2, then at DEBUG, at INFO again from 0.26; from
                    0.27 weights and non-torch memory are one figure)
"""

from __future__ import annotations

import re
from dataclasses import replace

from sidecar.startlog.amounts import NUMBER, SIZE, least, most, to_bytes, to_number
from sidecar.startlog.start import Start

_GIB = NUMBER + r" ?GiB"

# V0 engines: 0.6.4, and 0.6.5 to 0.10.2.
_V0_TOTAL = re.compile(rf"\btotal_gpu_memory={_GIB}")
_V0_PEAK = re.compile(rf"\bpeak_torch_memory={_GIB}")
_V0_OTHER = re.compile(rf"\bnon_torch_memory={_GIB}")
_V0_ROOM = re.compile(rf"\bkv_cache_size={_GIB}")
_V0_UTILIZATION = re.compile(rf"\bgpu_memory_utilization={NUMBER}")
_V0_BUDGET = re.compile(
    rf"can use total_gpu_memory \({_GIB}\) x gpu_memory_utilization \({NUMBER}\) = {_GIB}"
)
_V0_SHARES = re.compile(
    rf"model weights take {_GIB}; non_torch_memory takes {_GIB}; PyTorch activation peak memory "
    rf"takes {_GIB}; the rest of the memory reserved for KV Cache is {_GIB}"
)
# V1 engines at DEBUG: 0.9.1 and later.
_V1_PROFILE = re.compile(
    rf"torch peak memory increase: {_GIB}; (?:non-torch forward increase memory|total consumed "
    rf"\(from mem_get_info\)): {_GIB}; weights memory: {_GIB}"
)
# V1 engines: 0.10.2 at INFO, then at DEBUG, at INFO again from 0.26.
_CHECKED = re.compile(
    rf"Free memory on device[^(]{{0,40}}\({NUMBER}/{NUMBER} GiB\) on startup\. Desired GPU memory "
    rf"utilization is \({NUMBER}, {NUMBER} GiB\)"
)
_USED_WEIGHTS = re.compile(rf"Actual usage is {NUMBER} GiB for weight")
_USED_TOGETHER = re.compile(rf"Actual usage is {NUMBER} GiB for consumed memory")
_USED_PEAK = re.compile(rf"{NUMBER} GiB for peak activation")
_USED_OTHER = re.compile(rf"{NUMBER} GiB for non-torch memory")
_USED_GRAPHS = re.compile(rf"{NUMBER} GiB for CUDAGraph memory")
_TO_FIT = re.compile(r"`--kv-cache-memory=(\d+)`[^`]*to fit into requested memory")
_TO_FILL = re.compile(r"`--kv-cache-memory=(\d+)`[^`]*to fully utilize gpu memory")
_IN_USE = re.compile(rf"Current kv cache memory in use is {SIZE}")


def read_profiling(start: Start, text: str) -> Start:
    """Adds what a summary says. Weights said when they were loaded are finer, and kept."""
    if "total_gpu_memory" in text or "model weights take" in text:
        start = _of_v0(start, text)
    if "torch peak memory increase" in text:
        start = _of_v1(start, text)
    if "on startup. Desired" in text:
        start = _summary_of_v1(start, text)
    return start


def _of_v0(start: Start, text: str) -> Start:
    if found := _V0_BUDGET.search(text):
        total, utilization, desired = found.groups()
        return replace(
            start,
            engine=start.engine or "V0",
            total_bytes=to_bytes(total),
            gpu_memory_utilization=start.gpu_memory_utilization or to_number(utilization),
            desired_bytes=to_bytes(desired),
        )
    if found := _V0_SHARES.search(text):
        weights, other, peak, room = (to_bytes(number) for number in found.groups())
        return replace(
            _with_shares(start, weights, other, peak),
            engine=start.engine or "V0",
            kv_cache_bytes_per_rank=least(start.kv_cache_bytes_per_rank, room),
        )
    return _results_of_v0(start, text) if "Memory profiling results" in text else start


def _results_of_v0(start: Start, text: str) -> Start:
    above_weights = None
    # The peak counts the weights, which stand in a line of their own.
    peak, weights = _gib(_V0_PEAK, text), start.weights_bytes_per_rank
    if peak is not None and weights is not None:
        above_weights = max(0, peak - weights)
    utilization = _V0_UTILIZATION.search(text)
    said = to_number(utilization[1]) if utilization else None
    return replace(
        _with_shares(start, None, _gib(_V0_OTHER, text), above_weights),
        engine=start.engine or "V0",
        total_bytes=_gib(_V0_TOTAL, text),
        kv_cache_bytes_per_rank=least(start.kv_cache_bytes_per_rank, _gib(_V0_ROOM, text)),
        gpu_memory_utilization=start.gpu_memory_utilization or said,
    )


def _of_v1(start: Start, text: str) -> Start:
    found = _V1_PROFILE.search(text)
    if found is None:
        return start
    peak, other, weights = (to_bytes(number) for number in found.groups())
    if "total consumed" in text:
        return _with_consumed(_with_shares(start, weights, None, peak), other)
    return _with_shares(start, weights, other, peak)


def _summary_of_v1(start: Start, text: str) -> Start:
    if found := _CHECKED.search(text):
        start = replace(
            start,
            free_bytes=least(start.free_bytes, to_bytes(found[1])),
            total_bytes=to_bytes(found[2]),
            gpu_memory_utilization=start.gpu_memory_utilization or to_number(found[3]),
            desired_bytes=to_bytes(found[4]),
        )
    start = _with_shares(
        start, _gib(_USED_WEIGHTS, text), _gib(_USED_OTHER, text), _gib(_USED_PEAK, text)
    )
    start = _with_consumed(start, _gib(_USED_TOGETHER, text))
    graphs = start.cuda_graph_bytes_per_rank
    if graphs is None:
        graphs = _gib(_USED_GRAPHS, text)
    start = replace(
        start,
        cuda_graph_bytes_per_rank=graphs,
        kv_cache_to_fit_bytes=least(start.kv_cache_to_fit_bytes, _bytes(_TO_FIT, text)),
        kv_cache_to_fill_bytes=least(start.kv_cache_to_fill_bytes, _bytes(_TO_FILL, text)),
    )
    if found := _IN_USE.search(text):
        # To the byte up to 0.10.2; later as coarse as the line before.
        in_use = to_bytes(found[1], found[2])
        if found[2] == "bytes" or start.kv_cache_bytes_per_rank is None:
            start = replace(start, kv_cache_bytes_per_rank=in_use)
    return start


def _with_shares(start: Start, weights: int | None, other: int | None, peak: int | None) -> Start:
    known = start.weights_bytes_per_rank
    return replace(
        start,
        weights_bytes_per_rank=weights if known is None else known,
        non_torch_bytes_per_rank=most(start.non_torch_bytes_per_rank, other),
        activation_bytes_per_rank=most(start.activation_bytes_per_rank, peak),
    )


def _with_consumed(start: Start, consumed: int | None) -> Start:
    if consumed is None:
        return start
    weights = start.weights_bytes_per_rank
    other = None if weights is None else max(0, consumed - weights)
    return replace(
        start,
        consumed_bytes_per_rank=most(start.consumed_bytes_per_rank, consumed),
        non_torch_bytes_per_rank=most(start.non_torch_bytes_per_rank, other),
    )


def _gib(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return to_bytes(found[1]) if found else None


def _bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return to_bytes(found[1], "bytes") if found else None
