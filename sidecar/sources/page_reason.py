"""Why a page is not what a running vLLM shows: a closed set of reasons, each with its cure.

Only other programs' names that are on public pages are known here; a page of unknown names is
the `wrong_endpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from sidecar.sources.releases import Release

CURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "log_stats_off": "start vLLM without --disable-log-stats; if this is another web service "
        "in front of it, ask vLLM itself",
        "wrong_endpoint": "set the address of vLLM's own API server; vLLM 0.5.4 to 0.6.1 lost its "
        "series to the front end (--disable-frontend-multiprocessing, or upgrade), a headless "
        "data-parallel node has none",
        "router_or_proxy": "ask each vLLM server itself: a router or proxy shows its own metrics",
        "ray_exporter": "on Ray turn the engine's metrics on (log_engine_metrics, or Ray's stat "
        "logger before) and ask the exporter of the node that runs the replica",
        "declared_only": "drop --disable-log-stats and serve it with `vllm serve` rather than as a "
        "library; a V0 engine shows values after its first step, at the latest after ten seconds",
        "before_first_step": "send a request: with several API servers gauges appear with the "
        "engine's first step",
        "renamed_or_hidden": "upgrade the sidecar if vLLM is newer than it; "
        "--show-hidden-metrics-for-version shows hidden series for one more release, a filter "
        "between them must let vllm: pass, and the Rust front end has no cache_config_info and "
        "no engine_sleep_state",
        "connector_only": "ask vLLM's API server: this is the page of a KV connector or cache "
        "server beside it",
    }
)
"""By reason, what to do about it."""

REASONS: Final = tuple(CURES)

_CORE = frozenset({"kv_usage_ratio", "running", "waiting"})


def _names(*starts: str) -> re.Pattern[str]:
    """Matches a line whose name begins like that, declared or as a sample."""
    return re.compile(r"^[ \t]*(?:# (?:TYPE|HELP) )?(?:" + "|".join(starts) + ")", re.MULTILINE)


_ROUTER = _names(
    "litellm_",
    "envoy_",
    "istio_",
    "nginx_",
    "haproxy_",
    "traefik_",
    "kong_",
    "router[_:]",
    "vllm_router",
    "smg_",
    "sgl_router_",
    "inference_pool_",
    "inference_model_",
    "inference_extension_",
    "dynamo_frontend_",
    # The router of the production stack copies vLLM's prefix.
    "vllm:(?:current_qps|healthy_pods_total|avg_decoding_length|avg_latency|num_prefill_requests)",
)
_CONNECTOR = _names(
    "lmcache", "mooncake", "nixl", "vllm[:_](?:nixl|mooncake|hf3fs|umbp|kv_offload|simple_kv)_"
)
_VLLM = _names("(?:ray_|kserve_)?vllm[:_]")
_RAY = _names("ray_")
_HTTP = _names("http_request")
_PYTHON = _names("python_", "process_")


def find_reason(
    text: str,
    *,
    has_engines: bool,
    missing: Collection[str],
    pending: Collection[str],
    empty: Collection[str],
    release: Release | None,
) -> str | None:
    """The likeliest reason; None for a page on which nothing is missing.

    `release` is known only where the server answered as vLLM does when asked for its version.
    """
    if not has_engines:
        return "declared_only" if empty else _without_engines(text, release)
    if missing:
        if _ROUTER.search(text):
            return "router_or_proxy"
        if {*missing, *pending} >= _CORE and _CONNECTOR.search(text):
            return "connector_only"
        return "renamed_or_hidden"
    if empty:
        return "declared_only"
    return "before_first_step" if _CORE & set(pending) else None


def _without_engines(text: str, release: Release | None) -> str:
    if _ROUTER.search(text):
        return "router_or_proxy"
    if _CONNECTOR.search(text):
        return "connector_only"
    if _VLLM.search(text):
        return "renamed_or_hidden"
    if _RAY.search(text):
        return "ray_exporter"
    if _HTTP.search(text):
        return "log_stats_off"
    lost_by_front_end = release is not None and (0, 5, 4) <= release <= (0, 6, 1)
    if release is not None and not lost_by_front_end and _PYTHON.search(text):
        return "log_stats_off"
    return "wrong_endpoint"
