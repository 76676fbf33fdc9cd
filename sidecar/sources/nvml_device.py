"""One GPU as NVML shows it: opening it, reading it, and remembering what it will never answer.

The facts about single calls (which version exists where, what a value means) are NVIDIA's NVML
reference and what the binding `nvidia-ml-py` does with it; call times were measured on H200 with
driver 580.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sidecar.model import GpuMemory, GpuProcess, GpuReading, HostReading
from sidecar.sources.nvml_binding import Binding, Refusals, TroubleError, known_bytes, text_of
from sidecar.sources.nvml_errors import (
    NO_SIZES,
    NOT_SUPPORTED,
    PARTITIONED,
    WSL_PROCESSES,
    Trouble,
    explain,
)
from sidecar.sources.nvml_mig import MigInstance, partition
from sidecar.sources.processes import ProcessTitles

RECOVERY_SECONDS = 30.0
"""A device or a library that failed is left alone this long, then opened anew."""
SLOW_PROCESS_LIST_SECONDS = 0.005
"""A process list that takes longer is asked every `PROCESS_LIST_SECONDS` only: the call holds a
lock of the driver that the watched application needs too."""
PROCESS_LIST_SECONDS = 5.0

_MEMORY_CALLS = ("memory v2", "memory v1")
_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the system around the devices tells: processes, memory, whether it is WSL."""

    titles: ProcessTitles
    memory: Callable[[], HostReading | None]
    wsl: bool = False


