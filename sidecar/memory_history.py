"""Whose the GPU memory is, and how it has moved lately.

A process id says nothing by itself: the driver reports host pids, which a container cannot
look up. Where vLLM's own log names processes that are there, those are the server's. Otherwise
the processes present at the first good page of a life of the server are taken as its own, and
whatever comes later as somebody else's, another vLLM included. Where titles tell that some of
those present are vLLM's, the others with a title are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sidecar.model import GpuReading, GpuReport
from sidecar.points import Points
from sidecar.process_titles import says_vllm

HOUR = 3600.0
HALF_AN_HOUR = 1800.0
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Owners:
    """Bytes of one device by owner; they add up to its used bytes. None = not known.

    `assumed` marks a split that rests on the device's total alone, because the driver listed no
    process although something is in use.
    """

    vllm_bytes: int | None
    other_bytes: int | None
    unknown_bytes: int
    assumed: bool = False


class DeviceHistory:
    """One GPU over time."""

    def __init__(self) -> None:
        self.reading: GpuReading | None = None
        self.owners: Owners | None = None
        self.used = Points(HOUR)
        self.vllm = Points(HALF_AN_HOUR)
        self.other = Points(HALF_AN_HOUR)
        self.first_used_bytes: int | None = None
        self.warmup_peak_bytes: int | None = None

    @property
    def pids(self) -> frozenset[int]:
        """Compute processes on this device at the last poll."""
        return _pids([self.reading]) if self.reading is not None else frozenset()


class MemoryHistory:
    """All watched GPUs of one server."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.devices: dict[str, DeviceHistory] = {}
        self.own_pids: frozenset[int] | None = None
        self._other_pids: frozenset[int] = frozenset()
        self.server = Points(HALF_AN_HOUR)
        self.driver_version: str | None = None
        self.warming_up = True

    @property
    def present_pids(self) -> frozenset[int]:
        """Compute processes on all devices at the last poll."""
        return frozenset(pid for device in self.devices.values() for pid in device.pids)

    def begin_life(self) -> None:
        """The server restarted: its processes and its warm-up are new."""
        self.own_pids = None
        for device in self.devices.values():
            device.first_used_bytes = device.warmup_peak_bytes = None
            device.vllm = Points(HALF_AN_HOUR)

    def add(
        self,
        at: float,
        report: GpuReport,
        *,
        page_is_good: bool,
        warming_up: bool,
        logged_pids: frozenset[int] = frozenset(),
    ) -> None:
        """Take in one reading of all devices. `logged_pids` are the processes that the server's
        own log names, in the namespace it runs in."""
        self.at = at
        self.driver_version = report.driver_version
        self.warming_up = warming_up
        readings = report.gpus[:MOST_DEVICES]
        if page_is_good and self.own_pids is None:
            named = logged_pids & _pids(readings)
            self.own_pids = named or _pids_of_server(readings, self._other_pids) or None
        if self.own_pids is not None and page_is_good:
            self._other_pids = _pids(readings) - self.own_pids
        for gone in self.devices.keys() - {_key(reading) for reading in readings}:
            del self.devices[gone]
        for reading in readings:
            device = self.devices.setdefault(_key(reading), DeviceHistory())
            self._add_device(at, device, reading, page_is_good, warming_up)
        held = self.vllm_bytes()
        if held is not None:
            self.server.append(at, held)

    def _add_device(
        self,
        at: float,
        device: DeviceHistory,
        reading: GpuReading,
        page_is_good: bool,
        warming_up: bool,
    ) -> None:
        device.reading = reading
        if reading.memory is None:
            device.owners = None
            return
        used = reading.memory.used_bytes
        if page_is_good and device.first_used_bytes is None:
            device.first_used_bytes = used
        device.owners = self._owners(reading, used, device.first_used_bytes)
        device.used.append(at, used)
        held, foreign = device.owners.vllm_bytes, device.owners.other_bytes
        if foreign is not None:
            device.other.append(at, foreign)
        if held is not None:
            device.vllm.append(at, held)
            if warming_up:
                device.warmup_peak_bytes = max(held, device.warmup_peak_bytes or 0)

    def _owners(self, reading: GpuReading, used: int, first_used_bytes: int | None) -> Owners:
        processes = reading.processes
        if processes is None:
            return Owners(None, None, used)
        if not processes and self.own_pids is None:
            # The memory of a whole host is used by much else, and never by vLLM alone.
            if first_used_bytes is None or reading.unified:
                return Owners(None, None, used)
            other = max(0, used - first_used_bytes)
            return Owners(used - other, other, 0, assumed=True)
        if self.own_pids is None:
            return Owners(None, None, used)
        own, other, complete = 0, 0, True
        for process in processes:
            if process.used_bytes is None:
                complete = False
            elif process.pid in self.own_pids:
                own += process.used_bytes
            elif process.pid in self._other_pids:
                other += process.used_bytes
            # A process that came while the server was away may be its next life: not known yet.
        unknown = max(0, used - own - other)
        return Owners(own, other, unknown) if complete else Owners(None, None, used)

    @property
    def owners_known(self) -> bool:
        """Whether every device of the server says which bytes are vLLM's, process by process."""
        owners = [device.owners for device in self.devices.values()]
        return bool(owners) and all(
            owner is not None and owner.vllm_bytes is not None and not owner.assumed
            for owner in owners
        )

    def vllm_bytes(self) -> float | None:
        """Bytes of the server over its GPUs; the devices' used bytes where owners are unknown."""
        held: list[int] = []
        for device in self.devices.values():
            if device.reading is None or device.reading.memory is None:
                return None
            known = device.owners.vllm_bytes if device.owners is not None else None
            held.append(device.reading.memory.used_bytes if known is None else known)
        return float(sum(held)) if held else None

    def plateau_bytes(self, at: float, seconds: float) -> float | None:
        """The median of the server's bytes over the last seconds; None when not read now."""
        return median(self.server.within(at, seconds)) if self.server.at(at) is not None else None

    def growth_bytes_per_hour(
        self, device: DeviceHistory, at_least_seconds: float = 600.0
    ) -> float | None:
        """The median of all pairwise slopes over half an hour, so that one jump is no trend."""
        points = device.vllm
        if self.at is None or points.at(self.at) is None:
            return None
        if points.observed_seconds(self.at, HALF_AN_HOUR) < at_least_seconds:
            return None
        thinned = _thin(points, self.at)
        slopes = [
            (later - earlier) / (later_at - earlier_at)
            for i, (earlier_at, earlier) in enumerate(thinned)
            for later_at, later in thinned[i + 1 :]
        ]
        return median(slopes) * HOUR if slopes else None


