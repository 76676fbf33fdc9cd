"""Why a page is not whole: each reason from pages that have it, and a cure for each."""

from __future__ import annotations

import pytest

from sidecar.model import Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.sources.page_reason import CURES, REASONS
from sidecar.sources.releases import Release
from sidecar.sources.vllm_text import read_page

PYTHON = 'python_info{implementation="CPython"} 1\nprocess_start_time_seconds 1.7e9\n'
HTTP = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 9\n'
CORE = (
    'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
)
SECOND_SERVER = 'vllm:prompt_tokens_total{engine="0"} 0\nvllm:generation_tokens_total 0\n'

PAGES: list[tuple[str, Release | None, str | None]] = [
    (CORE, None, None),
    (CORE + PYTHON, (0, 25, 0), "renamed_or_hidden"),
    (PYTHON + HTTP, None, "log_stats_off"),
    (HTTP, (0, 25, 0), "log_stats_off"),  # several API servers show no process_* series
    (PYTHON, (0, 7, 3), "log_stats_off"),  # it told its version, so it is vLLM
    (PYTHON, (0, 5, 4), "wrong_endpoint"),
    (PYTHON, None, "wrong_endpoint"),
    ("", None, "wrong_endpoint"),
    ("<!doctype html><title>vllm: hello</title>", None, "wrong_endpoint"),
    ('{"detail":"Not Found"}', None, "wrong_endpoint"),
    ("node_load1 0.5\nDCGM_FI_DEV_FB_USED 4\n", None, "wrong_endpoint"),
    ("sglang:num_running_reqs 4\n", None, "wrong_endpoint"),
    ("litellm_requests_metric_total 4\n" + PYTHON, None, "router_or_proxy"),
    ("# TYPE envoy_cluster_upstream_rq counter\n", None, "router_or_proxy"),
    ("router_cpu_usage_percent 4\nvllm:healthy_pods_total 2\n", None, "router_or_proxy"),
    ('vllm:current_qps 1\nvllm:num_requests_running{server="a"} 1\n', None, "router_or_proxy"),
    ("ray_node_cpu_utilization 4\nray_serve_num_ongoing_requests 1\n", None, "ray_exporter"),
    ("# TYPE vllm:num_requests_running gauge\n", None, "declared_only"),
    (CORE + "# TYPE vllm:num_preemptions_total counter\n", None, "declared_only"),
    (SECOND_SERVER, None, "before_first_step"),
    ("vllm:estimated_flops_per_gpu_total 0\n", None, "renamed_or_hidden"),
    ("vllm:num_requests_running{engine=\"0\"} 1\n", None, "renamed_or_hidden"),
    ("lmcache:num_retrieve_requests_total 4\n", None, "connector_only"),
    ("vllm:nixl_num_failed_transfers_total 4\n", None, "connector_only"),
    ('lmcache_mp_l1_read_keys_total 4\nvllm:prefix_cache_hits_total{engine="0"} 3\n'
     'vllm:prefix_cache_queries_total{engine="0"} 9\n', None, "connector_only"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "release", "reason"), PAGES)
def test_reason(text: str, release: Release | None, reason: str | None) -> None:
    assert read_page(text, release).reason == reason


def test_every_reason_has_a_page_and_a_cure() -> None:
    assert {reason for _, _, reason in PAGES} - {None} == set(REASONS) == set(CURES)
    assert all(20 < len(cure) < 300 and "\n" not in cure for cure in CURES.values())


@pytest.mark.parametrize(("text", "release", "reason"), PAGES)
def test_the_verdict_gives_the_cure_of_its_reason(
    text: str, release: Release | None, reason: str | None
) -> None:
    version = ".".join(map(str, release)) if release else None
    frame = Pipeline(instant=True).advance(Poll(1.7e9, Page(text, 0.01), None, version))
    said = {verdict.code: verdict for verdict in frame.verdicts}
    shown = [
        sample.labels for sample in frame.samples if sample.declaration.name == "metrics_page_info"
    ]
    assert shown == ([] if reason is None else [(reason,)])
    if reason in (None, "before_first_step"):  # nothing is wrong
        assert "metrics_missing" not in said
        return
    verdict = said["metrics_missing"]
    assert verdict.advice[0].why == CURES[reason]
    assert ("reason", reason) in [(item.name, item.value) for item in verdict.evidence]
