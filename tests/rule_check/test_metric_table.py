"""The table of vLLM's metrics against pages of real servers, and what names stand for."""

import re
from pathlib import Path

import pytest

from sidecar.rule_check.metric_table import NEWEST, table
from sidecar.rule_check.metrics import sample_names, use_of

_PAGES = Path(__file__).parents[1] / "captures" / "pages"
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{| )", re.MULTILINE)


def _names(path: Path) -> set[str]:
    return set(_SAMPLE.findall(path.read_text(errors="replace")))


def test_every_name_on_a_real_page_is_known() -> None:
    names = set().union(*(_names(path) for path in _PAGES.rglob("*.prom")))
    assert len(names) > 100
    unknown = {name for name in names if (use := use_of(name)) is not None and not use.metric}
    assert unknown == set()


def test_every_name_of_a_page_exists_in_its_release() -> None:
    for path in _PAGES.glob("vllm-0.32.0-*.prom"):
        for name in _names(path):
            use = use_of(name)
            assert use is None or use.metric is None or use.metric.exists((0, 32, 0)), name


def test_the_table_is_whole() -> None:
    metrics = table()
    assert len(metrics) > 120
    assert list(metrics) == sorted(metrics)
    for metric in metrics.values():
        assert metric.kind in ("counter", "gauge", "histogram")
        assert metric.unit in ("-", "ratio", "seconds", "milliseconds")
        assert metric.first <= metric.last <= NEWEST
        assert metric.kind != "counter" or metric.name.endswith("_total")
        assert metric.successor is None or metric.successor in metrics


@pytest.mark.parametrize(
    ("name", "prefix", "metric", "part"),
    [
        ("vllm:num_requests_running", "vllm:", "num_requests_running", ""),
        ("ray_vllm_num_preemptions_total", "ray_vllm_", "num_preemptions_total", ""),
        ("ray_vllm:kv_cache_usage_perc", "ray_vllm:", "kv_cache_usage_perc", ""),
        ("vllm:num_preemptions_created", "vllm:", "num_preemptions_total", "_created"),
        ("vllm:iteration_tokens_total_sum", "vllm:", "iteration_tokens_total", "_sum"),
        ("vllm_request_success_total", "vllm_", "request_success_total", ""),
        ("vllm:num_requests_running_sum", "vllm:", None, ""),
    ],
)
def test_names_are_taken_apart(name: str, prefix: str, metric: str | None, part: str) -> None:
    use = use_of(name)
    assert use is not None
    assert (use.prefix, use.metric and use.metric.name, use.part) == (prefix, metric, part)


@pytest.mark.parametrize(
    "name", ["up", "vllm_sidecar_up", "vllm:busy:rate5m", "vllm:router_x", "my_vllm:x", "vllm:rl_x"]
)
def test_names_of_others_are_nobodys_business(name: str) -> None:
    assert use_of(name) is None


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("kv_cache_usage_perc", {"0.9.2", "0.12.0", "0.40.0"}),
        ("gpu_cache_usage_perc", {"0.5.0", "0.8.5", "0.9.2"}),
        ("num_requests_swapped", {"0.5.0", "0.8.5"}),
        ("num_preemptions_total", {"0.5.0", "0.8.5", "0.9.2", "0.12.0", "0.40.0"}),
        ("prompt_tokens_recomputed_total", set()),
    ],
)
def test_existence(name: str, exists: set[str]) -> None:
    versions = ("0.5.0", "0.8.5", "0.9.2", "0.12.0", "0.40.0")
    found = set()
    for version in versions:
        major, minor, patch = (int(part) for part in version.split("."))
        if table()[name].exists((major, minor, patch)):
            found.add(version)
    assert found == exists


def test_histograms_have_no_sample_of_their_own_name() -> None:
    names = sample_names()
    assert "vllm:e2e_request_latency_seconds" not in names
    assert "vllm:e2e_request_latency_seconds_bucket" in names
