from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import CACHE, engine, history, measured, reason, snapshot

from sidecar.model import Snapshot

RATIO = "kv_cache_internal_fragmentation_ratio"
BOUND = "kv_cache_internal_fragmentation_max_ratio"


def busy(at: float, **changes: float) -> Snapshot:
    """Ten requests in 100 blocks of 16 with 1,520 tokens: 80 of 1,600 slots are empty."""
    fields = {
        "kv_usage_ratio": 0.1,
        "running": 10.0,
        "prompt_tokens_total": 1_520.0,
        "first_tokens_total": 10.0,
        **changes,
    }
    return snapshot(at, engine(**fields))


def test_measured_from_the_balance_of_tokens() -> None:
    seen = history(snapshot(0, engine()), *(busy(float(t)) for t in range(1, 5)))
    assert measured(seen, "kv_cache_resident_tokens") == 1_520.0
    assert measured(seen, RATIO, "measured") == pytest.approx(0.05)
    assert measured(seen, RATIO, "estimated") is None
    assert measured(seen, BOUND) == pytest.approx(150 / 1_600)


def test_finished_requests_leave_the_balance() -> None:
    later = busy(
        2,
        prompt_tokens_total=3_000.0,
        generation_tokens_total=500.0,
        finished_prompt_tokens_total=1_600.0,
        finished_generation_tokens_total=380.0,
        first_tokens_total=20.0,
        finished_total=10.0,
    )
    seen = history(snapshot(0, engine()), busy(1), later)
    assert measured(seen, "kv_cache_resident_tokens") == 1_520.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"preemptions_total": 1.0}, "preemptions", id="a preemption"),
        pytest.param({"first_tokens_total": 11.0}, "requests_lost", id="a client went away"),
        pytest.param(
            {"prefix_queries_total": 1_000.0, "prefix_hits_total": 20.0}, "prefix_hits", id="hits"
        ),
        pytest.param({"finished_prompt_tokens_total": None}, "series_missing", id="no counter"),
    ],
)
def test_a_balance_in_doubt_leaves_the_estimate(changes: dict[str, float], why: str) -> None:
    seen = history(snapshot(0, engine()), busy(1, **changes))
    assert measured(seen, RATIO, "measured") is None
    assert measured(seen, RATIO, "estimated") == pytest.approx(75 / 1_600)
    assert measured(seen, "kv_cache_resident_tokens") is None
    assert reason(seen, "kv_cache_resident_tokens") == why


def test_few_prefix_hits_are_no_doubt() -> None:
    hits = {"prefix_queries_total": 1_000.0, "prefix_hits_total": 10.0}
    seen = history(snapshot(0, engine()), busy(1, **hits))
    assert measured(seen, RATIO, "measured") is not None


def test_a_server_met_while_it_works_is_only_estimated() -> None:
    seen = history(busy(0), busy(1))
    assert measured(seen, RATIO, "measured") is None
    assert reason(seen, "kv_cache_resident_tokens") == "not_idle_yet"


def test_a_poll_above_the_bound_is_left_out() -> None:
    """Prompt tokens are counted at the first token, blocks are held from the start."""
    early = busy(1, prompt_tokens_total=100.0)
    seen = history(snapshot(0, engine()), early)
    assert measured(seen, RATIO, "measured") is None
    assert measured(seen, RATIO, "estimated") is not None
    assert measured(history(snapshot(0, engine()), early, busy(2)), RATIO, "measured") == (
        pytest.approx(0.05)
    )


def test_blocks_that_serve_several_requests() -> None:
    shared = busy(
        1, prompt_tokens_total=4_800.0, prefix_queries_total=4_800.0, prefix_hits_total=3_000.0
    )
    seen = history(snapshot(0, engine()), shared)
    assert measured(seen, "kv_cache_sharing_factor") == pytest.approx(3.0)
    assert measured(history(snapshot(0, engine()), busy(1)), "kv_cache_sharing_factor") is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"running": 0.0}, "nothing_running", id="idle"),
        pytest.param({"kv_usage_ratio": 0.0}, "nothing_running", id="no block in use"),
        pytest.param(
            {"cache": replace(CACHE, kv_cache_size_tokens=99)}, "block_size_unknown", id="hybrid"
        ),
    ],
)
def test_no_figure_where_there_is_nothing_to_measure(changes: dict[str, float], why: str) -> None:
    seen = history(snapshot(0, engine()), busy(1, **changes))
    assert measured(seen, RATIO) is None
    assert measured(seen, BOUND) is None
    assert reason(seen, BOUND) == why


def test_lost_requests_are_counted_once_a_busy_period() -> None:
    polls = [snapshot(0, engine())]
    for period in (0, 1):
        before = {"first_tokens_total": 10.0 * period, "finished_total": 7.0 * period}
        start = 10.0 * period
        polls += [
            busy(start + 1, running=10.0, **{**before, "first_tokens_total": 10.0 + 10 * period}),
            # Three clients leave: nobody finished, seven still run.
            busy(start + 2, running=7.0, **{**before, "first_tokens_total": 10.0 + 10 * period}),
            snapshot(
                start + 3,
                engine(first_tokens_total=10.0 + 10 * period, finished_total=7.0 + 7.0 * period),
            ),
        ]
    assert measured(history(*polls[:3]), "requests_lost_total") == 3.0
    assert measured(history(*polls), "requests_lost_total") == 6.0
