"""The series the sidecar reads from vLLM: one stable name each, whatever a release calls it.

This is the release table as data: for each quantity, under which name which engine shows it from
which release on. It was read from the sources of 67 releases, 0.2.3 to 0.33.0 (0.21.0 was not
looked at); `release_table.py` answers questions about it. Only exact sample names count: a prefix
match would mistake `num_preemptions_created` (a timestamp) for a counter and
`iteration_tokens_total` (a histogram) for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidecar.sources.releases import Release

EngineKind = Literal["V0", "V1"]
Appears = Literal["start", "step", "data", "asked"]

PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:")
"""Name prefixes in use: vLLM itself, its OpenMetrics form, Ray (older and newer), KServe."""

NEWEST: Release = (0, 33, 0)
"""The newest release whose source was read."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A sample name of one kind of engine, from its first release to before `gone`.

    `hidden` is the release from which it is shown only on request. `appears` says when a sample
    is there: from the `start`, after the first `step` of the engine, with the first `data` of its
    own, or only where a feature is `asked` for. Not all of it reaches Ray's exporter.
    """

    kind: EngineKind
    name: str
    first: Release
    gone: Release | None = None
    hidden: Release | None = None
    appears: Appears = "start"
    on_ray: bool = True


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity on vLLM's page. `definitions` stand newest first: where two names stand on the
    same page (0.9.2 to 0.10.2) the newer alone is read. `upper` bounds valid values. Of one that
    is not `needed` the absence is no trouble: what rests on it says so itself."""

    stable: str
    kind: Literal["gauge", "counter", "histogram", "info"]
    definitions: tuple[Definition, ...]
    upper: float = float("inf")
    needed: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """All its sample names without prefix, the newest first."""
        return tuple(dict.fromkeys(definition.name for definition in self.definitions))


_V0_ENDS: Release = (0, 11, 0)
"""V0 engines can be chosen up to 0.10.2."""


def _v1(
    name: str,
    first: Release,
    gone: Release | None = None,
    hidden: Release | None = None,
    appears: Appears = "start",
) -> Definition:
    return Definition("V1", name, first, gone, hidden, appears)


def _v0(
    name: str,
    first: Release,
    gone: Release = _V0_ENDS,
    appears: Appears = "step",
    on_ray: bool = True,
) -> Definition:
    """V0 sets its gauges and counters at the first step or after ten seconds, and the rest only
    when there is something to count."""
    return Definition("V0", name, first, gone, None, appears, on_ray)


SERIES: tuple[Series, ...] = (
    Series(
        "kv_usage_ratio",
        "gauge",
        (
            _v1("kv_cache_usage_perc", (0, 9, 2)),
            _v1("gpu_cache_usage_perc", (0, 7, 1), gone=(0, 12, 0), hidden=(0, 11, 0)),
            _v0("gpu_cache_usage_perc", (0, 2, 3)),
        ),
        upper=1.0,
    ),
    Series(
        "running",
        "gauge",
        (_v1("num_requests_running", (0, 7, 1)), _v0("num_requests_running", (0, 2, 3))),
    ),
    Series(
        "waiting",
        "gauge",
        (_v1("num_requests_waiting", (0, 7, 1)), _v0("num_requests_waiting", (0, 2, 3))),
    ),
    Series(
        "swapped",
        "gauge",
        (_v0("num_requests_swapped", (0, 2, 3), gone=(0, 9, 1)),),
        needed=False,
    ),
    Series("waiting_by_reason", "gauge", (_v1("num_requests_waiting_by_reason", (0, 20, 0)),)),
    Series("sleep_state", "gauge", (_v1("engine_sleep_state", (0, 11, 1)),)),
    Series(
        "preemptions_total",
        "counter",
        (_v1("num_preemptions_total", (0, 8, 0)), _v0("num_preemptions_total", (0, 4, 3))),
    ),
    Series(
        "prompt_tokens_total",
        "counter",
        (_v1("prompt_tokens_total", (0, 7, 1)), _v0("prompt_tokens_total", (0, 3, 1))),
    ),
    Series(
        "generation_tokens_total",
        "counter",
        (_v1("generation_tokens_total", (0, 7, 1)), _v0("generation_tokens_total", (0, 3, 1))),
    ),
    Series(
        "finished_total",
        "counter",
        (
            _v1("request_success_total", (0, 7, 2)),
            _v0("request_success_total", (0, 4, 2), appears="data"),
        ),
    ),
    Series(
        "first_tokens_total",
        "counter",
        (
            _v1("time_to_first_token_seconds_count", (0, 7, 1)),
            _v0("time_to_first_token_seconds_count", (0, 3, 1), appears="data"),
        ),
        needed=False,
    ),
    Series(
        "finished_prompt_tokens_total",
        "counter",
        (
            _v1("request_prompt_tokens_sum", (0, 7, 1)),
            _v0("request_prompt_tokens_sum", (0, 4, 2), appears="data"),
        ),
        needed=False,
    ),
    Series(
        "finished_generation_tokens_total",
        "counter",
        (
            _v1("request_generation_tokens_sum", (0, 7, 1)),
            _v0("request_generation_tokens_sum", (0, 4, 2), appears="data"),
        ),
        needed=False,
    ),
    Series(
        "prefix_queries_total",
        "counter",
        (
            _v1("prefix_cache_queries_total", (0, 9, 2)),
            _v1("gpu_prefix_cache_queries_total", (0, 7, 3), gone=(0, 12, 0), hidden=(0, 11, 0)),
        ),
    ),
    Series(
        "prefix_hits_total",
        "counter",
        (
            _v1("prefix_cache_hits_total", (0, 9, 2)),
            _v1("gpu_prefix_cache_hits_total", (0, 7, 3), gone=(0, 12, 0), hidden=(0, 11, 0)),
        ),
        needed=False,
    ),
    Series(
        "iteration_tokens",
        "histogram",
        (
            _v1("iteration_tokens_total", (0, 7, 3)),
            _v0("iteration_tokens_total", (0, 6, 4), appears="data"),
        ),
        needed=False,
    ),
    Series(
        "queue_seconds",
        "histogram",
        (
            _v1("request_queue_time_seconds", (0, 7, 3)),
            _v0("request_queue_time_seconds", (0, 6, 4), appears="data"),
            _v0("time_in_queue_requests", (0, 6, 4), gone=(0, 9, 1), appears="data"),
        ),
        needed=False,
    ),
    Series(
        "lora",
        "info",
        (
            _v1("lora_requests_info", (0, 8, 0), appears="asked"),
            _v0("lora_requests_info", (0, 6, 4), appears="asked"),
        ),
        needed=False,
    ),
    Series(
        "cache_config",
        "info",
        (
            _v1("cache_config_info", (0, 8, 0)),
            _v0("cache_config_info", (0, 3, 3), on_ray=False),
        ),
    ),
)
"""Everything that is read."""

V0_MARKS = (
    "num_requests_swapped",
    "cpu_cache_usage_perc",
    "gpu_prefix_cache_hit_rate",
    "cpu_prefix_cache_hit_rate",
    "avg_prompt_throughput_toks_per_s",
    "avg_generation_throughput_toks_per_s",
)
"""Names that V0 engines alone have ever shown (0.2.3 to 0.9.0)."""

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
