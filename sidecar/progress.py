"""What counts as progress of an engine."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.model import EngineReading


def has_moved(previous: EngineReading | None, reading: EngineReading) -> bool:
    """Whether anything is not as it was; a first reading counts as movement."""
    return previous is None or _progress(previous) != _progress(reading)


def _progress(reading: EngineReading) -> Mapping[str, float | None]:
    """Everything that moves while an engine works, also without a generated token."""
    steps = reading.iteration_tokens
    return {
        "generation": reading.generation_tokens_total,
        "prompt": reading.prompt_tokens_total,
        "steps": steps.count if steps is not None else None,
        "finished": reading.finished_total,
        "prefix": reading.prefix_queries_total,
        "running": reading.running,
        "usage": reading.kv_usage_ratio,
    }
