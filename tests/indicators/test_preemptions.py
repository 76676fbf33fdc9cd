from __future__ import annotations

import pytest
from synthetic import engine, history, measured, reason, snapshot

from sidecar.model import Snapshot


def storm(*rows: tuple[float, float, float, float, float, float]) -> list[Snapshot]:
    """Rows of (at, usage, running, waiting, preemptions, finished)."""
    return [
        snapshot(
            at,
            engine(
                kv_usage_ratio=usage,
                running=running,
                waiting=waiting,
                preemptions_total=preempted,
                finished_total=finished,
            ),
        )
        for at, usage, running, waiting, preempted, finished in rows
    ]


SUSPICIONS = [
    pytest.param([(0, 0.95, 10, 0, 0, 0), (1, 0.97, 8, 2, 0, 0)], 1.0, id="two thrown back"),
    pytest.param([(0, 0.95, 10, 0, 0, 0), (1, 0.97, 9, 1, 0, 0)], 0.0, id="one is not enough"),
    pytest.param([(0, 0.5, 10, 0, 0, 0), (1, 0.5, 8, 2, 0, 0)], 0.0, id="the pool has room"),
    pytest.param([(0, 0.95, 10, 0, 0, 0), (1, 0.95, 8, 2, 0, 2)], 0.0, id="they have finished"),
    pytest.param([(0, 0.95, 10, 0, 0, 0), (1, 0.95, 8, 0, 0, 0)], 0.0, id="clients left"),
    pytest.param([(0, 0.95, 10, 0, 0, 0), (9, 0.95, 8, 2, 0, 0)], 0.0, id="long ago"),
]


@pytest.mark.parametrize(("rows", "expected"), SUSPICIONS)
def test_suspicion(
    rows: list[tuple[float, float, float, float, float, float]], expected: float
) -> None:
    assert measured(history(*storm(*rows)), "preemption_suspected") == expected


def test_rates_by_window() -> None:
    rows = [(float(t), 0.97, 10.0, 5.0, 2.0 * min(t, 30), 3.0 * t) for t in range(61)]
    seen = history(*storm(*rows))
    assert measured(seen, "preemptions_per_second", "10s") == 0.0
    assert measured(seen, "preemptions_per_second", "60s") == 1.0
    assert measured(seen, "preemptions_per_finished_request") == pytest.approx(60 / 180)
    assert measured(seen, "preemptions_total") == 60.0


def test_few_finished_requests_make_no_ratio() -> None:
    seen = history(*storm((0, 0.97, 9, 1, 0, 0), (10, 0.97, 9, 1, 4, 4)))
    assert measured(seen, "preemptions_per_finished_request") is None
    assert reason(seen, "preemptions_per_finished_request") == "too_few_finished"


def test_a_restart_adds_what_was_counted_since() -> None:
    rows = [(float(t), 0.97, 9.0, 1.0, float(t), 0.0) for t in range(6)]
    before = storm(*rows)
    after = [
        snapshot(6.0 + t, engine(running=9.0, preemptions_total=float(t)), started=99.0)
        for t in range(6)
    ]
    seen = history(*before, *after)
    assert measured(seen, "preemptions_per_second", "10s") == pytest.approx((4 + 5) / 10)
    assert measured(seen, "engine_restarts_total") == 1.0


def test_work_done_twice() -> None:
    """Each second one request of 160 tokens is thrown out, while 160 new tokens come out."""
    rows = [
        snapshot(
            float(t),
            engine(
                kv_usage_ratio=0.1,
                running=10.0,
                preemptions_total=float(t),
                generation_tokens_total=160.0 * t,
            ),
        )
        for t in range(11)
    ]
    seen = history(*rows)
    assert measured(seen, "kv_cache_tokens_per_request") == pytest.approx(160.0)
    assert measured(seen, "preemption_recompute_tokens_per_second") == pytest.approx(160.0)
    assert measured(seen, "work_amplification") == pytest.approx(2.0)


def test_without_the_counter_nothing_is_made_up() -> None:
    seen = history(snapshot(0, engine(preemptions_total=None)), snapshot(9, engine(running=None)))
    assert measured(history(snapshot(0, engine(preemptions_total=None))), "preemptions_total") is (
        None
    )
    assert reason(seen, "preemption_suspected") == "series_missing"
