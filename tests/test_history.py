from __future__ import annotations

from synthetic import engine, history, measured, snapshot

from sidecar.history import MOST_ENGINES


def test_a_refused_page_takes_the_series_at_once() -> None:
    seen = history(snapshot(0, engine()), snapshot(1, failure="refused"))
    assert seen.engines == ()
    assert measured(seen, "requests_running") is None


def test_one_time_out_may_be_a_late_page_two_are_not() -> None:
    polls = [snapshot(0, engine(running=3.0)), snapshot(5, failure="timeout")]
    assert measured(history(*polls), "requests_running") == 3.0
    assert measured(history(*polls, snapshot(10, failure="timeout")), "requests_running") is None


def test_a_page_between_starts_the_count_anew() -> None:
    polls = [
        snapshot(0, engine(running=3.0)),
        snapshot(5, failure="timeout"),
        snapshot(6, engine(running=4.0)),
        snapshot(11, failure="timeout"),
    ]
    assert measured(history(*polls), "requests_running") == 4.0


def test_a_poll_without_news_changes_nothing() -> None:
    seen = history(snapshot(0, engine(running=3.0)), snapshot(1), snapshot(2))
    assert measured(seen, "requests_running") == 3.0


def test_engines_are_kept_apart() -> None:
    pages = [
        snapshot(
            float(t),
            engine(kv_usage_ratio=0.10, preemptions_total=0.0),
            engine(engine="1", kv_usage_ratio=0.97, preemptions_total=float(t)),
        )
        for t in range(11)
    ]
    seen = history(*pages)
    assert measured(seen, "kv_cache_usage_ratio", "m", "0") == 0.10
    assert measured(seen, "kv_cache_usage_ratio", "m", "1") == 0.97
    assert measured(seen, "preemptions_per_second", "0", "10s") == 0.0
    assert measured(seen, "preemptions_per_second", "1", "10s") == 1.0


def test_an_engine_that_is_gone_from_the_page_is_gone() -> None:
    seen = history(snapshot(0, engine(), engine(engine="1")), snapshot(1, engine()))
    assert measured(seen, "requests_running", "m", "1") is None


def test_a_restart_is_known_by_its_start_time() -> None:
    seen = history(
        snapshot(0, engine(generation_tokens_total=5.0)),
        snapshot(1, engine(generation_tokens_total=9.0), started=2.0),
    )
    assert measured(seen, "engine_restarts_total") == 1.0


def test_a_restart_is_known_by_falling_counters_where_there_is_no_start_time() -> None:
    """Several API servers share their counters in files, and show no process series."""
    seen = history(
        snapshot(0, engine(generation_tokens_total=5.0), started=None),
        snapshot(1, engine(generation_tokens_total=4.0), started=None),
    )
    assert measured(seen, "engine_restarts_total") == 1.0


def test_an_endless_list_of_engines_is_cut() -> None:
    many = [engine(engine=str(number)) for number in range(MOST_ENGINES + 50)]
    assert len(history(snapshot(0, *many)).engines) == MOST_ENGINES


def test_the_release_is_remembered_while_the_server_is_down() -> None:
    seen = history(snapshot(0, engine(), version="0.10.1"), snapshot(1, engine(), version=None))
    assert seen.release == (0, 10, 1)
