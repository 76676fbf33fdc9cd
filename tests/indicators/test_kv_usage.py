from __future__ import annotations

import pytest
from synthetic import engine, history, measured, reason, snapshot

from sidecar.history import History
from sidecar.indicators import measure
from sidecar.model import Histogram


def serving(*usages: float, running: float = 4.0, step: float = 1.0) -> History:
    return history(
        *(
            snapshot(i * step, engine(kv_usage_ratio=usage, running=running))
            for i, usage in enumerate(usages)
        )
    )


def test_the_peak_outlives_the_moment() -> None:
    seen = serving(0.2, 0.97, *[0.2] * 59)
    assert measured(seen, "kv_cache_usage_ratio") == 0.2
    assert measured(seen, "kv_cache_usage_peak_ratio", "60s") == 0.97
    later = serving(0.2, 0.97, *[0.2] * 60)
    assert measured(later, "kv_cache_usage_peak_ratio", "60s") == 0.2
    assert measured(later, "kv_cache_usage_peak_ratio", "1h") == 0.97


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([0.1] * 50, None, id="less than a minute of serving"),
        pytest.param([0.1] * 61, 1.0, id="a minute of low use"),
        pytest.param([0.1] * 91 + [0.6] * 10, 1.0, id="a tenth above"),
        pytest.param([0.1] * 80 + [0.6] * 21, 0.0, id="a fifth above"),
        pytest.param([0.5] * 61, 0.0, id="half is not below half"),
    ],
)
def test_underused(usages: list[float], expected: float | None) -> None:
    assert measured(serving(*usages), "kv_cache_underused") == expected


def test_idle_time_is_not_under_use() -> None:
    seen = serving(*[0.0] * 300, running=0.0)
    assert measured(seen, "serving_seconds_total") == 0.0
    assert measured(seen, "kv_cache_underused_seconds_total") == 0.0
    assert reason(seen, "kv_cache_underused") == "too_short_serving"


def test_a_gap_between_polls_counts_for_nothing() -> None:
    seen = history(
        snapshot(0, engine(running=1.0)),
        snapshot(10, engine(running=1.0)),
        snapshot(100, engine(running=1.0)),
    )
    assert measured(seen, "serving_seconds_total") == 10.0


def test_saturated_seconds() -> None:
    assert measured(serving(0.9, 0.95, 0.96, 0.94), "kv_cache_saturated_seconds_total") == 2.0


def test_every_serving_poll_is_in_the_histogram_once() -> None:
    seen = history(
        *(
            snapshot(i, engine(kv_usage_ratio=usage, running=running))
            for i, (usage, running) in enumerate([(0.0, 0.0), (0.05, 1.0), (0.5, 1.0), (1.0, 1.0)])
        )
    )
    found = [
        sample.value
        for sample in measure(seen)[0]
        if sample.declaration.name == "kv_cache_usage_sample_ratio"
    ]
    assert len(found) == 1
    histogram = found[0]
    assert isinstance(histogram, Histogram)
    buckets = dict(histogram.buckets)
    assert (buckets[0.05], buckets[0.45], buckets[0.5], buckets[1.0]) == (1.0, 1.0, 2.0, 3.0)
    assert buckets[float("inf")] == histogram.count == 3.0
    assert histogram.sum == pytest.approx(1.55)


def test_a_page_without_usage_says_so() -> None:
    seen = history(snapshot(0, engine(kv_usage_ratio=None)))
    assert measured(seen, "kv_cache_usage_ratio") is None
    assert reason(seen, "kv_cache_usage_ratio") == "series_missing"
