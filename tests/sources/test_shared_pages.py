"""Pages on which more than one server or exporter left its traces."""

from __future__ import annotations

import pytest

from sidecar.sources.releases import Release
from sidecar.sources.vllm_text import MOST_ENGINES, read_page

RAY_LABELS = 'Component="core_worker",NodeAddress="192.0.2.1",SessionName="s",Version="2.52.0",'


def ray_replica(replica: str, usage: float, preemptions: float, *, engine: str = "0") -> str:
    labels = f'{RAY_LABELS}ReplicaId="{replica}",WorkerId="w{replica}",engine="{engine}",'
    labels += 'model_name="m"'
    return (
        f"ray_vllm_kv_cache_usage_perc{{{labels}}} {usage}\n"
        f"ray_vllm_num_preemptions_total{{{labels}}} {preemptions}\n"
        f"ray_vllm_num_preemptions{{{labels}}} {preemptions}\n"
        f'ray_vllm_cache_config_info{{{labels},num_gpu_blocks="1000"}} 1\n'
    )


def test_replicas_are_engines_of_their_own() -> None:
    reading = read_page(ray_replica("r1", 0.1, 4) + ray_replica("r2", 0.9, 5), (0, 25, 0))
    assert [(e.engine, e.kv_usage_ratio, e.preemptions_total) for e in reading.engines] == [
        ("0/r1", 0.1, 4.0),
        ("0/r2", 0.9, 5.0),
    ]
    # Each replica states the blocks of its own engines only.
    assert [e.cache.num_gpu_blocks for e in reading.engines if e.cache] == [1000, 1000]
    assert not reading.invalid


def test_a_single_replica_keeps_the_name_that_vllm_gave() -> None:
    (engine,) = read_page(ray_replica("r1", 0.1, 4), (0, 25, 0)).engines
    assert engine.key == ("m", "0")


def test_engines_of_one_replica_share_its_blocks() -> None:
    text = ray_replica("r1", 0.1, 4) + ray_replica("r1", 0.9, 5, engine="1")
    reading = read_page(text, (0, 25, 0))
    assert [engine.engine for engine in reading.engines] == ["0", "1"]
    assert [e.cache.num_gpu_blocks for e in reading.engines if e.cache] == [500, 500]


def test_workers_tell_replicas_apart_where_ray_does_not_name_them() -> None:
    text = "".join(
        f'ray_vllm:num_requests_running{{WorkerId="{worker}",model_name="m"}} {running}\n'
        for worker, running in (("a", 1), ("b", 2))
    )
    engines = read_page(text).engines
    assert [(engine.engine, engine.running) for engine in engines] == [("0/a", 1.0), ("0/b", 2.0)]


@pytest.mark.parametrize(
    "lines",
    [
        ("ray_vllm_num_preemptions_total 7", "ray_vllm_num_preemptions 7"),
        ("ray_vllm_num_preemptions 7", "ray_vllm_num_preemptions_total 7"),
        ("ray_vllm_num_preemptions 7",),  # Ray before 2.10 knows nothing else
        ("ray_vllm:num_preemptions 7",),
    ],
)
def test_rays_gauge_beside_a_counter_is_never_added(lines: tuple[str, ...]) -> None:
    (engine,) = read_page("\n".join(lines)).engines
    assert engine.preemptions_total == 7.0


def test_a_counter_that_ray_leaves_out_is_pending() -> None:
    text = ray_replica("r1", 0.1, 4).replace("num_preemptions", "other")
    reading = read_page(text, (0, 25, 0))
    assert "preemptions_total" in reading.pending
    assert "preemptions_total" not in reading.missing


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_prefixes_the_fullest_is_read(turned: bool) -> None:
    lines = [
        "vllm:num_requests_running 1",
        "kserve_vllm:num_requests_running 2",
        "kserve_vllm:num_requests_waiting 3",
        "ray_vllm_num_requests_running NaN",
    ]
    reading = read_page("\n".join(reversed(lines) if turned else lines))
    assert reading.name_prefix == "kserve_vllm:"
    assert [(engine.running, engine.waiting) for engine in reading.engines] == [(2.0, 3.0)]
    assert not reading.invalid


def test_between_equal_prefixes_vllms_own_wins() -> None:
    text = "ray_vllm_num_requests_running 2\nvllm:num_requests_running 1\n"
    reading = read_page(text)
    assert reading.name_prefix == "vllm:"
    assert reading.engines[0].running == 1.0


