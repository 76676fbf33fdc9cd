"""One GPU as NVML shows it: opening it, reading it, and remembering what it will never answer.

The facts about single calls (which version exists where, what a value means) are NVIDIA's NVML
reference and what the binding `nvidia-ml-py` does with it; call times were measured on H200 with
driver 580.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from sidecar.model import GpuMemory, GpuProcess, GpuReading
from sidecar.sources.nvml_errors import MISSING_IN_BINDING, Trouble, explain

NvmlLibrary: TypeAlias = Any
"""The module `pynvml` or something that looks like it: it has no type stubs, so what it returns
becomes typed in this file and `nvml_session.py` and goes no further."""

RECOVERY_SECONDS = 30.0
"""A device or a library that failed is left alone this long, then opened anew."""
SLOW_PROCESS_LIST_SECONDS = 0.005
"""A process list that takes longer is asked every `PROCESS_LIST_SECONDS` only: the call holds a
lock of the driver that the watched application needs too."""
PROCESS_LIST_SECONDS = 5.0

_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
)
_UNKNOWN_BYTES = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: some bindings turn it into None, some hand it on."""

T = TypeVar("T")


class Binding:
    """The library with the exceptions it raises, and the call it is in, for a report of a hang."""

    def __init__(self, library: NvmlLibrary) -> None:
        self.library = library
        # The second is no subclass of the first: calls without a version in their name raise it.
        self.errors: tuple[type[Exception], ...] = (
            library.NVMLError,
            library.NVMLLibraryMismatchError,
        )
        self.doing = "nvmlInit"

    def call(self, function: str, *arguments: object) -> Any:  # noqa: ANN401
        """Calls the function of this name; raises one of `errors`."""
        self.doing = function
        return getattr(self.library, function)(*arguments)


class _TroubleError(Exception):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


@dataclass(slots=True)
class NvmlDevice:
    """A watched device between reads. Its UUID is its identity: an index may shift.

    `lost` says why there is no handle and is set as long as there is none. `refused` holds the
    calls that this device will never answer, so that they are not made again.
    """

    index: int
    binding: Binding
    uuid: str = ""
    name: str = ""
    lost: Trouble | None = None
    _handle: Any = None
    _retry_at: float = 0.0
    _refused: dict[str, Trouble] = field(default_factory=dict)
    _processes: tuple[GpuProcess, ...] | None = None
    _processes_due_at: float = 0.0

    def open(self, now: float) -> None:
        """Gets a handle: by UUID where it is known, since the index may belong to another now."""
        call = self.binding.call
        try:
            if self.uuid:
                self._handle = call("nvmlDeviceGetHandleByUUID", self.uuid)
            else:
                self._handle = call("nvmlDeviceGetHandleByIndex", self.index)
                self.uuid = text_of(call("nvmlDeviceGetUUID", self._handle))
        except self.binding.errors as error:
            self._lose(explain(error), now)
            return
        self.lost = None
        with suppress(*self.binding.errors):
            self.index = call("nvmlDeviceGetIndex", self._handle)
            self.name = text_of(call("nvmlDeviceGetName", self._handle))

    def read(self, clock: Callable[[], float]) -> GpuReading:
        """What can be had; the rest is None and named in `error`. Sets `lost` if nothing can."""
        now = clock()
        if self.lost is not None and now >= self._retry_at:
            self.open(now)
        if self.lost is not None:
            return self._nothing(self.lost)
        troubles: dict[str, Trouble] = {}
        memory = self._part("memory", troubles, self._memory)
        utilization = self._part("utilisation", troubles, self._utilization)
        processes = self._part("processes", troubles, lambda: self._process_list(clock))
        lost = next((t for t in troubles.values() if t.persistence == "lost"), None)
        if lost is None and memory is None and utilization is None and processes is None:
            lost = troubles["memory"]
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
        )

    def _nothing(self, trouble: Trouble) -> GpuReading:
        return GpuReading(self.index, self.uuid, self.name, error=trouble.text)

    def _lose(self, trouble: Trouble, now: float) -> None:
        self.lost, self._retry_at, self._handle = trouble, now + RECOVERY_SECONDS, None
        self._refused.clear()
        self._processes = None

    @staticmethod
    def _part(name: str, troubles: dict[str, Trouble], read: Callable[[], T]) -> T | None:
        """One part of a reading, or None and its trouble. A lost device is not asked further."""
        if any(trouble.persistence == "lost" for trouble in troubles.values()):
            return None
        try:
            return read()
        except _TroubleError as error:
            troubles[name] = error.trouble
            return None

    def _memory(self) -> GpuMemory:
        """v2 knows the driver's reserve; v1 counts it as used. The binding has one function."""
        library, handle = self.binding.library, self._handle

        def v2() -> GpuMemory:
            info = library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
            return GpuMemory(int(info.total), int(info.used), int(info.free), int(info.reserved))

        def v1() -> GpuMemory:
            info = library.nvmlDeviceGetMemoryInfo(handle)
            return GpuMemory(int(info.total), int(info.used), int(info.free), None)

        return self._first_answer([("memory v2", v2), ("memory v1", v1)])

    def _utilization(self) -> tuple[float, float]:
        """The ratios of time in which a kernel ran, and in which memory was read or written."""

        def rates() -> tuple[float, float]:
            percent = self.binding.library.nvmlDeviceGetUtilizationRates(self._handle)
            return percent.gpu / 100.0, percent.memory / 100.0

        return self._first_answer([("utilisation", rates)])

    def _process_list(self, clock: Callable[[], float]) -> tuple[GpuProcess, ...]:
        asked_at = clock()
        if self._processes is not None and asked_at < self._processes_due_at:
            return self._processes

        def asking(function: str) -> Callable[[], tuple[GpuProcess, ...]]:
            return lambda: tuple(
                GpuProcess(int(process.pid), _known_bytes(process.usedGpuMemory))
                for process in getattr(self.binding.library, function)(self._handle)
            )

        # Forgotten first: a list that can no longer be had must not stand for ever.
        self._processes = None
        self._processes = self._first_answer([(name, asking(name)) for name in _PROCESS_CALLS])
        slow = clock() - asked_at > SLOW_PROCESS_LIST_SECONDS
        self._processes_due_at = asked_at + PROCESS_LIST_SECONDS if slow else asked_at
        return self._processes

    def _first_answer(self, calls: Sequence[tuple[str, Callable[[], T]]]) -> T:
        """The answer of the first call that this device does not refuse, newest call first.

        Where all refuse, a call that exists tells more than one that does not.
        """
        verdict: Trouble | None = None
        for name, call in calls:
            self.binding.doing = f"{name} of GPU {self.index}"
            if name not in self._refused:
                try:
                    return call()
                except AttributeError:
                    trouble = MISSING_IN_BINDING
                except self.binding.errors as error:
                    trouble = explain(error)
                if trouble.persistence not in ("refused", "outdated"):
                    raise _TroubleError(trouble)
                self._refused[name] = trouble
            if verdict is None or verdict.persistence == "outdated":
                verdict = self._refused[name]
        raise _TroubleError(verdict or MISSING_IN_BINDING)


def text_of(value: str | bytes) -> str:
    """Text that NVML gave; older bindings hand it on as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _known_bytes(value: int | None) -> int | None:
    return None if value is None or value == _UNKNOWN_BYTES else int(value)
