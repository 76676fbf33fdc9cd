"""A stand-in for the module pynvml: the same names, errors and shapes, and a script for each.

`errors` maps a function name, or `(name, GPU index)`, to the number that it raises; `on_call`
runs inside each call, to block it or to move a clock. `calls` counts by name and by
`(name, GPU index)`. A process list is asked by its versioned names only, like a driver's.

A GPU with `parts` is in MIG mode: each part is a compute instance with a handle of its own, None a
gap in their count. For a part, the key of `errors` and `calls` is `(name, its UUID)`.
"""

# The names are NVML's own.
# ruff: noqa: N802, N815

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

MIB = 1024 * 1024


class NVMLError(Exception):
    """Like the real one: compared by number, and therefore without a hash."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NVMLError) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"error {self.value}"


class NVMLLibraryMismatchError(Exception):
    """No NVMLError, as in the real binding."""


def h200_memory() -> SimpleNamespace:
    """As version 2 of the call gives it; the parts add up to the total."""
    return SimpleNamespace(
        total=143_771 * MIB, used=126_000 * MIB, free=17_157 * MIB, reserved=614 * MIB
    )


@dataclass(eq=False)
class FakePart:
    """A compute instance: number and compute number of it, and the memory of its GPU instance."""

    uuid: str
    instance: int
    compute: int
    memory: SimpleNamespace
    processes: tuple[SimpleNamespace, ...] = ()
    name: str = "NVIDIA H200 MIG 1g.18gb"


@dataclass(eq=False)
class FakeGpu:
    uuid: str | bytes
    name: str | bytes = "NVIDIA H200"
    memory: SimpleNamespace = field(default_factory=h200_memory)
    processes: tuple[SimpleNamespace, ...] = (SimpleNamespace(pid=4242, usedGpuMemory=5 * MIB),)
    busy_percent: int = 37
    parts: tuple[FakePart | None, ...] | None = None


FakeHandle = FakeGpu | FakePart


class FakePynvml:
    """Handles are the `FakeGpu` and `FakePart` objects themselves."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *gpus: FakeGpu, driver: str | bytes = "590.48.01") -> None:
        self.gpus = list(gpus)
        self.driver = driver
        self.errors: dict[str | tuple[str, int | str], int | Exception] = {}
        self.calls: Counter[str | tuple[str, int | str]] = Counter()
        self.on_call: Callable[[str], None] = lambda name: None

    def _called(self, name: str, handle: FakeHandle | None = None) -> None:
        self.calls[name] += 1
        error = self.errors.get(name)
        if handle is not None:
            which = handle.uuid if isinstance(handle, FakePart) else self.gpus.index(handle)
            key = (name, which)
            self.calls[key] += 1
            error = self.errors.get(key, error)
        self.on_call(name)
        if error is not None:
            raise NVMLError(error) if isinstance(error, int) else error

    def nvmlInit(self) -> None:
        self._called("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._called("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        self._called("nvmlSystemGetDriverVersion")
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        self._called("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._called("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeHandle:
        devices: list[FakeHandle] = [*self.gpus]
        devices += [part for gpu in self.gpus for part in gpu.parts or () if part is not None]
        for device in devices:
            if device.uuid in (uuid, uuid.encode()):
                self._called("nvmlDeviceGetHandleByUUID", device)
                return device
        raise NVMLError(6)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        self._called("nvmlDeviceGetMigMode", handle)
        return [0, 0] if handle.parts is None else [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        self._called("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 0 if handle.parts is None else 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakePart:
        self._called("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        parts = handle.parts or ()
        part = parts[index] if index < len(parts) else None
        if part is None:
            raise NVMLError(6)
        return part

    def nvmlDeviceGetGpuInstanceId(self, handle: FakePart) -> int:
        self._called("nvmlDeviceGetGpuInstanceId", handle)
        return handle.instance

    def nvmlDeviceGetComputeInstanceId(self, handle: FakePart) -> int:
        self._called("nvmlDeviceGetComputeInstanceId", handle)
        return handle.compute

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: FakePart) -> FakeGpu:
        self._called("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return next(gpu for gpu in self.gpus if handle in (gpu.parts or ()))

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:
        self._called("nvmlDeviceGetIndex", handle)
        return self.gpus.index(handle)

    def nvmlDeviceGetUUID(self, handle: FakeHandle) -> str | bytes:
        self._called("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeHandle) -> str | bytes:
        self._called("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetMemoryInfo(
        self, handle: FakeHandle, version: int | None = None
    ) -> SimpleNamespace:
        if version is not None:
            self._called("memory_v2", handle)
            return handle.memory
        self._called("memory_v1", handle)
        v2 = handle.memory
        return SimpleNamespace(total=v2.total, used=v2.used + v2.reserved, free=v2.free)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeHandle) -> SimpleNamespace:
        self._called("utilization", handle)
        if isinstance(handle, FakePart) or handle.parts is not None:
            raise NVMLError(3)
        return SimpleNamespace(gpu=handle.busy_percent, memory=12)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: FakeHandle) -> list[SimpleNamespace]:
        self._called("processes_v3", handle)
        return list(handle.processes)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: FakeHandle) -> list[SimpleNamespace]:
        self._called("processes_v2", handle)
        return list(handle.processes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeHandle) -> list[SimpleNamespace]:
        self._called("processes", handle)
        return list(handle.processes)


def one_gpu() -> FakePynvml:
    return FakePynvml(FakeGpu("GPU-aaaa"))


def two_gpus() -> FakePynvml:
    return FakePynvml(FakeGpu("GPU-aaaa"), FakeGpu("GPU-bbbb"))
