"""The release table, and pages of every era made from it: what it says exists is read, what it
says does not exist is not missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import EngineReading, ServerReading
from sidecar.sources.release_table import (
    FIRST,
    engine_kind,
    engine_kinds,
    expected,
    sample_names,
    shown_by,
    turning_points,
)
from sidecar.sources.releases import Release
from sidecar.sources.series import (
    NEWEST,
    PREFIXES,
    SERIES,
    V0_MARKS,
    Definition,
    EngineKind,
    Series,
)
from sidecar.sources.vllm_text import read_page

LAST: dict[EngineKind, Release] = {"V0": (0, 10, 2), "V1": NEWEST}
ERAS: list[tuple[EngineKind, Release]] = [
    (kind, release)
    for kind in FIRST
    for release in sorted({*turning_points(kind), (0, 8, 3), (0, 8, 5), (0, 9, 0), LAST[kind]})
    if FIRST[kind] <= release <= LAST[kind]
]
SPECIAL_LABELS = {
    "num_requests_waiting_by_reason": 'reason="capacity",',
    "engine_sleep_state": 'sleep_state="awake",',
    "request_success_total": 'finished_reason="stop",',
    "lora_requests_info": 'max_lora="4",running_lora_adapters="a",waiting_lora_adapters="",',
    "cache_config_info": 'block_size="16",num_gpu_blocks="1000",',
}


BUCKET = 'le="+Inf",'


def names_engines(kind: EngineKind, release: Release) -> bool:
    return kind == "V1" and release >= (0, 8, 3)


def lines_of(
    series: Series, definition: Definition, release: Release, prefix: str, value: float
) -> list[str]:
    engine = 'engine="0",' if names_engines(definition.kind, release) else ""
    if series.stable == "cache_config" and release < (0, 9, 0):
        engine = ""
    labels = f'{engine}model_name="m",{SPECIAL_LABELS.get(definition.name, "")}'
    return [
        f"{prefix}{name}{{{labels}{BUCKET if name.endswith('_bucket') else ''}}} {value}"
        for name in sample_names(series, definition)
    ]


def page_of(
    kind: EngineKind,
    release: Release,
    *,
    prefix: str = "vllm:",
    value: float = 1.0,
    without: frozenset[str] = frozenset(),
) -> str:
    """Everything that this kind of engine shows in that release, each with the same value."""
    lines = ["process_start_time_seconds 1.7e9"]
    for series in SERIES:
        if series.stable not in without:
            for definition in shown_by(series, release, kind):
                lines += lines_of(series, definition, release, prefix, value)
    if kind == "V0" and release < (0, 9, 1):
        lines += [f'{prefix}{mark}{{model_name="m"}} 0.0' for mark in V0_MARKS[1:2]]
    return "\n".join(lines) + "\n"


FIELDS = {series.stable for series in SERIES} & set(EngineReading.__slots__)


def read_fields(reading: ServerReading) -> set[str]:
    (engine,) = reading.engines
    fields = {name for name in FIELDS if getattr(engine, name) not in (None, {})}
    fields |= {"sleep_state"} if engine.sleeping is not None else set()
    return fields | ({"cache_config"} if engine.cache is not None else set())


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("kind", "release"), ERAS, ids=str)
def test_what_a_release_shows_is_read_and_nothing_is_missed(
    kind: EngineKind, release: Release, prefix: str
) -> None:
    reading = read_page(page_of(kind, release, prefix=prefix), release)
    shown = {series.stable for series in SERIES if shown_by(series, release, kind)}
    assert read_fields(reading) == shown - {"swapped", "lora"}
    assert reading.name_prefix == prefix
    assert reading.missing == ()
    assert reading.pending == ()
    assert reading.empty == ()
    assert reading.invalid == {}
    assert reading.reason is None


@pytest.mark.parametrize(("kind", "release"), ERAS, ids=str)
def test_without_a_version_nothing_is_missed_either(kind: EngineKind, release: Release) -> None:
    reading = read_page(page_of(kind, release))
    assert (reading.missing, reading.invalid, reading.reason) == ((), {}, None)


@pytest.mark.parametrize(("kind", "release"), ERAS, ids=str)
@given(st.data())
def test_what_is_taken_away_is_missed(
    kind: EngineKind, release: Release, data: st.DataObject
) -> None:
    needed = [stable for stable in expected(release, kind) if stable != "waiting"]
    gone = data.draw(st.sets(st.sampled_from(needed), max_size=len(needed) - 1))
    reading = read_page(page_of(kind, release, without=frozenset(gone)), release)
    said = {*reading.missing, *reading.pending}
    assert said == gone
    assert kind == "V0" or not reading.pending  # a single V1 process has no excuse
    assert (reading.reason is not None) is bool(reading.missing)


@pytest.mark.parametrize(
    ("release", "kinds"),
    [
        (None, ("V0", "V1")),
        ((0, 2, 3), ("V0",)),
        ((0, 7, 0), ("V0",)),
        ((0, 7, 1), ("V0", "V1")),
        ((0, 10, 2), ("V0", "V1")),
        ((0, 11, 0), ("V1",)),
        ((1, 0, 0), ("V1",)),
    ],
)
def test_engine_kinds(release: Release | None, kinds: tuple[EngineKind, ...]) -> None:
    assert engine_kinds(release) == kinds


@pytest.mark.parametrize(
    ("names", "labelled", "release", "kind"),
    [
        ({"num_requests_running"}, True, None, "V1"),
        ({"num_requests_running"}, False, None, None),
        ({"num_requests_running"}, False, (0, 8, 1), None),
        ({"num_requests_running"}, False, (0, 9, 2), "V0"),  # V1 would name its engine
        ({"num_requests_running"}, False, (0, 6, 3), "V0"),
        ({"num_requests_running"}, False, (0, 11, 0), "V1"),
        ({"num_requests_swapped"}, False, (0, 8, 1), "V0"),
        ({"gpu_prefix_cache_hits_total"}, False, (0, 8, 1), "V1"),
        ({"kv_cache_usage_perc"}, False, None, "V1"),
    ],
)
def test_engine_kind(
    names: set[str], labelled: bool, release: Release | None, kind: EngineKind | None
) -> None:
    assert engine_kind(names, engine_label=labelled, release=release) == kind


@pytest.mark.parametrize(
    ("release", "kind", "name"),
    [
        ((0, 2, 3), "V0", "gpu_cache_usage_perc"),
        ((0, 9, 1), "V1", "gpu_cache_usage_perc"),
        ((0, 9, 2), "V1", "kv_cache_usage_perc"),
        ((0, 10, 2), "V0", "gpu_cache_usage_perc"),
        ((0, 11, 0), "V1", "kv_cache_usage_perc"),
        ((0, 33, 0), "V1", "kv_cache_usage_perc"),
    ],
)
def test_the_name_of_kv_usage(release: Release, kind: EngineKind, name: str) -> None:
    assert expected(release, kind)["kv_usage_ratio"].name == name


def test_hidden_names_are_read_where_somebody_asked_for_them() -> None:
    usage = next(series for series in SERIES if series.stable == "kv_usage_ratio")
    assert [d.name for d in shown_by(usage, (0, 10, 2), "V1")] == list(usage.names)
    assert [d.name for d in shown_by(usage, (0, 11, 0), "V1")] == ["kv_cache_usage_perc"]
    text = 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    assert read_page(text, (0, 11, 0)).engines[0].kv_usage_ratio == 0.5


def test_a_release_newer_than_the_table_is_read_like_the_newest() -> None:
    assert expected((9, 0, 0), "V1") == expected(NEWEST, "V1")


def test_names_and_ranges_make_sense() -> None:
    assert len({series.stable for series in SERIES}) == len(SERIES)
    for series in SERIES:
        for definition in series.definitions:
            ends = definition.gone or (99, 0, 0)
            assert FIRST[definition.kind] <= definition.first < ends
            assert definition.hidden is None or definition.first < definition.hidden < ends
            assert definition.kind == "V1" or ends <= (0, 11, 0)


# ---------------------------------------------------------------------------------------------
# The table against what servers of known releases showed.

PAGES = Path(__file__).parents[1] / "captures" / "pages"
OF_0_10_2 = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total",
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "cache_config_info",
}
"""A public list of the names that a V1 engine of 0.10.2 shows, less those that are not read."""


def shown_names(kind: EngineKind, release: Release) -> set[str]:
    return {
        definition.name.removesuffix("_count").removesuffix("_sum")
        for series in SERIES
        for definition in shown_by(series, release, kind)
    }


def test_against_a_public_list_of_names() -> None:
    assert shown_names("V1", (0, 10, 2)) == OF_0_10_2


@pytest.mark.parametrize(
    ("page", "kind", "release"),
    [
        ("vllm-0.32.0-cpu-idle", "V1", (0, 32, 0)),
        ("public/v0.25.1-idle", "V1", (0, 25, 1)),
        ("public/v0.19-0.20-lmcache-loaded", "V1", (0, 20, 0)),
    ],
)
def test_against_whole_pages(page: str, kind: EngineKind, release: Release) -> None:
    text = (PAGES / f"{page}.prom").read_text("utf-8")
    on_page = set(re.findall(r"^vllm:(\w+?)(?:_sum|_count|_bucket)?[{ ]", text, re.MULTILINE))
    every = {n.removesuffix("_count").removesuffix("_sum") for s in SERIES for n in s.names}
    assert on_page & every == shown_names(kind, release)
