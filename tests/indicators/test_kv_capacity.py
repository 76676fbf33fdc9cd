from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import CACHE, engine, history, measured, reason, snapshot

from sidecar.capacity import capacity_of, used_blocks
from sidecar.model import CacheConfig
from sidecar.sources.releases import parse_release

OLD = replace(CACHE, kv_cache_size_tokens=None)


@pytest.mark.parametrize(
    ("version", "config", "labelled", "blocks", "tokens", "block_size", "idle"),
    [
        pytest.param("0.25.0", CACHE, True, 1_000, 16_016, 16, 0.0, id="stated tokens"),
        pytest.param("0.20.0", OLD, True, 1_000, 16_016, 16, 0.0, id="blocks times size"),
        pytest.param("0.10.1", OLD, True, 1_000, 16_016, 16, 1 / 1_001, id="null block counted"),
        pytest.param("0.10.1", OLD, False, 1_001, 16_016, 16, 0.0, id="V0 has no null block"),
        pytest.param("0.8.2", OLD, False, 1_001, 16_016, 16, 0.0, id="V1 before the null block"),
        pytest.param(
            "0.25.0",
            replace(CACHE, kv_cache_size_tokens=50_000),
            True,
            1_000,
            50_000,
            None,
            0.0,
            id="several kinds of KV layers",
        ),
        pytest.param(
            "0.20.0",
            replace(OLD, labels={"sliding_window": "4096"}),
            True,
            1_000,
            None,
            None,
            0.0,
            id="a window, and no stated size",
        ),
    ],
)
def test_capacity(
    version: str,
    config: CacheConfig,
    labelled: bool,
    blocks: int,
    tokens: int | None,
    block_size: int | None,
    idle: float,
) -> None:
    reading = engine(cache=config, engine_label=labelled)
    found = capacity_of(reading, parse_release(version))
    assert found is not None
    assert (found.blocks, found.tokens, found.block_size) == (blocks, tokens, block_size)
    assert found.idle_usage_ratio == pytest.approx(idle)
    assert used_blocks(found.idle_usage_ratio, found) == pytest.approx(0.0)
    assert used_blocks(1.0, found) == pytest.approx(blocks)


def test_without_a_block_count_there_is_no_capacity() -> None:
    seen = history(snapshot(0, engine(cache=replace(CACHE, num_gpu_blocks=None))))
    assert measured(seen, "kv_cache_capacity_blocks") is None
    assert reason(seen, "kv_cache_capacity_blocks") == "block_count_not_stated"
    assert measured(seen, "kv_cache_tokens_per_request") is None


def test_used_and_free_blocks_make_up_the_pool() -> None:
    seen = history(snapshot(0, engine(kv_usage_ratio=0.123, running=2.0)))
    assert measured(seen, "kv_cache_blocks", "used") == 123.0
    assert measured(seen, "kv_cache_blocks", "free") == 877.0


def test_unused_reserve_needs_the_bytes() -> None:
    config = replace(CACHE, kv_cache_memory_bytes=1_000)
    polls = [snapshot(t, engine(kv_usage_ratio=u, cache=config)) for t, u in ((0, 0.4), (1, 0.1))]
    assert measured(history(*polls), "kv_cache_reserved_unused_bytes") == pytest.approx(600.0)
    assert measured(history(snapshot(0, engine())), "kv_cache_reserved_unused_bytes") is None


def test_the_bytes_of_an_overridden_pool_are_not_the_stated_ones() -> None:
    config = replace(CACHE, kv_cache_memory_bytes=2**30, num_gpu_blocks_override=40)
    seen = history(snapshot(0, engine(cache=config)))
    assert measured(seen, "kv_cache_bytes") is None
    assert measured(seen, "kv_cache_reserved_unused_bytes") is None


def test_held_while_idle_needs_some_seconds() -> None:
    polls = [snapshot(float(t), engine(kv_usage_ratio=0.2)) for t in range(6)]
    assert measured(history(*polls[:5]), "kv_cache_held_while_idle_ratio") is None
    assert measured(history(*polls), "kv_cache_held_while_idle_ratio") == 0.2
    busy = snapshot(6, engine(kv_usage_ratio=0.2, running=1.0))
    assert measured(history(*polls, busy), "kv_cache_held_while_idle_ratio") is None


def test_the_idle_floor_of_old_releases_is_not_held() -> None:
    reading = engine(kv_usage_ratio=1 / 1_001, cache=OLD)
    polls = [snapshot(float(t), reading, version="0.10.1") for t in range(9)]
    assert measured(history(*polls), "kv_cache_held_while_idle_ratio") is None


@pytest.mark.parametrize(
    ("slope", "expected"), [(0.01, 50.0), (0.0, None), (-0.01, None), (1e-9, None)]
)
def test_time_to_exhaustion(slope: float, expected: float | None) -> None:
    polls = [
        snapshot(float(t), engine(running=1.0, kv_usage_ratio=0.5 + slope * (t - 20)))
        for t in range(21)
    ]
    found = measured(history(*polls), "kv_cache_exhaustion_seconds")
    assert found == (None if expected is None else pytest.approx(expected))
