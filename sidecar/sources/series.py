"""The series the sidecar reads from vLLM: one stable name each, whatever a release calls it.

Only exact sample names count. A prefix match would mistake `num_preemptions_created` (a
timestamp) for a counter and `iteration_tokens_total` (a histogram) for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sidecar.sources.releases import Release

PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:")
"""Name prefixes in use: vLLM itself, its OpenMetrics form, Ray (older and newer), KServe."""


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity on vLLM's page.

    `names` are the sample names without prefix, the newest first: where two stand on the same
    page (0.9.2 to 0.10.2) the newer alone is read. `upper` bounds valid values. `since` is the
    first release whose page must have it; None means that its absence says nothing.
    """

    stable: str
    names: tuple[str, ...]
    kind: Literal["gauge", "counter", "histogram", "info"] = "counter"
    upper: float = float("inf")
    since: Release | None = None


SERIES: tuple[Series, ...] = (
    Series(
        "kv_usage_ratio",
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "gauge",
        upper=1.0,
        since=(0, 2, 3),
    ),
    Series("running", ("num_requests_running",), "gauge", since=(0, 2, 3)),
    Series("waiting", ("num_requests_waiting",), "gauge", since=(0, 2, 3)),
    Series("swapped", ("num_requests_swapped",), "gauge"),
    Series("waiting_by_reason", ("num_requests_waiting_by_reason",), "gauge", since=(0, 20, 0)),
    Series("sleep_state", ("engine_sleep_state",), "gauge", since=(0, 11, 1)),
    Series("preemptions_total", ("num_preemptions_total",), since=(0, 8, 0)),
    Series("prompt_tokens_total", ("prompt_tokens_total",), since=(0, 7, 1)),
    Series("generation_tokens_total", ("generation_tokens_total",), since=(0, 7, 1)),
    Series("finished_total", ("request_success_total",), since=(0, 7, 2)),
    Series("first_tokens_total", ("time_to_first_token_seconds_count",)),
    Series("finished_prompt_tokens_total", ("request_prompt_tokens_sum",)),
    Series("finished_generation_tokens_total", ("request_generation_tokens_sum",)),
    Series(
        "prefix_queries_total",
        ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        since=(0, 9, 2),
    ),
    Series("prefix_hits_total", ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")),
    Series("iteration_tokens", ("iteration_tokens_total",), "histogram"),
    Series("queue_seconds", ("request_queue_time_seconds", "time_in_queue_requests"), "histogram"),
    Series("lora", ("lora_requests_info",), "info"),
    Series("cache_config", ("cache_config_info",), "info", since=(0, 8, 0)),
)
"""Everything that is read. `since` follows V1 where V0 and V1 differ."""

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
