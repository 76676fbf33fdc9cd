from __future__ import annotations

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sidecar.model import Histogram
from sidecar.simulator.cache_config import cache_config_labels
from sidecar.simulator.deployment import Deployment
from sidecar.simulator.drive import Drive
from sidecar.simulator.engine import Engine
from sidecar.simulator.page import MetricsPage
from sidecar.simulator.scenarios import SCENARIOS

STARTED_AT = 1_700_000_000.0
LABELS = {"engine": "0", "model_name": "simulated/llama-8b"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """In the middle of a storm, where no figure is zero by chance."""
    drive = Drive((SCENARIOS["preemption-storm"],), seed=0, seconds_per_scenario=60.0)
    drive.advance(20.0)
    return drive.engine


@pytest.fixture(scope="module")
def text(engine: Engine) -> str:
    return MetricsPage(engine, STARTED_AT).render().decode()


@pytest.fixture(scope="module")
def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], sample_name: str, **labels: str) -> float:
    """The one sample of that name whose labels are exactly these."""
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == sample_name and sample.labels == labels
    ]
    return found


def test_gauges_are_the_engines_state(engine: Engine, families: dict[str, Metric]) -> None:
    running, waiting = len(engine.running), len(engine.waiting)
    assert running > 0
    assert waiting > 0
    usage = engine.pool.held_blocks / (engine.deployment.num_gpu_blocks - 1)
    assert value(families, "vllm:num_requests_running", **LABELS) == running
    assert value(families, "vllm:num_requests_waiting", **LABELS) == waiting
    assert value(families, "vllm:kv_cache_usage_perc", **LABELS) == usage
    by_reason = "vllm:num_requests_waiting_by_reason"
    assert value(families, by_reason, reason="capacity", **LABELS) == waiting
    assert value(families, by_reason, reason="deferred", **LABELS) == 0
    assert value(families, "vllm:engine_sleep_state", sleep_state="awake", **LABELS) == 1
    assert value(families, "process_start_time_seconds") == STARTED_AT


def test_counters_are_the_engines_totals(engine: Engine, families: dict[str, Metric]) -> None:
    statistics = engine.statistics
    assert statistics.preemptions > 0
    for name, total in (
        ("vllm:num_preemptions", statistics.preemptions),
        ("vllm:prompt_tokens", statistics.prompt_tokens),
        ("vllm:generation_tokens", statistics.generation_tokens),
        ("vllm:prefix_cache_queries", 0),
        ("vllm:prompt_tokens_cached", 0),
    ):
        assert value(families, f"{name}_total", **LABELS) == total
        assert value(families, f"{name}_created", **LABELS) == STARTED_AT
    by_source = "vllm:prompt_tokens_by_source_total"
    prompt_tokens = value(families, by_source, source="local_compute", **LABELS)
    assert prompt_tokens == statistics.prompt_tokens
    for reason in ("stop", "length", "abort", "error", "repetition"):
        count = value(families, "vllm:request_success_total", finished_reason=reason, **LABELS)
        assert count == statistics.finished[reason]


def test_histograms_are_the_engines_tallies(engine: Engine, families: dict[str, Metric]) -> None:
    statistics = engine.statistics
    for name, tally in (
        ("iteration_tokens_total", statistics.iteration_tokens),
        ("time_to_first_token_seconds", statistics.first_token_seconds),
        ("inter_token_latency_seconds", statistics.inter_token_seconds),
        ("e2e_request_latency_seconds", statistics.end_to_end_seconds),
        ("request_queue_time_seconds", statistics.queue_seconds),
        ("request_prompt_tokens", statistics.request_prompt_tokens),
        ("request_generation_tokens", statistics.request_generation_tokens),
        ("request_num_preemptions", statistics.request_preemptions),
    ):
        samples = families[f"vllm:{name}"].samples
        buckets = tuple(
            (float(sample.labels["le"]), sample.value)
            for sample in samples
            if sample.name.endswith("_bucket")
        )
        read = Histogram(
            buckets=buckets,
            sum=value(families, f"vllm:{name}_sum", **LABELS),
            count=value(families, f"vllm:{name}_count", **LABELS),
        )
        assert read == tally.histogram()
        assert read.count > 0
        assert value(families, f"vllm:{name}_created", **LABELS) == STARTED_AT


@pytest.mark.parametrize(
    "line",
    [
        "# TYPE vllm:num_preemptions_total counter",
        "# TYPE vllm:num_preemptions_created gauge",
        "# TYPE vllm:iteration_tokens_total histogram",
        "# TYPE vllm:cache_config_info gauge",
        'vllm:request_success_total{engine="0",finished_reason="abort",'
        'model_name="simulated/llama-8b"} 0.0',
    ],
)
def test_lines_are_written_as_vllm_writes_them(text: str, line: str) -> None:
    assert line in text.splitlines()


def test_the_cache_labels_describe_the_pool(families: dict[str, Metric]) -> None:
    (sample,) = families["vllm:cache_config_info"].samples
    assert sample.labels == cache_config_labels(Deployment())
    blocks, tokens = Deployment().num_gpu_blocks, Deployment().kv_cache_size_tokens
    expected = {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "gpu_memory_utilization": "0.33",
        "num_gpu_blocks": str(blocks),
        "kv_cache_size_tokens": str(16 * blocks),
        "kv_cache_max_concurrency": str(tokens / 4096),
    }
    assert sample.labels.items() >= expected.items()


def test_before_the_first_request_everything_is_there_at_zero(
    families: dict[str, Metric],
) -> None:
    text = MetricsPage(Engine(Deployment()), STARTED_AT).render().decode()
    fresh = {family.name: family for family in text_string_to_metric_families(text)}
    assert fresh.keys() == families.keys()
    for name, family in fresh.items():
        for sample in family.samples:
            if "_created" in sample.name or name in ("process_start_time_seconds",):
                assert sample.value == STARTED_AT
            elif name not in ("vllm:cache_config_info", "vllm:engine_sleep_state"):
                assert sample.value == 0
