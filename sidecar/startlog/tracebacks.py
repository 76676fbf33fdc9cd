"""Follows tracebacks through a log in which several processes print theirs at once."""

from __future__ import annotations

import re

from sidecar.startlog.failures import Moment
from sidecar.startlog.lines import LogLine

_LAST_LINE = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|OutOfMemory))(?::.*)?$"
)
_FRAME = re.compile(r'File "[^"]*", line \d+, in (\w+)$')

# The function in whose frame the server was tells what it was doing.
_MOMENT_OF: dict[str, Moment] = {
    "load_model": "loading",
    "determine_available_memory": "profiling",
    "determine_num_available_blocks": "profiling",
    "profile_run": "profiling",
    "initialize_from_config": "kv_cache",
    "initialize_kv_cache": "kv_cache",
    "initialize_kv_cache_tensors": "kv_cache",
    "_allocate_kv_cache": "kv_cache",
    "_allocate_kv_cache_tensors": "kv_cache",
    "capture_model": "graph_capture",
    "profile_cudagraph_memory": "graph_capture",
    "capture": "graph_capture",
    "_dummy_sampler_run": "sampler_warmup",
    "run_busy_loop": "serving",
    "run_engine_loop": "serving",
    "engine_step": "serving",
}

# What one process says because another has failed, or because it was told to stop.
_SECONDARY = (
    "EngineDeadError",
    "AsyncEngineDeadError",
    "Engine core initialization failed",
    "Engine process failed to start",
    "WorkerProc initialization failed",
    "Frontend process failed",
    "Cancelled",
    "KeyboardInterrupt",
    "SystemExit",
    "GeneratorExit",
    "BrokenPipeError",
    "ConnectionResetError",
    "EOFError",
)
_MOST_OPEN = 256


class Tracebacks:
    """Knows for each process whether it is printing a traceback, and where it leads."""

    def __init__(self) -> None:
        self._open: dict[int | None, Moment | None] = {}

    def read(self, line: LogLine) -> str | None:
        """The last line of a traceback (the exception), if this is one; else None."""
        text = line.text
        if text.startswith("Traceback (most recent call last)"):
            if len(self._open) >= _MOST_OPEN:
                self._open.clear()
            self._open[line.pid] = None
            return None
        if line.pid not in self._open:
            return text.strip() if line.level == "ERROR" and _LAST_LINE.match(text) else None
        if found := _FRAME.search(text):
            moment = _MOMENT_OF.get(found[1])
            if moment is not None:
                self._open[line.pid] = moment
            return None
        return text.strip() if _LAST_LINE.match(text) else None

    def moment(self, line: LogLine) -> Moment | None:
        """What the process that prints this line was doing, as its newest traceback shows."""
        return self._open.get(line.pid)


def is_secondary(exception: str) -> bool:
    """Whether an exception only tells that something else has failed."""
    return any(word in exception for word in _SECONDARY)
