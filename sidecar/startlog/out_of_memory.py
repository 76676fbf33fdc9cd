"""PyTorch's out-of-memory message, in every wording since PyTorch 1.13.

    up to 2.0  Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity; 27.91 GiB already
               allocated; 565.31 MiB free; 27.93 GiB reserved in total by PyTorch)
    2.1        GPU 0 has a total capacty of ... (so spelled)
    2.2+       GPU 0 has a total capacity of 139.80 GiB of which 13.56 MiB is free. Including
               non-PyTorch memory, this process has 82.83 GiB memory in use. Process 899 has
               56.95 GiB memory in use. Of the allocated memory 82.03 GiB is allocated by PyTorch,
               with 106.00 MiB allocated in private pools (e.g., CUDA Graphs), and 71.42 MiB is
               reserved by PyTorch but unallocated.

The hint at its end, to set `expandable_segments`, is printed whatever the figures are. What
speaks for it is only `reserved_unallocated_bytes`, measured against the card.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.startlog.amounts import SIZE, to_bytes

_TRIED = re.compile(rf"out of memory\.? +Tried to allocate {SIZE}")
_DEVICE = re.compile(r"(?:GPU|NPU|XPU|HPU|device) (\d+)(?: has a total|;)")
_TOTAL = re.compile(rf"total capaci?ty of {SIZE}|{SIZE} total capacity")
_FREE = re.compile(rf"of which {SIZE} is free|{SIZE} free;")
_THIS_PROCESS = re.compile(rf"this process has {SIZE} memory in use")
_PROCESS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
_ALLOCATED = re.compile(
    rf"allocated memory {SIZE} is allocated by PyTorch|{SIZE} already allocated"
)
_PRIVATE = re.compile(rf"with {SIZE} allocated in private pools")
_UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """What one message said, in bytes; None where it did not.

    `device` is PyTorch's index, which counts from 0 inside `CUDA_VISIBLE_DEVICES`.
    `this_process_bytes` includes what is not PyTorch's. `processes` are `(pid, bytes)` as the
    driver names them: inside a container the failing process itself may be among them, under
    the host's number. `private_pool_bytes` is what CUDA graphs keep, a part of `allocated_bytes`.
    """

    tried_bytes: int | None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    this_process_bytes: int | None = None
    processes: tuple[tuple[int, int], ...] = ()
    allocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None


def parse_out_of_memory(text: str) -> OutOfMemory | None:
    """Reads the message wherever it stands in the line; None if there is none."""
    tried = _TRIED.search(text)
    if tried is None:
        return None
    text = text[tried.start() :]
    device = _DEVICE.search(text)
    allocated = _size(_ALLOCATED, text)
    unallocated = _size(_UNALLOCATED, text)
    if unallocated is None:
        reserved = _size(_RESERVED, text)
        if reserved is not None and allocated is not None:
            unallocated = max(0, reserved - allocated)
    return OutOfMemory(
        tried_bytes=to_bytes(tried[1], tried[2]),
        device=int(device[1][:6]) if device else None,
        total_bytes=_size(_TOTAL, text),
        free_bytes=_size(_FREE, text),
        this_process_bytes=_size(_THIS_PROCESS, text),
        processes=_processes(text),
        allocated_bytes=allocated,
        private_pool_bytes=_size(_PRIVATE, text),
        reserved_unallocated_bytes=unallocated,
    )


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group is not None][:2]
    return to_bytes(number, unit)


def _processes(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    for pid, number, unit in _PROCESS.findall(text):
        size = to_bytes(number, unit)
        if size is not None:
            found.append((int(pid[:12]), size))
    return tuple(found)
