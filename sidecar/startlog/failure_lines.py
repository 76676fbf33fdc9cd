"""Recognises failures in single lines. What only follows from a failure comes last."""

from __future__ import annotations

import re
from collections.abc import Callable

from sidecar.startlog.amounts import to_count
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.memory_failures import (
    disguised,
    disturbed,
    free_memory,
    host_memory,
    load_model,
    max_len,
    no_memory,
    out_of_memory,
)

_DEVICE_ERROR = re.compile(
    r"(?:CUDA|HIP|XPU) error: (?!out of memory)\S|device-side assert triggered"
    r"|CUDA driver initialization failed|NVIDIA driver on your system is too old"
    r"|Found no NVIDIA driver|illegal memory access|uncorrectable ECC|NCCL error"
    r"|ncclUnhandledCudaError"
)
_ARGUMENTS = re.compile(r"\berror: unrecognized arguments: (.+)")
_ARGUMENT = re.compile(r"\berror: argument (--?[\w./-]+)")
_KEYWORD = re.compile(r"got an unexpected keyword argument '(\w+)'")
_REQUIRED = re.compile(r"\berror: the following arguments are required: (.+)")
_ABOVE_MODEL = re.compile(
    r"max_model_len \((\d+)\) is greater than the derived max_model_len "
    r"\((?:[^=()]*=)?(\d+)"
)
_KILLED = re.compile(r"^(?:\S+: line \d+: +\d+ )?Killed\b|Out of memory: Kill|OOMKilled")
_EXIT_STATUS = re.compile(
    r"proc\(s\): \{'[\w.-]+': (-?\d+)|exit ?code:? '?(-?\d+)|SIG(KILL)\b", re.IGNORECASE
)

Recogniser = Callable[[str], LogFailure | None]


def _device(text: str) -> LogFailure | None:
    return LogFailure("device_error") if _DEVICE_ERROR.search(text) else None


def _arguments(text: str) -> LogFailure | None:
    if found := _ARGUMENTS.search(text) or _REQUIRED.search(text):
        words = (word.rstrip(",").partition("=")[0] for word in found[1].split())
        names = tuple(word for word in words if word.startswith("-"))[:20]
        return LogFailure("argument_error", arguments=names)
    if found := _ARGUMENT.search(text):
        return LogFailure("argument_error", arguments=tuple(found[1].split("/")))
    if "EngineArgs" in text and (found := _KEYWORD.search(text)):
        name = "--" + found[1].replace("_", "-")
        return LogFailure("argument_error", arguments=(name,))
    return None


def _configuration(text: str) -> LogFailure | None:
    if found := _ABOVE_MODEL.search(text):
        length, allowed = to_count(found[1]), to_count(found[2])
        return LogFailure("config_rejected", max_model_len=length, allowed_max_model_len=allowed)
    return LogFailure("config_rejected") if text.lstrip().startswith("Value error, ") else None


def _killed(text: str) -> LogFailure | None:
    return LogFailure("killed") if _KILLED.search(text) else None


def _engine_dead(text: str) -> LogFailure:
    found = _EXIT_STATUS.search(text)
    status = None
    if found:
        status = -9 if found[3] else to_count(found[1] or found[2])
    # 137 is how a shell or a container runtime tells of SIGKILL.
    if status in (-9, 137):
        return LogFailure("killed", exit_status=status)
    return LogFailure("engine_dead", exit_status=status)


# The words that must be in a line, before anything slower looks at it.
RECOGNISERS: tuple[tuple[tuple[str, ...], Recogniser], ...] = (
    (("memory on device", "memory on node"), free_memory),
    (("KV cache is needed", "can be stored in KV cache"), max_len),
    (("No available memory for the cache blocks", "Cannot auto-fit max_model_len"), no_memory),
    (("Error in memory profiling",), disturbed),
    (("not enough GPU memory.",), load_model),
    (("out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation"), out_of_memory),
    (("NVML_SUCCESS == r",), disguised),
    (("DefaultCPUAllocator", "MemoryError", "Cannot allocate memory"), host_memory),
    (
        (
            " error: ",
            "assert triggered",
            "CUDA driver",
            "NVIDIA driver",
            "illegal memory",
            "ECC",
            "NCCL error",
            "ncclUnhandled",
        ),
        _device,
    ),
    (("error: ", "unexpected keyword"), _arguments),
    (("Value error, ", "derived max_model_len"), _configuration),
    (("Killed", "Out of memory", "OOMKilled"), _killed),
    (
        (
            "died unexpectedly",
            "EngineDeadError",
            "failed to start",
            "initialization failed",
            "encountered a fatal error",
            "died with exit code",
            "terminated with exit",
            "SIGKILL",
        ),
        _engine_dead,
    ),
)


def recognise(text: str) -> LogFailure | None:
    """The failure that a line tells of, without what only the lines around it know."""
    for words, recogniser in RECOGNISERS:
        for word in words:
            if word in text and (failure := recogniser(text)):
                return failure
    return None
