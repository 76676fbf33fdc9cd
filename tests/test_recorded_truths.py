"""What a real vLLM on real GPUs did, and what the sidecar must say of it."""

from __future__ import annotations

from statistics import median

import pytest
from recorded import in_phase, number, played, value, values

from sidecar.model import Histogram

ALL = (
    "block16-short",
    "eager-32-4-0",
    "fail-neighbour",
    "fail-no-kv",
    "graphs-32-4-0",
    "kill-restart",
    "lowuse-c2",
    "neighbour-grows",
    "pause-keep",
    "preempt-storm",
    "runtime-oom",
    "sleep-wake",
    "tp2-32-4-0",
)
GIB = 2**30


@pytest.mark.parametrize("name", ["graphs-32-4-0", "eager-32-4-0"])
def test_memory_is_held_and_blocks_come_back_when_concurrency_falls(name: str) -> None:
    last = in_phase(name, "c4")[-1]
    assert number(last, "concurrency_drop_ratio") == 0.875
    assert abs(number(last, "gpu_memory_drop_ratio")) < 0.001
    assert 0.85 <= number(last, "kv_cache_drop_ratio") <= 0.93
    assert abs(number(last, "memory_to_concurrency_drop_ratio")) < 0.001
    assert number(last, "gpu_memory_held") == 1.0


def test_no_drop_is_claimed_while_concurrency_stays() -> None:
    for frame in in_phase("graphs-32-4-0", "c32"):
        assert value(frame, "concurrency_drop_ratio") is None
        assert value(frame, "gpu_memory_held") is None


def test_two_gpus_of_one_server_are_summed() -> None:
    last = in_phase("tp2-32-4-0", "c4")[-1]
    each = values(last, "gpu_memory_owner_bytes", owner="vllm")
    assert len(each) == 2
    assert min(each) > 80 * GIB
    # Either device alone would hide what the other one does, so the drop is that of the sum.
    assert abs(number(last, "gpu_memory_drop_ratio")) < 0.001
    assert number(last, "concurrency_drop_ratio") == 0.875
    assert number(last, "gpu_memory_held") == 1.0


def test_all_preemptions_of_the_storm_are_counted() -> None:
    assert number(in_phase("preempt-storm", "c128")[-1], "preemptions_total") == 88.0


def test_suspicion_is_no_later_than_the_counter() -> None:
    suspected = counted = None
    for frame in in_phase("preempt-storm", "c128"):
        if suspected is None and value(frame, "preemption_suspected") == 1.0:
            suspected = frame.at
        if counted is None and number(frame, "preemptions_total") > 0:
            counted = frame.at
    assert suspected is not None
    assert counted is not None
    assert suspected <= counted


@pytest.mark.parametrize("name", [name for name in ALL if name != "preempt-storm"])
def test_no_preemption_is_suspected_elsewhere(name: str) -> None:
    assert not any(value(frame, "preemption_suspected") for frame in played(name))


def test_the_storm_repeats_more_work_than_it_gets_done() -> None:
    last = in_phase("preempt-storm", "c128")[-1]
    assert number(last, "work_amplification") > 2.0
    assert number(last, "preemptions_per_finished_request") > 5.0
    # 6,124 tokens a second at best and 2,412 at the end, as means over ten seconds.
    best = max(number(f, "generation_tokens_per_second") for f in in_phase("preempt-storm", "c128"))
    assert best == pytest.approx(6_124, rel=0.01)
    assert number(last, "generation_tokens_per_second") == pytest.approx(2_412, rel=0.01)


def test_a_resume_after_a_pause_is_no_shortage() -> None:
    """The counter jumps by 16 while a tenth of the pool is in use."""
    after = in_phase("pause-keep", "c16")[-1]
    assert number(after, "preemptions_total") == 16.0
    for frame in played("pause-keep"):
        peak = value(frame, "kv_cache_usage_peak_ratio", window="60s")
        assert peak is None or peak < 0.9


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_negative_that_cannot_be(name: str) -> None:
    may_fall = {
        "gpu_memory_drop_ratio",
        "kv_cache_drop_ratio",
        "memory_to_concurrency_drop_ratio",
        "gpu_memory_growth_bytes",
        "gpu_memory_growth_bytes_per_hour",
    }
    for frame in played(name):
        for sample in frame.samples:
            if not isinstance(sample.value, Histogram) and sample.declaration.name not in may_fall:
                assert sample.value >= 0.0, (name, frame.at, sample)


