"""Launch flags: how they are read, which wins, and which release has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import CACHE, engine, history, snapshot

from sidecar.judge import Judge, start_values
from sidecar.launch import FLAG_RELEASES, LaunchFlags, has_flag, label_values, parse_arguments
from sidecar.sources.releases import Release
from sidecar.startlog.start import Start


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max-num-seqs 32", {"max_num_seqs": "32"}),
        ("--max-num-seqs=32", {"max_num_seqs": "32"}),
        ("--max_num_seqs 32", {"max_num_seqs": "32"}),
        ("--enforce-eager --model m", {"enforce_eager": "True", "model": "m"}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": "False"}),
        ("-tp 2 -pp=3", {"tensor_parallel_size": "2", "pipeline_parallel_size": "3"}),
        ("--num-x -1", {"num_x": "-1"}),
        ("serve some/model --port 1", {"port": "1"}),
        ("", {}),
    ],
)
def test_arguments(words: str, expected: dict[str, str]) -> None:
    assert parse_arguments(words.split()).values == expected


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_are_read(words: list[str]) -> None:
    parse_arguments(words)


def test_a_flag_that_is_none_is_not_set() -> None:
    flags = LaunchFlags({"a": "None", "b": "2.5", "c": "False", "d": "True", "e": "x"})
    assert (flags.text("a"), flags.number("a"), flags.whole("a")) == (None, None, None)
    assert (flags.number("b"), flags.whole("b"), flags.number("e")) == (2.5, 2, None)
    assert (flags.is_on("c"), flags.is_on("d"), flags.is_on("z")) == (False, True, None)


def test_page_before_log_before_what_was_written_down() -> None:
    judge = Judge(LaunchFlags({"block_size": "1", "max_num_seqs": "1", "seed": "1"}))
    judge.start = Start(block_size=2, max_num_seqs=2, arguments={"port": 2})
    cache = replace(CACHE, labels={"block_size": "3", "cache_dtype": "auto"})
    found = judge.flags_in_force(history(snapshot(0, engine(cache=cache)))).values
    assert found == {
        "block_size": "3",
        "max_num_seqs": "2",
        "seed": "1",
        "port": "2",
        "kv_cache_dtype": "auto",
    }
    assert judge.flags_in_force(history(snapshot(0, failure="refused"))).values["block_size"] == "2"


def test_fields_of_a_start_overrule_what_it_printed() -> None:
    start = Start(arguments={"max_model_len": 8, "seed": 0}, max_model_len=4)
    assert start_values(start) == {"max_model_len": "4", "seed": "0"}


def test_labels_without_a_page() -> None:
    assert label_values(None) == {}


@pytest.mark.parametrize(
    ("flag", "release", "expected"),
    [
        ("--watermark", (0, 23, 9), False),
        ("--watermark", (0, 24, 0), True),
        ("--kv-offloading-size", (0, 11, 0), False),
        ("--kv-offloading-size", (0, 11, 1), True),
        ("--kv-cache-memory-bytes", (0, 10, 1), False),
        ("--kv-cache-memory-bytes", (0, 10, 2), True),
        ("--swap-space", (0, 17, 9), True),
        ("--swap-space", (0, 18, 0), False),
        ("--preemption-mode", (0, 10, 2), True),
        ("--preemption-mode", (0, 11, 0), False),
        ("--cudagraph-capture-sizes", (0, 11, 0), False),
        ("--cudagraph-capture-sizes", (0, 11, 1), True),
        ("--cuda-graph-sizes", (0, 8, 5), False),
        ("--cuda-graph-sizes", (0, 9, 0), True),
        ("--cuda-graph-sizes", (0, 12, 0), True),
        ("--cuda-graph-sizes", (0, 13, 0), False),
        ("--max-num-seqs", (0, 2, 0), True),
        # Of an unknown release only what all current ones have is assumed.
        ("--watermark", None, False),
        ("--swap-space", None, False),
        ("--cuda-graph-sizes", None, False),
        ("--kv-offloading-size", None, True),
        ("--max-num-seqs", None, True),
    ],
)
def test_releases(flag: str, release: Release | None, expected: bool) -> None:
    assert has_flag(flag, release) == expected


def test_every_flag_has_a_time() -> None:
    for since, until in FLAG_RELEASES.values():
        assert until is None or since < until
