"""The server, or a single request of it, ran out of GPU memory whatever the start had left."""

from __future__ import annotations

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.sources.releases import Release
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.memory_arithmetic import gib
from sidecar.verdicts.out_of_memory_figures import (
    NO_SEGMENTS,
    figures,
    foreign_bytes,
    less_utilization,
)

LORA_STEP = 0.05
"""With adapters: they are profiled as dummies, and real ones leave more behind."""
SLEEP_WITH_SEGMENTS_SINCE: Release = (0, 22, 0)


def out_of_memory_at_run_time(case: FailedStart) -> Verdict:
    """A server that was up needed more than was left beside its pool."""
    start, message = case.start, case.message
    foreign = foreign_bytes(message)
    has_neighbour = foreign >= case.thresholds.neighbour_bytes
    asked = f"asked for {gib(message.tried_bytes)}" if message and message.tried_bytes else "ran"
    holder = (
        f"other processes held {gib(foreign)} of the card"
        if has_neighbour
        else "nothing was left beside its own memory"
    )
    advice: list[Advice] = []
    if has_neighbour:
        advice.append(
            Advice(
                "neighbour",
                None,
                f"{gib(foreign)} come back",
                "end or move the other process, or size both so that the first large prefill "
                "still fits",
            )
        )
        advice.append(
            Advice(
                "--kv-cache-memory-bytes",
                None,
                "a KV cache that leaves headroom for the neighbour and for the first load",
                "the first load alone takes about a GiB beyond what is measured at the start",
            )
        )
    else:
        adapters = start.arguments.get("enable_lora") or start.arguments.get("max_loras")
        advice.extend(less_utilization(case, by=LORA_STEP if adapters else 0.02))
        advice.append(
            Advice(
                "--max-num-batched-tokens",
                None,
                "smaller peaks outside the KV cache",
                "activation memory grows with the tokens of a step",
                current=None
                if start.max_num_batched_tokens is None
                else str(start.max_num_batched_tokens),
            )
        )
    return Verdict(
        "runtime_oom",
        "critical",
        "high" if message is not None else "medium",
        f"The server {asked} and died of running out of GPU memory while serving: {holder}.",
        evidence=figures(case),
        advice=tuple(advice),
        avoid=(NO_SEGMENTS, Avoid("--block-size", "the KV cache is not what failed")),
    )


def single_allocation(case: FailedStart, message: OutOfMemory) -> Verdict:
    """One request to the allocator that no card of this size could ever grant."""
    return Verdict(
        "single_allocation",
        "critical",
        "high",
        f"A single request for {gib(message.tried_bytes or 0)} is larger than the card "
        f"({gib(message.total_bytes or 0)}) can ever give.",
        evidence=figures(case),
        advice=(
            Advice(
                "attention backend",
                None,
                "no such allocation",
                "an attention fallback builds the whole matrix: install the backend that the "
                "release expects, or shorten the input (smaller images, --max-model-len)",
            ),
        ),
        avoid=(
            NO_SEGMENTS,
            Avoid("--gpu-memory-utilization", "no share of this card is large enough"),
        ),
    )


def allocator_slack(case: FailedStart, message: OutOfMemory) -> Verdict:
    """The one kind in which PyTorch's allocator really is fragmented."""
    release = case.release
    slack = message.reserved_unallocated_bytes or 0
    share = slack / (message.total_bytes or 1)
    asleep = bool(case.start.arguments.get("enable_sleep_mode"))
    too_old = release is None or release < SLEEP_WITH_SEGMENTS_SINCE
    advice: list[Advice] = []
    if not (asleep and too_old):
        advice.append(
            Advice(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                None,
                f"up to {gib(slack)} can be used again",
                "here the allocator's slack really is large; it is an environment variable",
            )
        )
    advice.extend(less_utilization(case))
    return Verdict(
        "allocator_slack",
        "critical",
        "high",
        f"{gib(slack)} ({share:.0%} of the card) are reserved by PyTorch and unallocated: the "
        "allocator is fragmented.",
        evidence=figures(case),
        advice=tuple(advice),
    )


def in_disguise(case: FailedStart) -> Verdict:
    """The allocator failed while it asked why it had failed."""
    start = case.start
    return Verdict(
        "runtime_oom" if start.started else "activation_peak",
        "critical",
        "medium",
        "PyTorch's allocator failed in its own NVML query: this is running out of memory in "
        "disguise, known on MIG devices.",
        evidence=(Evidence("message", start.last_exception or "NVML_SUCCESS == r"),),
        advice=(
            Advice(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
                None,
                "the honest message, or none",
                "the query belongs to expandable segments",
            ),
            *less_utilization(case),
        ),
    )
