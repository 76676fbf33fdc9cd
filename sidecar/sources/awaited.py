"""Whether a series that a page lacks is still to come, rather than missing.

From the sources of 0.2.3 to 0.33.0, for V1 also from a running 0.32.0: a V1 server with a single
process shows everything from its start; with several API servers (0.9.1 and later; no `process_*`
series) gauges are only declared until the first step. A V0 engine shows gauges and counters from
its first step or ten seconds, the rest with its first data. Ray leaves out a counter that never
moved.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sidecar.model import EngineReading
from sidecar.sources.series import Definition, EngineKind, Series

_OF_FINISHED = frozenset(
    {
        "finished_total",
        "finished_prompt_tokens_total",
        "finished_generation_tokens_total",
        "queue_seconds",
    }
)
"""What a V0 engine shows once a request has finished."""


_MOVED_BY_STEPS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "running",
    "prefix_queries_total",
    "finished_total",
    "finished_prompt_tokens_total",
)
"""What is above zero only once the engine has made a step."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a page says about how far its server has come. `present` are the stable names on it."""

    kind: EngineKind | None
    on_ray: bool
    single_process: bool
    engines: tuple[EngineReading, ...]
    present: Collection[str]

    def awaits(self, series: Series, definition: Definition) -> bool:
        """Whether the series may still come."""
        if series.kind == "info" and self.kind != "V0":
            return False
        if self.on_ray:
            return series.kind in ("counter", "histogram") or not self._has_stepped()
        if definition.kind == "V0" or self.kind == "V0":
            return self._v0_awaits(series, definition)
        return series.kind == "gauge" and not self.single_process and not self._has_stepped()

    def awaits_samples(self, series: Series) -> bool:
        """Whether a series that is declared waits for a step, for data or for its feature's use.

        A page without any engine waits for nothing: its engine keeps no statistics.
        """
        own = [d for d in series.definitions if self.kind in (None, d.kind)]
        return bool(self.engines) and any(
            d.appears in ("data", "asked") or self.awaits(series, d) for d in own
        )

    def _v0_awaits(self, series: Series, definition: Definition) -> bool:
        if definition.appears == "data":
            if series.stable in _OF_FINISHED:
                return not _OF_FINISHED & set(self.present)
            return not any(engine.generation_tokens_total for engine in self.engines)
        set_together = {"running", "waiting", "kv_usage_ratio"}
        return not set_together & set(self.present) and not self._has_stepped()

    def _has_stepped(self) -> bool:
        return any(getattr(engine, name) for engine in self.engines for name in _MOVED_BY_STEPS)