def _thin(points: Points, now: float, bins: int = 40) -> list[tuple[float, float]]:
    """At most `bins` points of the last half hour: each bin's medians of time and value."""
    width = HALF_AN_HOUR / bins
    grouped: dict[int, list[tuple[float, float]]] = {}
    for at, value in zip(points.times, points.values, strict=True):
        if at > now - HALF_AN_HOUR:
            grouped.setdefault(int((at - now + HALF_AN_HOUR) / width), []).append((at, value))
    return [
        (median(at for at, _ in group), median(value for _, value in group))
        for _, group in sorted(grouped.items())
    ]


def _key(reading: GpuReading) -> str:
    """A device that never answered has no UUID yet; its index tells it apart until then."""
    return reading.uuid or f"index {reading.index}"


def _pids_of_server(readings: Iterable[GpuReading], others: frozenset[int]) -> frozenset[int]:
    """Of the processes at the first good page, those that are vLLM's as far as can be known.

    A title proves a neighbour only beside one that says vLLM: a server may also be a script of
    one's own, of which nothing but "python" is known. A process without a title counts as present.
    """
    present = [
        process
        for reading in readings
        for process in (reading.processes or ())
        if process.pid not in others
    ]
    if any(says_vllm(process.title) for process in present):
        present = [p for p in present if p.title is None or says_vllm(p.title)]
    return frozenset(process.pid for process in present)


def _pids(readings: Iterable[GpuReading]) -> frozenset[int]:
    return frozenset(process.pid for reading in readings for process in (reading.processes or ()))
