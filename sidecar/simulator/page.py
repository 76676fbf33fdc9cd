"""The engine's state as the text that vLLM 0.33 answers to `GET /metrics`.

Names, labels, kinds, bucket bounds and the presets of zero are vLLM's; the help texts are not.
Series that need a feature which this server does not use (offloading, speculation, LoRA) are
absent, as they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sidecar.model import Histogram
from sidecar.simulator.cache_config import ENGINE_INDEX, cache_config_labels
from sidecar.simulator.engine import Engine
from sidecar.simulator.statistics import FINISH_REASONS

_UNUSED_COUNTERS = {
    "vllm:estimated_flops_per_gpu": "Floating point operations; counted only on request.",
    "vllm:estimated_read_bytes_per_gpu": "Bytes read from memory; counted only on request.",
    "vllm:estimated_write_bytes_per_gpu": "Bytes written to memory; counted only on request.",
    "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache, which is off here.",
    "vllm:prefix_cache_hits": "Tokens found in the prefix cache.",
    "vllm:external_prefix_cache_queries": "Tokens looked up in a cache outside this server.",
    "vllm:external_prefix_cache_hits": "Tokens found in a cache outside this server.",
    "vllm:mm_cache_queries": "Multi-modal items looked up.",
    "vllm:mm_cache_hits": "Multi-modal items found.",
    "vllm:prompt_tokens_cached": "Prompt tokens that came from a cache.",
}
"""Counters of features that this server does not use: present, and zero."""


class PageCollector(Collector):
    """Builds every family anew from the engine at each read, so none can be left over."""

    def __init__(self, engine: Engine, started_at_unix_seconds: float) -> None:
        self._engine = engine
        self._started_at = started_at_unix_seconds
        self._labels = {"engine": ENGINE_INDEX, "model_name": engine.deployment.model_name}

    def collect(self) -> Iterator[Metric]:
        """All families, in vLLM's order."""
        yield GaugeMetricFamily(
            "process_start_time_seconds", "Unix time of the start.", value=self._started_at
        )
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        info = cache_config_labels(self._engine.deployment)
        yield self._gauge("cache_config_info", "Cache settings, as labels.", {"": 1.0}, "", info)

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        waiting = float(len(engine.waiting))
        yield self._gauge(
            "num_requests_running", "Requests in the batch.", {"": float(len(engine.running))}
        )
        yield self._gauge("num_requests_waiting", "Requests in the queue.", {"": waiting})
        yield self._gauge(
            "num_requests_waiting_by_reason",
            "Requests in the queue: 'capacity' waits for room, 'deferred' for something else.",
            {"capacity": waiting, "deferred": 0.0},
            "reason",
        )
        yield self._gauge(
            "engine_sleep_state",
            "1 for the state that the engine is in.",
            {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0},
            "sleep_state",
        )
        yield self._gauge(
            "kv_cache_usage_perc", "KV blocks in use, 0 to 1.", {"": engine.pool.usage_ratio}
        )

    def _counters(self) -> Iterator[Metric]:
        statistics = self._engine.statistics
        for name, meaning in _UNUSED_COUNTERS.items():
            yield self._counter(name, meaning, {"": 0})
        yield self._counter(
            "vllm:num_preemptions", "Preemptions that were reported.", {"": statistics.preemptions}
        )
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens prefilled.", {"": statistics.prompt_tokens}
        )
        yield self._counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            {
                "local_compute": statistics.prompt_tokens,
                "local_cache_hit": 0,
                "external_kv_transfer": 0,
            },
            "source",
        )
        yield self._counter(
            "vllm:generation_tokens", "Tokens generated.", {"": statistics.generation_tokens}
        )
        yield self._counter(
            "vllm:request_success",
            "Requests finished.",
            {reason: statistics.finished[reason] for reason in FINISH_REASONS},
            "finished_reason",
        )

    def _histograms(self) -> Iterator[Metric]:
        statistics = self._engine.statistics
        # Two pairs share a tally: with one sample a request the longest is the only one, and
        # without a cache the whole prompt is computed.
        prompts, generated = statistics.request_prompt_tokens, statistics.request_generation_tokens
        for name, meaning, tally in (
            ("request_prompt_tokens", "Prompt tokens of a request.", prompts),
            ("request_generation_tokens", "Tokens generated for a request.", generated),
            ("iteration_tokens_total", "Tokens of an engine step.", statistics.iteration_tokens),
            ("request_max_num_generation_tokens", "Tokens of the longest sample.", generated),
            ("request_params_n", "Samples asked for.", statistics.request_samples),
            ("request_params_max_tokens", "Token limit asked for.", statistics.request_max_tokens),
            (
                "time_to_first_token_seconds",
                "From arrival to the first token.",
                statistics.first_token_seconds,
            ),
            (
                "inter_token_latency_seconds",
                "From one token of a request to its next.",
                statistics.inter_token_seconds,
            ),
            (
                "request_time_per_output_token_seconds",
                "Mean time from token to token of a request.",
                statistics.request_token_seconds,
            ),
            (
                "e2e_request_latency_seconds",
                "From arrival to the last token.",
                statistics.end_to_end_seconds,
            ),
            (
                "request_queue_time_seconds",
                "From arrival until first scheduled.",
                statistics.queue_seconds,
            ),
            (
                "request_inference_time_seconds",
                "From first scheduled to the last token.",
                statistics.inference_seconds,
            ),
            (
                "request_prefill_time_seconds",
                "From first scheduled to the first token.",
                statistics.prefill_seconds,
            ),
            (
                "request_decode_time_seconds",
                "From the first token to the last.",
                statistics.decode_seconds,
            ),
            (
                "request_num_preemptions",
                "How often a request was preempted.",
                statistics.request_preemptions,
            ),
            ("request_prefill_kv_computed_tokens", "Prompt tokens not from a cache.", prompts),
        ):
            yield self._histogram(f"vllm:{name}", meaning, tally.histogram())

    def _gauge(
        self,
        name: str,
        meaning: str,
        values: Mapping[str, float],
        label: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", meaning)
        for value_name, value in values.items():
            own_label = {label: value_name} if label else {}
            family.add_sample(family.name, {**(labels or self._labels), **own_label}, value)
        return family

    def _counter(
        self, name: str, meaning: str, values: Mapping[str, int], label: str = ""
    ) -> Metric:
        family = CounterMetricFamily(name, meaning)
        for value_name, value in values.items():
            labels = {**self._labels, **({label: value_name} if label else {})}
            family.add_sample(f"{name}_total", labels, value)
            family.add_sample(f"{name}_created", labels, self._started_at)
        return family

    def _histogram(self, name: str, meaning: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, meaning, labels=tuple(self._labels))
        family.add_metric(
            tuple(self._labels.values()),
            [(str(bound).replace("inf", "+Inf"), count) for bound, count in histogram.buckets],
            histogram.sum,
        )
        family.add_sample(f"{name}_created", self._labels, self._started_at)
        return family


class MetricsPage:
    """The page of one engine, in a registry of its own."""

    def __init__(self, engine: Engine, started_at_unix_seconds: float) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(PageCollector(engine, started_at_unix_seconds))

    def render(self) -> bytes:
        """The text format 0.0.4, UTF-8."""
        return generate_latest(self._registry)
