"""Memory of the host: what is left when a model is loaded, offloaded, or shares it with the GPU.

On a device with unified memory a host that runs out of it stops answering altogether, so what
counts there is the memory that is still available, not what NVML says.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.history import History
from sidecar.indicators.subject import Outcome, Subject, outcome
from sidecar.model import Declaration

TOTAL = Declaration("host_memory_total_bytes", "Memory of the host.", labels=())
AVAILABLE = Declaration(
    "host_memory_available_bytes",
    "Memory that programs on the host may still take, as Linux estimates it.",
    labels=(),
)
SWAP_USED = Declaration("host_swap_used_bytes", "Memory that was moved to disk.", labels=())


def measure(history: History) -> Iterable[Outcome]:
    host = history.host
    if host is not None:
        yield outcome(TOTAL, (), float(host.memory_total_bytes))
        yield outcome(AVAILABLE, (), float(host.memory_available_bytes))
        yield outcome(SWAP_USED, (), float(host.swap_total_bytes - host.swap_free_bytes))


SUBJECT = Subject((TOTAL, AVAILABLE, SWAP_USED), measure)