def test_a_restart_is_seen_and_counts_for_nothing_else() -> None:
    before, after = in_phase("kill-restart", "c32")[11], in_phase("kill-restart", "c32")[-1]
    assert number(before, "engine_restarts_total") == 0.0
    assert number(after, "engine_restarts_total") == 1.0
    for frame in played("kill-restart"):
        rate = value(frame, "generation_tokens_per_second")
        assert rate is None or rate < 2_000
        assert value(frame, "concurrency_drop_ratio") in (None, 1.0)


def test_a_server_that_is_down_leaves_no_series() -> None:
    gone = [f for f in in_phase("kill-restart", "c0") if f.snapshot.failure is not None]
    assert len(gone) == 41
    for frame in gone:
        for sample in frame.samples:
            labels = dict(zip(sample.declaration.labels, sample.labels, strict=True))
            assert not labels.get("model_name"), sample
        assert value(frame, "source_up", source="vllm") == 0.0
        assert number(frame, "gpu_memory_total_bytes", gpu="0") > 0


def test_fragmentation_of_short_requests_is_measured() -> None:
    found = []
    for frame in in_phase("block16-short", "c256"):
        measured = value(frame, "kv_cache_internal_fragmentation_ratio", method="measured")
        bound = number(frame, "kv_cache_internal_fragmentation_max_ratio")
        if measured is not None:
            assert measured <= bound
            found.append(measured)
            # One of the two methods at a time, so that nobody adds or averages them.
            assert len(values(frame, "kv_cache_internal_fragmentation_ratio")) == 1
    assert len(found) >= 15
    assert 0.08 <= median(found) <= 0.12


def test_fragmentation_of_long_requests_is_small() -> None:
    found = [
        measured
        for frame in in_phase("graphs-32-4-0", "c32")
        if (measured := value(frame, "kv_cache_internal_fragmentation_ratio", method="measured"))
        is not None
    ]
    assert median(found) == pytest.approx(0.007, abs=0.002)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("graphs-32-4-0", range(30, 32)),  # 31 clients are cut off at the step from 32 to 4
        ("eager-32-4-0", range(30, 32)),
        ("block16-short", range(1)),
        ("lowuse-c2", range(1)),
        ("pause-keep", range(1)),
        ("neighbour-grows", range(1)),
    ],
)
def test_requests_whose_client_left_are_counted(name: str, lost: range) -> None:
    counted = [value(frame, "requests_lost_total") for frame in played(name)]
    assert max(count for count in counted if count is not None) in lost


def test_a_neighbour_is_told_from_the_server() -> None:
    last = in_phase("neighbour-grows", "idle1")[-1]
    assert 40 * GIB < number(last, "gpu_memory_owner_bytes", owner="other") < 41 * GIB
    first = in_phase("neighbour-grows", "idle0")[-1]
    assert number(first, "gpu_memory_owner_bytes", owner="other") == 0.0
    for frame in in_phase("neighbour-grows", "c16"):
        held = number(frame, "gpu_memory_owner_bytes", owner="vllm")
        assert held == pytest.approx(70.9 * GIB, abs=GIB)


def test_owners_add_up_to_what_is_used() -> None:
    for name in ALL:
        for frame in played(name):
            used = values(frame, "gpu_memory_used_bytes")
            owned = values(frame, "gpu_memory_owner_bytes")
            assert sum(used) == sum(owned)


def test_low_use_is_a_fact() -> None:
    last = in_phase("lowuse-c2", "c2")[-1]
    assert number(last, "kv_cache_usage_peak_ratio", window="1h") < 0.001
    assert number(last, "kv_cache_underused_seconds_total") == number(last, "serving_seconds_total")
    # Less than a minute of serving is too little to call it anything.
    assert value(last, "kv_cache_underused") is None


def test_sleep_is_seen_when_the_server_says_so() -> None:
    asleep = [f for f in played("sleep-wake") if value(f, "engine_sleeping") == 1.0]
    assert len(asleep) == 3
    assert not any(value(f, "engine_stalled") for f in played("sleep-wake"))
    # A drop test across sleep would compare two different things.
    assert all(
        value(f, "concurrency_drop_ratio") is None for f in in_phase("sleep-wake", "c16")[-8:]
    )


def test_a_server_that_never_came_up_has_gpu_series_only() -> None:
    for frame in played("fail-no-kv"):
        assert values(frame, "kv_cache_usage_ratio") == []
        assert number(frame, "source_up", source="vllm") == 0.0
        assert number(frame, "gpu_memory_total_bytes") > 0
