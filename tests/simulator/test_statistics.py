from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.simulator.statistics import FINISH_REASONS, Statistics, Tally


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([], [0, 0, 0]),
        ([1.0], [1, 1, 1]),  # a bound belongs to its own bucket
        ([1.5], [0, 1, 1]),
        ([0.5, 1.5, 99.0], [1, 2, 3]),
    ],
)
def test_a_tally_becomes_cumulative(values: list[float], counts: list[int]) -> None:
    tally = Tally((1.0, 2.0))
    for value in values:
        tally.observe(value)
    histogram = tally.histogram()
    assert histogram.buckets == tuple(zip((1.0, 2.0, float("inf")), counts, strict=True))
    assert histogram.sum == sum(values)
    assert histogram.count == len(values)


@given(st.floats(0, 1e6), st.integers(0, 100))
def test_many_equal_observations_at_once(value: float, times: int) -> None:
    together, one_by_one = Tally((10.0, 100.0)), Tally((10.0, 100.0))
    together.observe(value, times)
    for _ in range(times):
        one_by_one.observe(value)
    assert together.histogram().buckets == one_by_one.histogram().buckets
    assert together.histogram().sum == pytest.approx(one_by_one.histogram().sum)


def test_every_reason_starts_at_zero() -> None:
    statistics = Statistics()
    assert statistics.finished == dict.fromkeys(FINISH_REASONS, 0)
    assert statistics.finished_requests == 0
