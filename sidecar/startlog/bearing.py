"""What a failure means for the start in which it happened, and the other way round."""

from __future__ import annotations

from dataclasses import replace

from sidecar.startlog.amounts import least
from sidecar.startlog.failures import LogFailure, Moment
from sidecar.startlog.lines import LogLine
from sidecar.startlog.start import Start
from sidecar.startlog.tracebacks import is_secondary


def is_of_a_request(line: LogLine) -> bool:
    """Whether the line comes from the code that answers clients."""
    return line.file is not None and line.file.startswith(("serving", "protocol"))


def is_about_the_server(start: Start, line: LogLine, exception: str) -> bool:
    """Whether a traceback is about the server itself, not about a request or a consequence."""
    if is_secondary(exception):
        return False
    if not (start.started or start.engine_ready):
        return not is_of_a_request(line)
    return line.process is not None and line.process.startswith(("EngineCore", "Worker", "Vllm"))


def moment_reached(start: Start) -> Moment | None:
    """How far the start had come, from what it had printed; None if it had printed nothing."""
    if start.started or start.engine_ready:
        return "serving"
    if start.capturing_graphs:
        return "graph_capture"
    if start.kv_cache_tokens is not None or start.gpu_blocks is not None:
        return "graph_capture" if start.enforce_eager is not True else "kv_cache"
    if start.weights_bytes_per_rank is not None:
        return "profiling"
    return "loading" if start.engine is not None else None


def with_figures_of(start: Start, failure: LogFailure) -> Start:
    """The check at start-up and the message on the length say flags that nothing else may say."""
    if failure.kind == "free_memory_below_desired":
        return replace(
            start,
            free_bytes=least(start.free_bytes, failure.free_bytes),
            total_bytes=failure.total_bytes,
            desired_bytes=failure.desired_bytes,
            gpu_memory_utilization=start.gpu_memory_utilization or failure.utilization,
        )
    if failure.kind == "max_len_too_long":
        return replace(start, max_model_len=failure.max_model_len)
    return start
