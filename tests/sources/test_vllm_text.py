"""Reading vLLM's page: every release's names, every kind of damage, and never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.model import EngineReading, Page, ServerReading
from sidecar.recordings import open_recording
from sidecar.sources.releases import Release
from sidecar.sources.series import PREFIXES, SERIES
from sidecar.sources.vllm_text import MAX_LABEL_CHARACTERS, read_page

RECORDINGS = sorted((Path(__file__).parents[1] / "captures" / "recordings").glob("*.jsonl.gz"))


def engine_of(text: str, release: Release | None = None) -> EngineReading:
    (engine,) = read_page(text, release).engines
    return engine


def invalid_in(text: str) -> dict[str, int]:
    return dict(read_page(text).invalid)


# ---------------------------------------------------------------------------------------------
# Names.

ONE_VALUE = {
    "kv_cache_usage_perc": "kv_usage_ratio",
    "gpu_cache_usage_perc": "kv_usage_ratio",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_preemptions_total": "preemptions_total",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
    "request_success_total": "finished_total",
    "time_to_first_token_seconds_count": "first_tokens_total",
    "request_prompt_tokens_sum": "finished_prompt_tokens_total",
    "request_generation_tokens_sum": "finished_generation_tokens_total",
    "prefix_cache_queries_total": "prefix_queries_total",
    "gpu_prefix_cache_queries_total": "prefix_queries_total",
    "prefix_cache_hits_total": "prefix_hits_total",
    "gpu_prefix_cache_hits_total": "prefix_hits_total",
}


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:"])
@pytest.mark.parametrize(("name", "field"), ONE_VALUE.items())
def test_every_name_under_every_prefix(prefix: str, name: str, field: str) -> None:
    reading = read_page(f'{prefix}{name}{{engine="1",model_name="m"}} 0.25\n')
    (engine,) = reading.engines
    assert engine.key == ("m", "1")
    assert getattr(engine, field) == 0.25
    assert reading.name_prefix == prefix
    assert not reading.invalid


@pytest.mark.parametrize(
    "name",
    [
        "num_preemptions_created",
        "prompt_tokens_created",
        "num_preemptions",
        "num_preemptions_total_bytes",
        "iteration_tokens_total",
        "kv_cache_usage_perc_sum",
        "num_requests_running_total",
        "request_prompt_tokens_bucket",
        "time_to_first_token_seconds_created",
    ],
)
def test_names_that_only_look_alike(name: str) -> None:
    reading = read_page(f'vllm:{name}{{engine="0",model_name="m"}} 1.7e9\n')
    assert reading.engines == ()
    assert not reading.invalid


@pytest.mark.parametrize("prefix", ["", "VLLM:", "vllm", "sglang:", "my_vllm:", "vllm::"])
def test_names_of_others(prefix: str) -> None:
    assert read_page(f"{prefix}num_requests_running 1\n").engines == ()


@pytest.mark.parametrize("newer_first", [True, False])
def test_of_two_names_on_one_page_the_newer_alone_is_read(newer_first: bool) -> None:
    lines = ["vllm:kv_cache_usage_perc 0.5", "vllm:gpu_cache_usage_perc 0.25"]
    reading = read_page("\n".join(lines if newer_first else reversed(lines)))
    assert [engine.kv_usage_ratio for engine in reading.engines] == [0.5]
    assert reading.kv_usage_name == "kv_cache_usage_perc"
    assert not reading.invalid


def test_the_older_name_alone_is_read_and_named() -> None:
    reading = read_page("vllm:gpu_cache_usage_perc 0.25\n")
    assert reading.engines[0].kv_usage_ratio == 0.25
    assert reading.kv_usage_name == "gpu_cache_usage_perc"


def test_waiting_includes_what_is_swapped_out() -> None:
    assert engine_of("vllm:num_requests_waiting 2\nvllm:num_requests_swapped 3\n").waiting == 5
    assert engine_of("vllm:num_requests_swapped 3\n").waiting is None


# ---------------------------------------------------------------------------------------------
# Lines.


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running 3",
        "vllm:num_requests_running 3.0\r",
        "vllm:num_requests_running\t 3 ",
        "vllm:num_requests_running 3e0",
        "vllm:num_requests_running +3",
        "vllm:num_requests_running 3 1700000000000",
        "vllm:num_requests_running 3 -1",
        "vllm:num_requests_running{} 3",
        "vllm:num_requests_running{} 3 1700000000000\r",
        'vllm:num_requests_running{engine="0",} 3',
        'vllm:num_requests_running{ engine = "0" } 3',
        'vllm:num_requests_running{engine="0"} 3 # {trace_id="a b"} 1 1700000000.5',
        'vllm:num_requests_running{engine="0"} 3 1700000000 # {} 1',
    ],
)
def test_a_line_in_every_legal_shape(line: str) -> None:
    reading = read_page(f"# HELP x y\n{line}\n# EOF\n")
    assert [engine.running for engine in reading.engines] == [3.0]
    assert not reading.invalid


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a}b", "a}b"),
        ("a{b", "a{b"),
        ("a,b", "a,b"),
        ("a=b", "a=b"),
        ("a b", "a b"),
        ("a#b", "a#b"),
        (" a ", " a "),
        (r"a\"b", 'a"b'),
        (r"a\\b", "a\\b"),
        (r"a\nb", "a\nb"),
        (r"C:\\new", "C:\\new"),
        (r"a\\", "a\\"),
        (r"a\\\"", 'a\\"'),
        ('a"} 9 #'.replace('"', r"\""), 'a"} 9 #'),
        ("Größe/名前", "Größe/名前"),
        ("", ""),
    ],
)
def test_label_text(written: str, meant: str) -> None:
    line = f'vllm:num_requests_running{{model_name="{written}",engine="0"}} 3\n'
    engine = engine_of(line)
    assert engine.model_name == meant
    assert engine.running == 3.0


@pytest.mark.parametrize(
    "rest",
    [
        " NaN",
        " nan",
        " +Inf",
        " -Inf",
        " Infinity",
        " -1",
        " -0.5",
        " 1e999",
        " 1_000",
        " 0x10",
        " three",
        " 3;",
        " 3 soon",
        " 3 1 2",
        "",
        " ",
        "{",
        "{}",
        "{} ",
        '{engine="0" 3',
        '{engine="0} 3',
        '{engine="0"}',
        "{engine=0} 3",
        "{engine} 3",
        '{engine="0"}} 3',
        '{engine="0"} 3 4 5',
    ],
)
def test_a_sample_that_cannot_be_used_is_counted(rest: str) -> None:
    reading = read_page(f"vllm:num_requests_running{rest}\nvllm:num_requests_waiting 1\n")
    (engine,) = reading.engines
    assert engine.running is None
    assert engine.waiting == 1.0
    assert reading.invalid == {"running": 1}
    assert "running" not in reading.missing


@pytest.mark.parametrize("value", ["1.0000001", "1.5", "57", "-0.1", "NaN"])
def test_usage_outside_0_and_1_is_invalid(value: str) -> None:
    reading = read_page(f"vllm:kv_cache_usage_perc {value}\n")
    assert reading.engines == ()
    assert reading.invalid == {"kv_usage_ratio": 1}


@pytest.mark.parametrize("value", ["0", "0.0", "-0.0", "1", "1.0"])
def test_the_ends_of_usage_are_valid(value: str) -> None:
    usage = engine_of(f"vllm:kv_cache_usage_perc {value}\n").kv_usage_ratio
    assert usage == abs(float(value))


def test_very_long_labels_are_refused_and_long_ones_are_not() -> None:
    longest = "x" * (MAX_LABEL_CHARACTERS - len('model_name=""'))
    assert engine_of(f'vllm:num_requests_running{{model_name="{longest}"}} 1').running == 1.0
    assert invalid_in(f'vllm:num_requests_running{{model_name="{longest}x"}} 1') == {"running": 1}


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1c"])
def test_only_a_line_feed_ends_a_line(separator: str) -> None:
    line = f'vllm:num_requests_running{{model_name="a{separator}b"}} 3\n'
    assert engine_of(line).model_name == f"a{separator}b"


# ---------------------------------------------------------------------------------------------
# Several series of one engine.


def test_of_several_processes_gauges_the_largest_is_taken() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="m",pid="{pid}"}} {value}\n'
        for pid, value in ((97, 0.0), (98, 7.0), (99, 3.0))
    )
    assert engine_of(text).running == 7.0
    assert not invalid_in(text)


def test_two_series_of_an_engine_that_disagree_are_both_refused() -> None:
    text = 'vllm:num_requests_running{a="1"} 3\nvllm:num_requests_running{a="2"} 4\n'
    reading = read_page(text + "vllm:num_requests_waiting 1\n")
    assert reading.engines[0].running is None
    assert reading.engines[0].waiting == 1.0
    assert reading.invalid == {"running": 1}


def test_two_series_of_an_engine_that_agree_are_one() -> None:
    text = 'vllm:num_requests_running{a="1"} 3\nvllm:num_requests_running{a="2"} 3\n'
    assert engine_of(text).running == 3.0
    assert not invalid_in(text)


def test_finished_requests_are_summed_over_reasons_and_engines_kept_apart() -> None:
    text = "".join(
        f'vllm:request_success_total{{engine="{engine}",finished_reason="{reason}"}} {value}\n'
        for engine, reason, value in (
            ("0", "stop", 10),
            ("0", "length", 5),
            ("0", "abort", 0),
            ("1", "stop", 2),
        )
    )
    finished = {engine.engine: engine.finished_total for engine in read_page(text).engines}
    assert finished == {"0": 15.0, "1": 2.0}


def test_why_requests_wait() -> None:
    text = (
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 0\n'
    )
    assert engine_of(text).waiting_by_reason == {"capacity": 4.0, "deferred": 0.0}


@pytest.mark.parametrize(
    ("awake", "weights_offloaded", "sleeping"), [(1, 0, False), (0, 1, True), (0, 0, True)]
)
def test_sleep(awake: int, weights_offloaded: int, sleeping: bool) -> None:
    text = (
        f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {awake}\n'
        f'vllm:engine_sleep_state{{engine="0",sleep_state="weights_offloaded"}} '
        f"{weights_offloaded}\n"
    )
    assert engine_of(text).sleeping is sleeping


def test_a_sleep_state_without_awake_says_nothing() -> None:
    text = 'vllm:num_requests_running 0\nvllm:engine_sleep_state{sleep_state="discard_all"} 0\n'
    assert engine_of(text).sleeping is None


def test_models_and_engines_are_told_apart_and_sorted() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="{model}"}} {value}\n'
        for value, (model, engine) in enumerate((("b", "0"), ("a", "1"), ("a", "0")))
    )
    running = {engine.key: engine.running for engine in read_page(text).engines}
    assert list(running.items()) == [(("a", "0"), 2.0), (("a", "1"), 1.0), (("b", "0"), 0.0)]


@pytest.mark.parametrize(
    ("labels", "named"),
    [('{engine="0",model_name="m"}', True), ('{model_name="m"}', False), ("", False)],
)
def test_whether_the_page_names_engines(labels: str, named: bool) -> None:
    engine = engine_of(f"vllm:num_requests_running{labels} 1\n")
    assert engine.engine == "0"
    assert engine.engine_label is named


# ---------------------------------------------------------------------------------------------
# Histograms.


def histogram(name: str, labels: str = 'engine="0",') -> str:
    return (
        f'{name}_bucket{{{labels}le="8.0"}} 2\n'
        f'{name}_bucket{{{labels}le="1.0"}} 1\n'
        f'{name}_bucket{{{labels}le="+Inf"}} 3\n'
        f"{name}_sum{{{labels[:-1]}}} 24\n{name}_count{{{labels[:-1]}}} 3\n"
    )


@pytest.mark.parametrize("name", ["request_queue_time_seconds", "time_in_queue_requests"])
def test_a_histogram_in_ascending_order(name: str) -> None:
    queue = engine_of(histogram(f"vllm:{name}")).queue_seconds
    assert queue is not None
    assert queue.buckets == ((1.0, 1.0), (8.0, 2.0), (math.inf, 3.0))
    assert (queue.sum, queue.count) == (24.0, 3.0)


def test_the_histogram_that_is_named_like_a_counter() -> None:
    tokens = engine_of(histogram("vllm:iteration_tokens_total")).iteration_tokens
    assert tokens is not None
    assert tokens.count == 3.0


@pytest.mark.parametrize("part", ["_sum", "_count"])
def test_half_a_histogram_is_none(part: str) -> None:
    text = "\n".join(
        line
        for line in histogram("vllm:iteration_tokens_total").splitlines()
        if not line.startswith(f"vllm:iteration_tokens_total{part}")
    )
    assert read_page(text).engines == ()


# ---------------------------------------------------------------------------------------------
# The cache's configuration.


def cache_config(engines: int, **labels: object) -> str:
    """As a server with so many data-parallel engines shows it."""
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return "".join(
        f'vllm:num_requests_running{{engine="{engine}"}} 0\n'
        f'vllm:cache_config_info{{engine="{engine}",{text}}} 1.0\n'
        for engine in range(engines)
    )


@pytest.mark.parametrize(
    ("engines", "release", "blocks"),
    [
        (1, (0, 33, 0), 1000),
        (2, (0, 33, 0), 500),
        (2, (0, 9, 0), 500),
        (2, (0, 8, 5), 1000),
        (2, None, 500),
        (4, None, 250),
    ],
)
def test_blocks_are_those_of_one_engine(engines: int, release: Release | None, blocks: int) -> None:
    reading = read_page(cache_config(engines, num_gpu_blocks=1000, block_size=16), release)
    assert len(reading.engines) == engines
    for engine in reading.engines:
        assert engine.cache is not None
        assert engine.cache.num_gpu_blocks == blocks
        assert engine.cache.block_size == 16


def test_a_configuration_without_engine_label_is_everyones() -> None:
    text = (
        'vllm:num_requests_running{model_name="m"} 0\n'
        'vllm:cache_config_info{num_gpu_blocks="1000",block_size="16"} 1\n'
    )
    cache = engine_of(text).cache
    assert cache is not None
    assert cache.num_gpu_blocks == 1000


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("16", 16),
        ("16.0", 16),
        ("None", None),
        ("", None),
        ("auto", None),
        ("True", None),
        ("nan", None),
        ("inf", None),
        ("0", None),
        ("-1", None),
        ("1e400", None),
    ],
)
def test_label_values_are_what_python_prints(written: str, meant: int | None) -> None:
    cache = engine_of(cache_config(1, block_size=written, num_gpu_blocks=written)).cache
    assert cache is not None
    assert (cache.block_size, cache.num_gpu_blocks) == (meant, meant)
    assert cache.labels["block_size"] == written


def test_every_figure_of_the_configuration() -> None:
    cache = engine_of(
        cache_config(
            1,
            block_size=16,
            num_gpu_blocks=57142,
            kv_cache_size_tokens=914272,
            kv_cache_memory_bytes=119836901376,
            num_gpu_blocks_override=18,
            gpu_memory_utilization=0.9,
            cache_dtype="auto",
        )
    ).cache
    assert cache is not None
    assert cache.kv_cache_size_tokens == 914_272
    assert cache.kv_cache_memory_bytes == 119_836_901_376
    assert cache.num_gpu_blocks_override == 18
    assert cache.gpu_memory_utilization == 0.9
    assert cache.labels["cache_dtype"] == "auto"


# ---------------------------------------------------------------------------------------------
# Absent, declared without samples, invalid and zero are four different things.

PREEMPTIONS_TYPE = "# TYPE vllm:num_preemptions_total counter\n"
KV_TYPE = "# TYPE vllm:kv_cache_usage_perc gauge\n"
OTHER = 'vllm:num_requests_running{engine="0"} 0\nprocess_start_time_seconds 1.7e9\n'


def states_of(reading: ServerReading, series: str) -> set[str]:
    return {
        state
        for state in ("missing", "pending", "empty", "invalid")
        if series in getattr(reading, state)
    }


@pytest.mark.parametrize(
    ("text", "states"),
    [
        (OTHER, {"missing"}),
        (OTHER + PREEMPTIONS_TYPE, {"empty"}),
        (OTHER + "vllm:num_preemptions_total NaN\n", {"invalid"}),
        (OTHER + PREEMPTIONS_TYPE + "vllm:num_preemptions_total 0\n", set()),
    ],
)
def test_the_four_states(text: str, states: set[str]) -> None:
    reading = read_page(text, (0, 33, 0))
    assert states_of(reading, "preemptions_total") == states
    expected = None if states else 0.0
    assert [engine.preemptions_total for engine in reading.engines] == [expected]


@pytest.mark.parametrize(
    ("text", "states"),
    [
        # Several API servers: no process_* series, and no step has been made.
        ("vllm:prompt_tokens_total 0\n", {"pending"}),
        # A step has been made, so the gauge should be there by now.
        ("vllm:prompt_tokens_total 5\n", {"missing"}),
        # A single process shows its gauges from the start.
        ("vllm:prompt_tokens_total 0\nprocess_start_time_seconds 1.7e9\n", {"missing"}),
        # Several API servers declare a gauge before it has a value (seen on 0.32.0).
        (KV_TYPE + "vllm:prompt_tokens_total 0\n", {"pending"}),
        (KV_TYPE + "vllm:prompt_tokens_total 5\n", {"empty"}),
        (KV_TYPE + OTHER, {"empty"}),
        (KV_TYPE, {"empty"}),
    ],
)
def test_a_gauge_that_no_step_has_set_yet_is_pending(text: str, states: set[str]) -> None:
    assert states_of(read_page(text, (0, 33, 0)), "kv_usage_ratio") == states


@pytest.mark.parametrize(
    ("release", "expected"),
    [((0, 7, 3), False), ((0, 8, 0), True), ((0, 33, 0), True), (None, False)],
)
def test_a_series_is_missed_only_where_the_release_should_have_it(
    release: Release | None, expected: bool
) -> None:
    assert ("preemptions_total" in read_page(OTHER, release).missing) is expected


@pytest.mark.parametrize("text", ["", "\n\n", "<html>404</html>", "# EOF\n", "up 1\n"])
def test_a_page_of_something_else_has_no_engines(text: str) -> None:
    reading = read_page(text)
    assert reading.engines == ()
    assert reading.name_prefix is None
    assert not reading.invalid


@pytest.mark.parametrize(
    ("value", "meant"), [("1.7e9", 1.7e9), ("NaN", None), ("+Inf", None), ("soon", None)]
)
def test_when_the_process_started(value: str, meant: float | None) -> None:
    assert read_page(f"process_start_time_seconds {value}\n").process_start_seconds == meant


# ---------------------------------------------------------------------------------------------
# Real pages.


def recorded_pages(path: Path) -> Iterator[str]:
    return (poll.vllm.text for poll in open_recording(path).polls() if isinstance(poll.vllm, Page))


def some_pages(path: Path) -> list[str]:
    return list(islice(recorded_pages(path), 0, None, 17))


def read_by_the_book(text: str) -> dict[tuple[str, str], dict[str, float]]:
    """The same with prometheus-client's own parser of the whole page."""
    wanted = {
        "vllm:kv_cache_usage_perc": "kv_usage_ratio",
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:num_preemptions_total": "preemptions_total",
        "vllm:prompt_tokens_total": "prompt_tokens_total",
        "vllm:generation_tokens_total": "generation_tokens_total",
    }
    engines: dict[tuple[str, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in wanted:
                key = (sample.labels["model_name"], sample.labels["engine"])
                engines.setdefault(key, {})[wanted[sample.name]] = sample.value
    return engines


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_real_pages_read_as_by_the_book(path: Path) -> None:
    for text in some_pages(path):
        reading = read_page(text, (0, 25, 0))
        expected = read_by_the_book(text)
        assert {
            engine.key: {name: getattr(engine, name) for name in expected[engine.key]}
            for engine in reading.engines
        } == expected
        assert all(len(values) == 6 for values in expected.values())
        assert not reading.invalid
        assert not reading.missing
        assert not reading.empty
        assert all(engine.cache and engine.cache.num_gpu_blocks for engine in reading.engines)
        assert all(engine.sleeping is not None for engine in reading.engines)


def test_there_are_recordings_and_they_hold_pages() -> None:
    assert len(RECORDINGS) >= 13
    assert sum(len(some_pages(path)) for path in RECORDINGS) >= 30


# ---------------------------------------------------------------------------------------------
# Anything at all.

REAL_LINES = [
    line
    for line in next(recorded_pages(RECORDINGS[0])).splitlines(keepends=True)
    if any(name in line for series in SERIES for name in series.names)
]
NAMES = [prefix + name for prefix in PREFIXES for series in SERIES for name in series.names]
FRAGMENTS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["_bucket", "_sum", "{", "}", '"', "\\", "=", ",", "\n", " ", "# TYPE ", "#", "\r", "\0"]
    ),
    st.sampled_from(['engine="0"', 'le="x"', 'le="NaN"', 'sleep_state="awake"', 'pid="1"']),
    st.sampled_from(['block_size="-3"', 'num_gpu_blocks="1e308"', "0.5", "1", "NaN", "-1", "1e9"]),
    st.text(max_size=5),
)


def check_sane(reading: ServerReading) -> None:
    """Whatever was read, every figure is one that may be believed."""
    for engine in reading.engines:
        assert engine.kv_usage_ratio is None or 0.0 <= engine.kv_usage_ratio <= 1.0
        figures: list[Any] = [getattr(engine, field) for field in ONE_VALUE.values()]
        for figure in (*figures, *engine.waiting_by_reason.values()):
            assert figure is None or 0.0 <= figure < math.inf
    assert all(count > 0 for count in reading.invalid.values())
    assert not set(reading.missing) & set(reading.pending)
    assert not set(reading.missing) & set(reading.empty)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    check_sane(read_page(text))


@given(st.lists(FRAGMENTS, max_size=30).map("".join))
@settings(max_examples=200)
def test_any_text_that_resembles_a_page_is_read(text: str) -> None:
    check_sane(read_page(text))


@given(st.data())
@settings(max_examples=60)
def test_real_lines_that_were_damaged_are_read(data: st.DataObject) -> None:
    text = "".join(data.draw(st.permutations(REAL_LINES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(FRAGMENTS) + text[at + data.draw(st.integers(0, 40)) :]
    check_sane(read_page(text))
