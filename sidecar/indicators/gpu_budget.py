"""Where each GPU's memory goes, part by part, adding up to the whole device to the byte.

Weights, KV cache, graphs and activations come from vLLM's own log, the rest from NVML. What is
not known is folded into `unexplained`, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean

from sidecar.history import History
from sidecar.indicators.subject import GPU_LABELS, Outcome, Subject, outcome
from sidecar.memory_history import DeviceHistory
from sidecar.model import Declaration

BUDGET = Declaration(
    "gpu_memory_budget_bytes",
    "The device's memory by part; the parts add up to the whole. Weights, KV cache, graphs and "
    "activations need vLLM's log; without it they are part of `unexplained`.",
    labels=(*GPU_LABELS, "part"),
)


def measure(history: History) -> Iterable[Outcome]:
    memory = history.memory
    if memory is None:
        return
    for device in memory.devices.values():
        if device.reading is None or device.reading.memory is None:
            continue
        labels = (str(device.reading.index), device.reading.uuid)
        for part, size in budget(history, device).items():
            yield outcome(BUDGET, (*labels, part), float(size))


def budget(history: History, device: DeviceHistory) -> Mapping[str, int]:
    """Bytes by part of a device that was read; empty if it was not. They add up to its total.

    Activations are the peak that profiling saw: the allocator keeps them, but not always all of
    them, so they give way first where the parts exceed what vLLM holds. A server that sleeps has
    given weights and KV cache back, and is not explained by them.
    """
    sizes = device.reading.memory if device.reading is not None else None
    if sizes is None:
        return {}
    other = device.owners.other_bytes if device.owners is not None else None
    held = device.owners.vllm_bytes if device.owners is not None else None
    reserved = sizes.reserved_bytes or 0
    parts = _known_parts(history) if held else {}
    if sum(parts.values()) > (held or 0):
        parts.pop("activations", None)
    if sum(parts.values()) > (held or 0):
        parts = {}
    foreign = min(other or 0, sizes.used_bytes)
    explained = reserved + sizes.free_bytes + foreign + sum(parts.values())
    return {
        "driver_reserved": reserved,
        **parts,
        "unexplained": sizes.total_bytes - explained,
        "other_processes": foreign,
        "free": sizes.free_bytes,
    }


def _known_parts(history: History) -> dict[str, int]:
    start = history.start
    if start is None:
        return {}
    parts: dict[str, int] = {}
    if start.weights_bytes_per_rank is not None:
        parts["weights"] = start.weights_bytes_per_rank
    pool = start.kv_cache_bytes_per_rank
    if pool is not None and pool > 0 and start.num_gpu_blocks_override is None:
        usage = [
            engine.reading.kv_usage_ratio
            for engine in history.engines
            if engine.reading is not None and engine.reading.kv_usage_ratio is not None
        ]
        used = int(pool * mean(usage)) if usage else 0
        parts["kv_cache_used"], parts["kv_cache_free"] = used, pool - used
    if start.cuda_graph_bytes_per_rank is not None and start.cuda_graph_bytes_per_rank > 0:
        parts["cuda_graphs"] = start.cuda_graph_bytes_per_rank
    if start.activation_bytes_per_rank is not None:
        parts["activations"] = start.activation_bytes_per_rank
    return parts


SUBJECT = Subject((BUDGET,), measure)
