"""GPU memory, device by device: how much there is, whose it is, and how it moves.

Used memory says little about a vLLM server, which fills its share at the start. What tells
something is memory that is not vLLM's, growth beyond the first load, and what is left.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.history import History
from sidecar.indicators.subject import GPU_LABELS, Outcome, Subject, outcome
from sidecar.memory_history import HOUR, DeviceHistory, MemoryHistory
from sidecar.model import Declaration, GpuReading

TOTAL = Declaration("gpu_memory_total_bytes", "Memory of the device.", labels=GPU_LABELS)
USED = Declaration(
    "gpu_memory_used_bytes",
    "Memory in use by all processes, without what the driver reserves where it says so.",
    labels=GPU_LABELS,
)
FREE = Declaration("gpu_memory_free_bytes", "Memory that is free.", labels=GPU_LABELS)
RESERVED = Declaration(
    "gpu_memory_reserved_bytes", "Memory that the driver keeps for itself.", labels=GPU_LABELS
)
HEADROOM = Declaration(
    "gpu_headroom_ratio", "Free memory as a share of all memory.", labels=GPU_LABELS
)
OWNER = Declaration(
    "gpu_memory_owner_bytes",
    "Memory in use by owner: this vLLM server, other processes, or not known.",
    labels=(*GPU_LABELS, "owner"),
)
PEAK = Declaration(
    "gpu_memory_peak_used_bytes",
    "Most memory in use at any poll of the trailing window.",
    labels=(*GPU_LABELS, "window"),
)
GROWTH = Declaration(
    "gpu_memory_growth_bytes",
    "vLLM's memory now less its most during the first minute of serving; the first load alone "
    "adds about a GiB that is normal.",
    labels=GPU_LABELS,
)
GROWTH_PER_HOUR = Declaration(
    "gpu_memory_growth_bytes_per_hour",
    "Robust slope of vLLM's memory over half an hour; absent before 10 minutes of data.",
    labels=GPU_LABELS,
)
EXHAUSTION = Declaration(
    "gpu_memory_exhaustion_seconds",
    "Seconds until the device is full at that slope; absent when it does not grow.",
    labels=GPU_LABELS,
)
UTILIZATION = Declaration(
    "gpu_utilization_ratio",
    "Share of time in which a kernel was running on the device.",
    labels=GPU_LABELS,
)
INFO = Declaration(
    "gpu_info",
    "Always 1; names the device. Join on uuid. unified is true where the memory is the host's, "
    "mig_instance names the part of a partitioned GPU.",
    labels=(*GPU_LABELS, "name", "driver_version", "unified", "mig_instance"),
)
UP = Declaration(
    "gpu_up", "1 when the device's memory was read at the last poll, else 0.", labels=GPU_LABELS
)


def measure(history: History) -> Iterable[Outcome]:
    memory = history.memory
    if memory is None:
        return
    for device in memory.devices.values():
        if device.reading is not None:
            labels = (str(device.reading.index), device.reading.uuid)
            yield from _measure_device(memory, device, labels)


def _measure_device(
    memory: MemoryHistory, device: DeviceHistory, labels: tuple[str, str]
) -> Iterable[Outcome]:
    reading = device.reading
    if reading is None or memory.at is None:
        return
    yield outcome(INFO, (*labels, *_description(reading, memory.driver_version)), 1.0)
    yield outcome(UP, labels, float(reading.memory is not None))
    yield outcome(UTILIZATION, labels, reading.utilization_ratio, "not_supported")
    sizes = reading.memory
    if sizes is None:
        yield outcome(USED, labels, None, "not_readable")
        return
    yield outcome(TOTAL, labels, float(sizes.total_bytes))
    yield outcome(USED, labels, float(sizes.used_bytes))
    yield outcome(FREE, labels, float(sizes.free_bytes))
    reason = "unified_memory" if reading.unified else "old_driver"
    yield outcome(RESERVED, labels, sizes.reserved_bytes, reason)
    if sizes.total_bytes > 0:
        yield outcome(HEADROOM, labels, sizes.free_bytes / sizes.total_bytes)
    for window, seconds in (("60s", 60.0), ("1h", HOUR)):
        yield outcome(PEAK, (*labels, window), max(device.used.within(memory.at, seconds)))
    yield from _measure_owners(memory, device, labels)


def _description(reading: GpuReading, driver_version: str | None) -> tuple[str, ...]:
    unified = "true" if reading.unified else "false"
    return (reading.name, driver_version or "", unified, reading.mig_instance or "")


def _measure_owners(
    memory: MemoryHistory, device: DeviceHistory, labels: tuple[str, str]
) -> Iterable[Outcome]:
    owners, reading = device.owners, device.reading
    if owners is None or reading is None or reading.memory is None:
        return
    yield outcome(OWNER, (*labels, "unknown"), float(owners.unknown_bytes))
    if owners.vllm_bytes is None or owners.other_bytes is None:
        yield outcome(OWNER, (*labels, "vllm"), None, "owners_unknown")
        return
    yield outcome(OWNER, (*labels, "vllm"), float(owners.vllm_bytes))
    yield outcome(OWNER, (*labels, "other"), float(owners.other_bytes))
    if owners.assumed:
        yield outcome(GROWTH, labels, None, "owners_unknown")
        return
    if device.warmup_peak_bytes is not None and not memory.warming_up:
        yield outcome(GROWTH, labels, float(owners.vllm_bytes - device.warmup_peak_bytes))
    else:
        yield outcome(GROWTH, labels, None, "warming_up")
    slope = memory.growth_bytes_per_hour(device)
    yield outcome(GROWTH_PER_HOUR, labels, slope, "too_short_observed")
    if slope is not None and slope > 0:
        yield outcome(EXHAUSTION, labels, reading.memory.free_bytes / slope * HOUR)


SUBJECT = Subject(
    (
        TOTAL,
        USED,
        FREE,
        RESERVED,
        HEADROOM,
        OWNER,
        PEAK,
        GROWTH,
        GROWTH_PER_HOUR,
        EXHAUSTION,
        UTILIZATION,
        INFO,
        UP,
    ),
    measure,
)
