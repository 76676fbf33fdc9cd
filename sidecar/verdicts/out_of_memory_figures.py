"""The figures of an out-of-memory error, and the room that it asks for."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Evidence
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.memory_arithmetic import margin_bytes, round_utilization_down
from sidecar.verdicts.situation import GIB

NO_SEGMENTS = Avoid(
    "expandable_segments",
    "the allocator's slack is too small for it to help, whatever PyTorch's message says",
)


def foreign_bytes(message: OutOfMemory | None) -> int:
    """Bytes of other processes at that moment: as named, else what the device's figures leave."""
    if message is None:
        return 0
    own = message.this_process_bytes
    if own is None and message.allocated_bytes is not None:
        own = _own_bytes(message, message.allocated_bytes)
    if own is None or message.total_bytes is None or message.free_bytes is None:
        return sum(size for _, size in message.processes)
    return max(0, message.total_bytes - message.free_bytes - own)


def _own_bytes(message: OutOfMemory, allocated: int) -> int:
    """What the failing process holds, where the message does not name it as its own: in a
    container it stands among the others under the host's number; before PyTorch 2.1 it is what
    PyTorch reserves, and half a GiB for the context around it."""
    large_enough = [size for _, size in message.processes if size >= allocated]
    if large_enough:
        return max(large_enough)
    return allocated + (message.reserved_unallocated_bytes or 0) + GIB // 2


def figures(case: FailedStart) -> tuple[Evidence, ...]:
    """What PyTorch said, as evidence."""
    message = case.message
    if message is None:
        return ()
    named = (
        ("tried_bytes", message.tried_bytes),
        ("free_bytes", message.free_bytes),
        ("total_bytes", message.total_bytes),
        ("this_process_bytes", message.this_process_bytes),
        ("allocated_bytes", message.allocated_bytes),
        ("reserved_unallocated_bytes", message.reserved_unallocated_bytes),
    )
    found = [Evidence(name, float(value), "bytes") for name, value in named if value is not None]
    if message.reserved_unallocated_bytes is not None and message.total_bytes:
        limit = case.thresholds.allocator_slack_ratio
        share = message.reserved_unallocated_bytes / message.total_bytes
        found.append(Evidence("allocator_slack_ratio", share, "ratio", limit))
    if foreign_bytes(message) > 0:
        found.append(Evidence("other_processes_bytes", float(foreign_bytes(message)), "bytes"))
    return tuple(found)


def less_utilization(case: FailedStart, by: float = 0.02) -> Iterable[Advice]:
    """Room outside the pool: what was asked for and a margin, and no less than `by`.

    By the flag in force; nothing where too little would be left for the weights.
    """
    start, message = case.start, case.message
    total = message.total_bytes if message is not None else None
    if message is not None and total and message.tried_bytes is not None:
        missing = message.tried_bytes - (message.free_bytes or 0) + margin_bytes(total)
        by = max(by, missing / total)
    expect = "that much stays free outside the KV cache"
    why = "what was asked for and a margin; go back by 0.02 once it is stable"
    if start.num_gpu_blocks_override is not None:
        blocks = str(start.num_gpu_blocks_override)
        yield Advice("--num-gpu-blocks-override", None, expect, why, current=blocks)
    elif start.kv_cache_memory_bytes is not None:
        held = start.kv_cache_memory_bytes
        left = None if total is None else int(held - by * total)
        if left is None or left > 0:
            to = None if left is None else str(left)
            yield Advice("--kv-cache-memory-bytes", to, expect, why, current=str(held))
    elif start.gpu_memory_utilization is not None:
        now = start.gpu_memory_utilization
        to_ratio = round_utilization_down(now - by)
        least = (start.weights_bytes_per_rank or 0) / total if total else 0.0
        if to_ratio > least:
            yield Advice(
                "--gpu-memory-utilization", f"{to_ratio:.2f}", expect, why, current=f"{now:g}"
            )
