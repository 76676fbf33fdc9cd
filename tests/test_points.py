from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.points import Increase, Points


def points(*pairs: tuple[float, float], keep: float = 1_000.0) -> Points:
    made = Points(keep)
    for at, value in pairs:
        made.append(at, value)
    return made


@pytest.mark.parametrize(
    ("pairs", "seconds", "expected"),
    [
        pytest.param([(0, 5)], 10, None, id="a first value is a baseline"),
        pytest.param([(0, 5), (3, 9)], 10, None, id="too short to be a rate"),
        pytest.param([(0, 5), (5, 9)], 10, Increase(4, 5), id="a part of the window"),
        pytest.param([(t, t) for t in range(21)], 10, Increase(10, 10), id="a full window"),
        pytest.param([(0, 0), (15, 30)], 10, Increase(30, 15), id="polled more slowly than it"),
        pytest.param([(0, 0), (44, 9)], 10, None, id="a gap says nothing"),
        pytest.param([(0, 0), (44, 9), (50, 15)], 10, Increase(6, 6), id="after the gap again"),
        pytest.param([(0, 0), (44, 9)], 60, Increase(9, 44), id="a long window spans it"),
    ],
)
def test_increase(
    pairs: Sequence[tuple[float, float]], seconds: float, expected: Increase | None
) -> None:
    made = points(*pairs)
    assert made.increase(pairs[-1][0], seconds, at_least_seconds=5.0) == expected


def test_nothing_measured_now_is_no_increase() -> None:
    assert points((0, 0), (10, 10)).increase(11, 10, at_least_seconds=5.0) is None


def test_windows_leave_their_older_edge_out() -> None:
    made = points((0, 1), (5, 2), (10, 3))
    assert made.within(10, 5) == [3]
    assert made.within(10, 5.1) == [2, 3]
    assert made.since(5) == [2, 3]
    assert made.value_at(5) == 2
    assert made.value_at(6) is None
    assert made.observed_seconds(10, 7) == 5


@given(
    st.lists(st.floats(0.1, 20.0), min_size=100, max_size=400),
    st.floats(10.0, 100.0),
)
def test_memory_is_bounded_and_the_window_whole(steps: list[float], keep: float) -> None:
    made = Points(keep)
    kept: list[tuple[float, float]] = []
    now = 0.0
    for value, step in enumerate(steps):
        now += step
        made.append(now, float(value))
        kept.append((now, float(value)))
    assert made.within(now, keep) == [value for at, value in kept if at > now - keep]
    inside = sum(at > now - keep for at, _ in kept)
    assert len(made.times) <= max(64, 4 * (inside + 2) // 3 + 2, int(1.5 * len(kept)))
    assert made.times == sorted(made.times)
