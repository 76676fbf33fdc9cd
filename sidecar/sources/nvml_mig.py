"""The parts of a partitioned GPU (MIG).

From NVIDIA's MIG user guide and NVML reference: a GPU instance has memory of its own; the compute
instances inside it share that memory, so a GPU instance is what is reported, once. NVML has a
handle for each compute instance only, counted with gaps. The whole GPU's handle still answers for
all parts together, or not at all without privileges: neither is ever taken for a part.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sidecar.sources.nvml_binding import Binding, text_of
from sidecar.sources.nvml_errors import explain

_ENABLED = 1
"""NVML_DEVICE_MIG_ENABLE."""
_NOT_TO_BE_SEEN = (2, 4, 6)
"""Invalid argument, no permission, not found: a gap in the count, or somebody else's part."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance: its number, and its compute instances by UUID and number."""

    number: int
    compute: tuple[tuple[str, int], ...]

    @property
    def label(self) -> str:
        return f"gi {self.number}"

    @property
    def uuids(self) -> tuple[str, ...]:
        """The first is the one it goes by."""
        return tuple(uuid for uuid, _ in self.compute)

    def names(self, parent_uuid: str) -> tuple[str, ...]:
        """All that people may call it: its UUIDs of today's and of early drivers' form."""
        early = (f"MIG-{parent_uuid}/{self.number}/{compute}" for _, compute in self.compute)
        return (*self.uuids, *early)


def partition(binding: Binding, handle: Any) -> tuple[MigInstance, ...] | None:  # noqa: ANN401
    """The parts of this GPU that can be seen, possibly none; None where it is not partitioned.

    Most GPUs have no MIG mode and say so in one way or another. Raises one of the binding's errors
    where the device does not answer.
    """
    try:
        enabled = binding.call("nvmlDeviceGetMigMode", handle)[0] == _ENABLED
    except AttributeError:
        return None
    except binding.errors as error:
        trouble = explain(error)
        if trouble.persistence == "lost":
            raise
        if trouble.reason != "no_permission":
            return None
        # Who may not ask for the mode may still see a part.
        with suppress(*binding.errors):
            return _instances(binding, handle) or None
        return None
    return _instances(binding, handle) if enabled else None


def _instances(binding: Binding, handle: Any) -> tuple[MigInstance, ...]:  # noqa: ANN401
    """In the order of their numbers. A container sees only its own."""
    found: dict[int, list[tuple[str, int]]] = {}
    for index in range(binding.call("nvmlDeviceGetMaxMigDeviceCount", handle)):
        try:
            part = binding.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            number = int(binding.call("nvmlDeviceGetGpuInstanceId", part))
            compute = int(binding.call("nvmlDeviceGetComputeInstanceId", part))
            uuid = text_of(binding.call("nvmlDeviceGetUUID", part))
        except binding.errors as error:
            if getattr(error, "value", None) in _NOT_TO_BE_SEEN:
                continue
            raise
        found.setdefault(number, []).append((uuid, compute))
    return tuple(
        MigInstance(number, tuple(sorted(compute, key=lambda each: each[1])))
        for number, compute in sorted(found.items())
    )
