from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import engine, history, measured, snapshot

from sidecar.indicators.load import largest_bucket, quantile
from sidecar.model import Histogram

INF = float("inf")


def test_rates_count_over_ten_seconds() -> None:
    polls = [
        snapshot(
            float(t),
            engine(
                running=2.0,
                generation_tokens_total=100.0 * t,
                prompt_tokens_total=40.0 * t,
                finished_total=2.0 * t,
            ),
        )
        for t in range(61)
    ]
    seen = history(*polls)
    assert measured(seen, "generation_tokens_per_second") == 100.0
    assert measured(seen, "prompt_tokens_per_second") == 40.0
    assert measured(seen, "finished_requests_per_second") == 2.0
    assert measured(seen, "tokens_per_second_plateau") == 140.0
    assert measured(seen, "tokens_per_second_plateau_running") == 2.0


def test_the_best_rate_is_remembered_with_its_batch() -> None:
    tokens, polls = 0.0, []
    for t in range(60):
        running, rate = (8.0, 500.0) if t < 30 else (16.0, 200.0)
        tokens += rate
        polls.append(snapshot(float(t), engine(running=running, generation_tokens_total=tokens)))
    seen = history(*polls)
    assert measured(seen, "tokens_per_second_plateau") == 0.0 + 500.0
    assert measured(seen, "tokens_per_second_plateau_running") == 8.0


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(16, 3)] * 16, 16.0, id="pinned while others wait"),
        pytest.param([(16, 3), (15, 3)] * 8, 16.0, id="within one"),
        pytest.param([(16, 3), (14, 3)] * 8, None, id="moving"),
        pytest.param([(16, 0)] * 16, None, id="nobody waits"),
        pytest.param([(16, 3)] * 15, None, id="too short"),
    ],
)
def test_running_plateau(rows: list[tuple[float, float]], expected: float | None) -> None:
    polls = [
        snapshot(float(t), engine(running=running, waiting=waiting))
        for t, (running, waiting) in enumerate(rows)
    ]
    assert measured(history(*polls), "running_plateau") == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, 1.0, id="nothing moves"),
        pytest.param({"generation_tokens_total": 1.0}, 0.0, id="a token"),
        pytest.param({"prompt_tokens_total": 1.0}, 0.0, id="a prompt"),
        pytest.param({"prefix_queries_total": 1.0}, 0.0, id="a prefix query of a pooling model"),
        pytest.param({"kv_usage_ratio": 0.01}, 0.0, id="a block"),
        pytest.param({"iteration_tokens": Histogram(((INF, 1.0),), 9.0, 1.0)}, 0.0, id="a step"),
        pytest.param({"running": 0.0}, 0.0, id="nothing runs"),
        pytest.param({"sleeping": True}, 0.0, id="asleep"),
    ],
)
def test_stalled_after_thirty_seconds(changes: dict[str, float], expected: float) -> None:
    still = engine(running=2.0)
    polls = [snapshot(float(t), still) for t in range(31)]
    moved = snapshot(31, engine(**{"running": 2.0, **changes}))
    assert measured(history(*polls, moved), "engine_stalled") == expected
    assert measured(history(*polls[:30]), "engine_stalled") == 0.0


def test_prefix_hits_share() -> None:
    polls = [
        snapshot(float(t), engine(prefix_queries_total=100.0 * t, prefix_hits_total=25.0 * t))
        for t in range(20)
    ]
    assert measured(history(*polls), "prefix_cache_hit_ratio") == 0.25
    idle = [snapshot(float(t), engine()) for t in range(20)]
    assert measured(history(*idle), "prefix_cache_hit_ratio") is None


def test_histograms_cover_the_last_minute_only() -> None:
    def steps(small: float, large: float) -> Histogram:
        count = small + large
        return Histogram(((8.0, small), (16.0, count), (INF, count)), 0.0, count)

    polls = [
        snapshot(float(t), engine(iteration_tokens=steps(10.0 * t, 100.0 if t < 60 else 101.0)))
        for t in range(121)
    ]
    seen = history(*polls)
    assert measured(seen, "iteration_tokens_largest") == 8.0
    assert measured(history(*polls[:90]), "iteration_tokens_largest") == 16.0


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        pytest.param(((10.0, 100.0), (INF, 100.0)), 9.5, id="inside the first"),
        pytest.param(((10.0, 90.0), (20.0, 100.0), (INF, 100.0)), 15.0, id="inside the second"),
        pytest.param(((10.0, 0.0), (INF, 100.0)), 10.0, id="beyond the last bound"),
    ],
)
def test_quantile(buckets: tuple[tuple[float, float], ...], expected: float) -> None:
    assert quantile(Histogram(buckets, 0.0, 100.0), 0.95) == pytest.approx(expected)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_a_quantile_never_leaves_the_known_bounds(counts: list[int], share: float) -> None:
    total, buckets = 0.0, []
    for index, count in enumerate(counts):
        total += count
        buckets.append((float(index + 1), total))
    found = quantile(Histogram((*buckets, (INF, total)), 0.0, total), share)
    largest = largest_bucket(Histogram((*buckets, (INF, total)), 0.0, total))
    assert (found is None) == (total == 0)
    if found is not None:
        assert largest is not None
        assert 0.0 <= found <= largest
