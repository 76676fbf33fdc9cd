"""What a log says about the server at work: load, preemptions, sleep, pauses (data only).

All of it is optional: the periodic line is silent on an idle server, off with
`--disable-log-stats`, and V1 engines have no line for a preemption (read up to 0.33.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PreemptionMode = Literal["SWAP", "RECOMPUTE"]


@dataclass(frozen=True, slots=True)
class LoadLine:
    """The periodic line of the engine, or of all engines together.

    `kv_usage_ratio` is of blocks, 0 to 1, with one decimal of a per cent. `waiting_requests`
    includes what V0 engines call pending; `swapped_requests` is said by them only.
    """

    stamp: str | None
    running_requests: int
    waiting_requests: int | None
    swapped_requests: int | None
    kv_usage_ratio: float | None
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Preemption:
    """A warning of a V0 engine (0.4.3 to 0.10.2), printed for every 50th preemption only.

    Its text blames the KV cache whatever the cause; `kv_usage_ratio` is the load line's before it.
    `total` counts since the start.
    """

    stamp: str | None
    mode: PreemptionMode
    total: int | None
    kv_usage_ratio: float | None


@dataclass(frozen=True, slots=True)
class Sleep:
    """A worker went to sleep: what it gave back, and what anybody still holds on its device."""

    stamp: str | None
    pid: int | None
    freed_bytes: int
    in_use_bytes: int


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request that changes the server's state, from the access log.

    The access log has no clock: `stamp` is that of the line before. `status` is the HTTP status.
    """

    stamp: str | None
    path: str
    query: str
    status: int | None


@dataclass(frozen=True, slots=True)
class AllocatorRetry:
    """PyTorch could not get memory, emptied its cache and tried again. Not a failure by itself."""

    device: int
    tried_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Serving:
    """The run of the server, summed up. Counts are of lines; the newest 50 events are kept."""

    load_lines: int = 0
    last_load: LoadLine | None = None
    max_kv_usage_ratio: float | None = None
    max_running_requests: int | None = None
    max_waiting_requests: int | None = None
    preemption_warnings: int = 0
    last_preemption: Preemption | None = None
    sleeps: tuple[Sleep, ...] = ()
    control_requests: tuple[ControlRequest, ...] = ()
    allocator_retries: int = 0
    last_allocator_retry: AllocatorRetry | None = None
    counter_errors: int = 0

    @property
    def paused(self) -> bool | None:
        """Whether the last accepted request was a pause; None if there was none of the two."""
        return self._last_of("/pause", "/resume")

    @property
    def asleep(self) -> bool | None:
        """Whether the last accepted request was to sleep; None if there was none of the two."""
        return self._last_of("/sleep", "/wake_up")

    def _last_of(self, on: str, off: str) -> bool | None:
        for request in reversed(self.control_requests):
            accepted = request.status is None or request.status < 300
            if accepted and request.path in (on, off):
                return request.path == on
        return None
