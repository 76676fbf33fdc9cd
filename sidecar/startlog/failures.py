"""The ways in which a start or a server fails, as a closed set of kinds with their figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sidecar.startlog.out_of_memory import OutOfMemory

FailureKind = Literal[
    # Memory, found by vLLM's own arithmetic.
    "free_memory_below_desired",
    "no_available_memory",
    "max_len_too_long",
    "profiling_disturbed",
    # Memory, found by running out of it.
    "load_model_oom",
    "sampler_warmup_oom",
    "cuda_oom",
    "oom_in_disguise",
    "host_oom",
    # Not memory.
    "argument_error",
    "config_rejected",
    "device_error",
    "exception",
    # What is left when nobody could say why.
    "killed",
    "engine_dead",
]

Moment = Literal["loading", "profiling", "kv_cache", "graph_capture", "sampler_warmup", "serving"]

# A cause explains what follows it; within a rank, the first to be printed is the cause.
_RANK: dict[FailureKind, int] = {
    "free_memory_below_desired": 0,
    "no_available_memory": 0,
    "max_len_too_long": 0,
    "profiling_disturbed": 0,
    "load_model_oom": 0,
    "sampler_warmup_oom": 0,
    "argument_error": 0,
    "config_rejected": 0,
    "cuda_oom": 1,
    "oom_in_disguise": 1,
    "host_oom": 1,
    "device_error": 1,
    "killed": 2,
    "exception": 3,
    "engine_dead": 4,
}


@dataclass(frozen=True, slots=True)
class LogFailure:
    """One failure. Which figures it has depends on its kind; all others are None.

    free_memory_below_desired  free, total and desired bytes, utilization, device ("cuda:0",
                               "node 0" on the CPU backend, None before 0.14). `desired_bytes`
                               must be free: utilization x total, less weights that another
                               process holds.
    no_available_memory        available_bytes, negative where weights and activations exceed the
                               budget; None where no line said it (before 0.9.1).
    max_len_too_long           max_model_len; V0: capacity_tokens; V1: needed and available bytes,
                               and estimated_max_model_len where the release prints it.
    profiling_disturbed        initial_free_bytes and free_bytes: another process gave memory back
                               while vLLM measured. A second try may work.
    load_model_oom, cuda_oom   out_of_memory with PyTorch's figures, None where the driver failed
                               without them; moment.
    sampler_warmup_oom         dummy_requests, out_of_memory if PyTorch's message stood before it.
    oom_in_disguise            none: the allocator's own NVML query failed when it was out of memory
                               ("NVML_SUCCESS == r INTERNAL ASSERT", on MIG devices).
    host_oom                   requested_bytes where said.
    argument_error             arguments: the flags that the parser named.
    config_rejected            max_model_len and allowed_max_model_len if it was about the length.
    killed, engine_dead        exit_status where said (-9 is SIGKILL).

    `message` is the line itself, shortened. Two failures are equal when kind and figures are: vLLM
    prints each several times, and every worker prints it again.
    """

    kind: FailureKind
    message: str = field(default="", compare=False)
    stamp: str | None = field(default=None, compare=False)
    process: str | None = field(default=None, compare=False)
    pid: int | None = field(default=None, compare=False)
    moment: Moment | None = None
    device: str | None = None
    utilization: float | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    desired_bytes: int | None = None
    initial_free_bytes: int | None = None
    available_bytes: int | None = None
    needed_bytes: int | None = None
    requested_bytes: int | None = None
    max_model_len: int | None = None
    allowed_max_model_len: int | None = None
    estimated_max_model_len: int | None = None
    capacity_tokens: int | None = None
    dummy_requests: int | None = None
    out_of_memory: OutOfMemory | None = None
    arguments: tuple[str, ...] = ()
    exit_status: int | None = None


def decisive(failures: Iterable[LogFailure]) -> LogFailure | None:
    """The failure that explains the others: the first of the most telling kind.

    Where several devices lack memory at the start, the one with the least of it.
    """
    ranked = sorted(failures, key=lambda failure: _RANK[failure.kind])
    if not ranked:
        return None
    first = ranked[0]
    if first.kind != "free_memory_below_desired":
        return first
    same = [failure for failure in ranked if failure.kind == first.kind]
    return min(same, key=_missing_less)


def _missing_less(failure: LogFailure) -> int:
    if failure.free_bytes is None or failure.desired_bytes is None:
        return 0
    return failure.free_bytes - failure.desired_bytes
