"""What NVML's errors mean: a reason for a label, a line with the cure, and what to do next.

Pure, and free of the binding: the numbers are `nvmlReturn_t` of NVIDIA's `nvml.h`, which never
change. What cures each was taken from NVIDIA's issue trackers (container toolkit, gpu-operator)
and the NVML reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

FailureReason = Literal[
    "library_missing",
    "driver_not_loaded",
    "version_mismatch",
    "no_devices",
    "gpu_lost",
    "no_permission",
    "unknown_error",
    "timeout",
    "other",
]
FAILURE_REASONS: tuple[FailureReason, ...] = get_args(FailureReason)
"""Every `Failure.reason` of the NVML source; a metric label takes no other value."""

ABSENCE_REASONS: frozenset[FailureReason] = frozenset(
    {"library_missing", "driver_not_loaded", "no_devices"}
)
"""What a host without an NVIDIA GPU answers: no failure, unless a GPU was there or is expected."""

Persistence = Literal["passing", "refused", "outdated", "lost"]
"""How long an error holds: `passing`, the next call may do better; `refused`, this call will
never answer for this device; `outdated`, nor will it, because this version of the call does not
exist here; `lost`, no call will answer before the device is opened anew."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One NVML error, understood. `text` is one line for people, with the cure."""

    reason: FailureReason
    text: str
    persistence: Persistence = "passing"


NOT_SUPPORTED = Trouble("other", "not supported by this device", "refused")

_TROUBLES: dict[int, Trouble] = {
    1: Trouble("other", "NVML was shut down underneath; it is started again by itself", "lost"),
    3: NOT_SUPPORTED,
    4: Trouble(
        "no_permission",
        "no permission: give the container this GPU (`--gpus`), or run as a user who may read it",
        "refused",
    ),
    6: Trouble(
        "no_devices", "the device is not there: see `dmesg`; a container needs `--gpus`", "lost"
    ),
    9: Trouble(
        "driver_not_loaded",
        "the NVIDIA kernel module is not loaded: `modprobe nvidia`, then see `dmesg`",
        "lost",
    ),
    10: Trouble("timeout", "the driver gave up waiting for the device: see `dmesg`"),
    12: Trouble(
        "library_missing",
        "libnvidia-ml.so.1 is not here: install the NVIDIA driver (under WSL, that of Windows); "
        "a container needs `--gpus` and NVIDIA_DRIVER_CAPABILITIES with `utility`",
    ),
    13: Trouble("other", "this driver does not have the call: a newer driver has", "outdated"),
    15: Trouble(
        "gpu_lost",
        "the GPU has fallen off the bus: see Xid in `dmesg`, then reset it or reboot the host",
        "lost",
    ),
    16: Trouble(
        "gpu_lost",
        "the GPU needs a reset: stop its processes, then `nvidia-smi --gpu-reset`",
        "lost",
    ),
    17: Trouble(
        "no_permission",
        "the operating system keeps the GPU from this process: recreate the container with "
        "`--gpus`; on a bare host see who may read /dev/nvidia*",
    ),
    18: Trouble(
        "version_mismatch",
        "driver library and kernel module differ, as after a driver update: reboot the host or "
        "reload the module, then recreate the container",
        "lost",
    ),
    25: Trouble("other", "this driver has another version of the call", "outdated"),
    28: Trouble("no_devices", "the GPU is not there any more: see `dmesg`, then reboot", "lost"),
    # The containers' case: `systemctl daemon-reload` on the host takes the device nodes away
    # from running containers. Passing, because some drivers answer so to a single call.
    999: Trouble(
        "unknown_error",
        "NVML says Unknown Error: recreate the container (the host took its GPUs away, as "
        "`systemctl daemon-reload` does); on a bare host see `dmesg`",
    ),
}

BINDING_MISMATCH = Trouble(
    "version_mismatch", "nvidia-ml-py is too new for the driver: update the driver", "outdated"
)
NO_SIZES = Trouble("other", "the driver answers without usable sizes: see `nvidia-smi -q`")
PARTITIONED = Trouble(
    "no_devices",
    "MIG mode is on, and of the whole GPU nothing is read: create a part "
    "(`nvidia-smi mig -cgi ... -C`) or give the container one, then restart the sidecar",
    "lost",
)
"""A whole GPU in MIG mode of which no part was seen at the start."""
WSL_PROCESSES = Trouble("other", "WSL does not show them, so whose memory it is is not known")
MISSING_IN_BINDING = Trouble(
    "version_mismatch", "nvidia-ml-py does not have the call: update it", "outdated"
)


def explain(error: Exception) -> Trouble:
    """What `error` means. Call it on NVML's thread: the text of a rare error asks the library.

    The binding's `NVMLError` carries the number as `value`; its `NVMLLibraryMismatchError` has
    none and is no `NVMLError`.
    """
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return BINDING_MISMATCH
    return _TROUBLES.get(code) or Trouble("other", f"NVML error {code}: {error}; see `dmesg`")
