"""Reads vLLM's own log, in the wording of every release since 0.2.3.

The log is the only place that says how large the weights, the KV cache and the CUDA graphs are,
which flags the server was given, and why it died. This package reads; judging is done elsewhere.
"""

from sidecar.startlog.failures import FailureKind, LogFailure, Moment
from sidecar.startlog.follow import LogFollower
from sidecar.startlog.lines import LogLine, parse_lines
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.startlog.reader import LogError, LogReader, read_log
from sidecar.startlog.serving import (
    AllocatorRetry,
    ControlRequest,
    LoadLine,
    Preemption,
    Serving,
    Sleep,
)
from sidecar.startlog.start import EngineKind, Outcome, Start
from sidecar.startlog.start_json import start_json

__all__ = [
    "AllocatorRetry",
    "ControlRequest",
    "EngineKind",
    "FailureKind",
    "LoadLine",
    "LogError",
    "LogFailure",
    "LogFollower",
    "LogLine",
    "LogReader",
    "Moment",
    "OutOfMemory",
    "Outcome",
    "Preemption",
    "Serving",
    "Sleep",
    "Start",
    "parse_lines",
    "read_log",
    "start_json",
]