def test_servers_behind_a_router_are_kept_apart() -> None:
    text = "".join(
        f'vllm:num_requests_running{{server="http://{host}"}} {running}\n'
        for host, running in (("a", 1), ("b", 2))
    )
    reading = read_page(text + 'vllm:current_qps{server="http://a"} 1\n')
    assert [engine.running for engine in reading.engines] == [1.0, 2.0]
    assert reading.reason == "router_or_proxy"


def test_more_engines_than_there_can_be_are_refused() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{number}"}} 1\n' for number in range(MOST_ENGINES + 9)
    )
    reading = read_page(text)
    assert len(reading.engines) == MOST_ENGINES
    assert reading.invalid == {"running": 9}


@pytest.mark.parametrize(
    ("text", "waiting", "missing"),
    [
        ('{reason="capacity"} 3\nX{reason="deferred"} 41\n', 44.0, False),
        ('{reason="capacity"} 3\nX{reason="deferred"} NaN\n', None, True),
        ('{reason="capacity"} 3\nvllm:num_requests_waiting 5\n', 5.0, False),
        ('{reason="capacity"} 3\nvllm:num_requests_waiting NaN\n', 3.0, False),
    ],
)
def test_waiting_is_the_sum_of_its_reasons_where_it_is_not_told(
    text: str, waiting: float | None, missing: bool
) -> None:
    name = "vllm:num_requests_waiting_by_reason"
    page = f"{name}{text.replace('X', name)}vllm:prompt_tokens_total 1\n"
    reading = read_page(page, (0, 25, 0))
    assert reading.engines[0].waiting == waiting
    assert ("waiting" in reading.missing) is missing


@pytest.mark.parametrize(
    ("name", "labels", "config", "release", "queries"),
    [
        ("gpu_prefix_cache", "", "", (0, 8, 1), 160.0),
        ("gpu_prefix_cache", 'engine="0"', "", (0, 8, 5), 160.0),
        ("gpu_prefix_cache", 'engine="0"', 'engine="0",', (0, 9, 0), 10.0),
        ("prefix_cache", 'engine="0"', 'engine="0",', (0, 9, 2), 10.0),
        ("gpu_prefix_cache", 'engine="0"', 'engine="0",', None, 10.0),
        ("gpu_prefix_cache", 'engine="0"', "", None, 160.0),
        ("prefix_cache", 'engine="0"', 'engine="0",', None, 10.0),
    ],
)
def test_prefix_cache_figures_are_tokens(
    name: str, labels: str, config: str, release: Release | None, queries: float
) -> None:
    text = (
        f"vllm:{name}_queries_total{{{labels}}} 10\nvllm:{name}_hits_total{{{labels}}} 5\n"
        f'vllm:cache_config_info{{{config}block_size="16",num_gpu_blocks="100"}} 1\n'
    )
    (engine,) = read_page(text, release).engines
    assert (engine.prefix_queries_total, engine.prefix_hits_total) == (queries, queries / 2)


@pytest.mark.parametrize(
    "line",
    [
        "  vllm:num_requests_running 3",
        '\tvllm:num_requests_running{engine="0"} 3',
        'vllm:num_requests_running {engine="0"} 3',
        'vllm:num_requests_running\t{engine="0"}\t3',
        '  vllm:num_requests_running{engine="0"} 3 1700000000000',
    ],
)
def test_blanks_where_they_may_be(line: str) -> None:
    reading = read_page(line + "\n")
    assert [engine.running for engine in reading.engines] == [3.0]
    assert not reading.invalid


@pytest.mark.parametrize(
    ("line", "series"),
    [
        ("# TYPE vllm_num_preemptions counter", "preemptions_total"),
        ("# TYPE vllm:num_preemptions_total counter", "preemptions_total"),
        ("#  TYPE\tvllm:request_prompt_tokens  histogram", "finished_prompt_tokens_total"),
        ("# TYPE vllm:time_to_first_token_seconds histogram", "first_tokens_total"),
        ("# TYPE vllm:iteration_tokens_total histogram", "iteration_tokens"),
    ],
)
def test_declared_families(line: str, series: str) -> None:
    assert read_page(line + "\n").empty == (series,)


def test_what_comes_with_data_or_on_request_is_not_called_empty() -> None:
    text = (
        "vllm:num_requests_swapped 0\nvllm:num_requests_running 0\n"
        "# TYPE vllm:request_success_total counter\n# TYPE vllm:lora_requests_info gauge\n"
    )
    reading = read_page(text, (0, 6, 6))
    assert reading.empty == ()
    assert {"finished_total", "lora"} <= set(reading.pending)