@dataclass(slots=True)
class NvmlDevice:
    """A watched device between reads. Its UUID is its identity: an index may shift.

    `lost` says why there is no handle and is set as long as there is none. `mig` is set for a part
    of a partitioned GPU; `parts` are those of a whole GPU that turned out to be partitioned, which
    itself is never read.
    """

    index: int
    binding: Binding
    surroundings: Surroundings
    uuid: str = ""
    name: str = ""
    mig: MigInstance | None = None
    parts: tuple[MigInstance, ...] | None = None
    lost: Trouble | None = None
    _handles: tuple[Any, ...] = ()
    _retry_at: float = 0.0
    _refusals: Refusals = field(init=False)
    _processes: tuple[GpuProcess, ...] | None = None
    _processes_due_at: float = 0.0

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.binding)

    @property
    def where(self) -> str:
        return f"GPU {self.index}" + (f" {self.mig.label}" if self.mig else "")

    def split(self) -> tuple[NvmlDevice, ...]:
        """The devices to read: this one, or its parts where it has some."""
        if not self.parts:
            return (self,)
        return tuple(
            NvmlDevice(self.index, self.binding, self.surroundings, part.uuids[0], mig=part)
            for part in self.parts
        )

    def open(self, now: float) -> None:
        """Gets a handle: by UUID where it is known, since the index may belong to another now."""
        call = self.binding.call
        try:
            if self.uuid:
                self._handles = (call("nvmlDeviceGetHandleByUUID", self.uuid),)
            else:
                self._handles = (call("nvmlDeviceGetHandleByIndex", self.index),)
                self.uuid = text_of(call("nvmlDeviceGetUUID", self._handles[0]))
            if self.mig is None:
                self.parts = partition(self.binding, self._handles[0])
        except self.binding.errors as error:
            self._lose(explain(error), now)
            return
        self.lost = None
        whole = self._handles[0]
        with suppress(*self.binding.errors):
            self.name = text_of(call("nvmlDeviceGetName", whole))
            if self.mig is not None:
                whole = call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", whole)
            self.index = call("nvmlDeviceGetIndex", whole)
        for uuid in self.mig.uuids[1:] if self.mig else ():
            with suppress(*self.binding.errors):
                self._handles += (call("nvmlDeviceGetHandleByUUID", uuid),)
        if self.parts is not None:
            self._lose(PARTITIONED, now)

    def read(self, clock: Callable[[], float]) -> GpuReading:
        """What can be had; the rest is None and named in `error`. Sets `lost` if nothing can."""
        now = clock()
        if self.lost is not None and now >= self._retry_at:
            self.open(now)
        if self.lost is not None:
            return self._nothing(self.lost)
        troubles: dict[str, Trouble] = {}
        memory = self._part("memory", troubles, self._memory)
        # No part of a partitioned GPU has utilisation: that is how it is, and no trouble.
        utilization = None if self.mig else self._part("utilisation", troubles, self._utilization)
        processes = self._part("processes", troubles, lambda: self._process_list(clock))
        lost = next((t for t in troubles.values() if t.persistence == "lost"), None)
        silent = utilization is None and processes is None
        if lost is None and silent and (memory is None or self._unified):
            # The host's memory proves nothing about a device that says nothing itself any more.
            passing = [t for t in troubles.values() if t.persistence == "passing"]
            lost = troubles.get("memory") or next(iter(passing), None)
        if lost is not None:
            self._lose(lost, now)
            return self._nothing(lost)
        return GpuReading(
            index=self.index,
            uuid=self.uuid,
            name=self.name,
            memory=memory,
            utilization_ratio=utilization[0] if utilization else None,
            memory_bandwidth_ratio=utilization[1] if utilization else None,
            processes=processes,
            error="; ".join(f"{part}: {t.text}" for part, t in troubles.items()) or None,
            unified=self._unified,
            mig_instance=self.mig.label if self.mig else None,
        )

    def _nothing(self, trouble: Trouble) -> GpuReading:
        label = self.mig.label if self.mig else None
        return GpuReading(self.index, self.uuid, self.name, error=trouble.text, mig_instance=label)

    def _lose(self, trouble: Trouble, now: float) -> None:
        self.lost, self._retry_at, self._handles = trouble, now + RECOVERY_SECONDS, ()
        self._refusals.forget()
        self._processes = None

    @staticmethod
    def _part(name: str, troubles: dict[str, Trouble], read: Callable[[], T]) -> T | None:
        """One part of a reading, or None and its trouble. A lost device is not asked further."""
        if any(trouble.persistence == "lost" for trouble in troubles.values()):
            return None
        try:
            return read()
        except TroubleError as error:
            troubles[name] = error.trouble
            return None

    @property
    def _unified(self) -> bool:
        """Whether the device uses the host's memory, as GB10 (DGX Spark) and Jetson do.

        Both calls then answer exactly "not supported" (driver 580 on GB10, by ctypes). No other
        error counts, so that a lost GPU is never disguised, and no part of a partitioned GPU does.
        """
        return self.mig is None and self._refusals.are(NOT_SUPPORTED, *_MEMORY_CALLS)

    def _memory(self) -> GpuMemory:
        """v2 knows the driver's reserve; v1 counts it as used. The binding has one function."""
        library, handle = self.binding.library, self._handles[0]

        def v2() -> GpuMemory:
            info = library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
            return _checked(info.total, info.used, info.free, info.reserved)

        def v1() -> GpuMemory:
            info = library.nvmlDeviceGetMemoryInfo(handle)
            return _checked(info.total, info.used, info.free, None)

        calls = list(zip(_MEMORY_CALLS, (v2, v1), strict=True))
        try:
            return self._refusals.first_answer(self.where, calls)
        except TroubleError:
            host = self.surroundings.memory() if self._unified else None
            if host is None:
                raise
        total, available = host.memory_total_bytes, host.memory_available_bytes
        return GpuMemory(total, total - available, available, None)

    def _utilization(self) -> tuple[float, float]:
        """The ratios of time in which a kernel ran, and in which memory was read or written."""

        def rates() -> tuple[float, float]:
            percent = self.binding.library.nvmlDeviceGetUtilizationRates(self._handles[0])
            return percent.gpu / 100.0, percent.memory / 100.0

        return self._refusals.first_answer(self.where, [("utilisation", rates)])

    def _process_list(self, clock: Callable[[], float]) -> tuple[GpuProcess, ...]:
        asked_at = clock()
        if self._processes is not None and asked_at < self._processes_due_at:
            return self._processes

        def asking(function: str) -> Callable[[], list[tuple[int, int | None]]]:
            return lambda: [
                (int(process.pid), known_bytes(process.usedGpuMemory))
                for handle in self._handles
                for process in getattr(self.binding.library, function)(handle)
            ]

        # Forgotten first: a list that can no longer be had must not stand for ever.
        self._processes = None
        found = self._refusals.first_answer(
            self.where, [(name, asking(name)) for name in _PROCESS_CALLS]
        )
        slow = clock() - asked_at > SLOW_PROCESS_LIST_SECONDS
        self._processes_due_at = asked_at + PROCESS_LIST_SECONDS if slow else asked_at
        if not found and self.surroundings.wsl:
            raise TroubleError(WSL_PROCESSES)
        title_of = self.surroundings.titles.title_of
        self._processes = tuple(GpuProcess(pid, held, title_of(pid)) for pid, held in found)
        return self._processes


def _checked(total: int, used: int, free: int, reserved: int | None) -> GpuMemory:
    """Sizes that can be true, which zero and the markers for "not available" are not."""
    if total <= 0 or any(not 0 <= part <= total for part in (used, free, reserved or 0)):
        raise TroubleError(NO_SIZES)
    return GpuMemory(int(total), int(used), int(free), None if reserved is None else int(reserved))
