"""The KV cache otherwise: nearly full, far too big, held by nobody, badly filled, run away with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import CACHE, GIB, engine, snapshot

from sidecar.model import Snapshot
from sidecar.startlog.start import Start
from sidecar.verdicts import (
    fragmentation,
    kv_leaked,
    kv_pressure,
    memory_held,
    over_reserved,
    runaway,
    stalled,
)

from .moments import (
    ENGINE,
    advised,
    avoided,
    figure,
    only,
    own,
    polls,
    said,
    severity,
    situation,
)

# Nearly full.


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        pytest.param({"kv_usage_ratio": 0.9}, True, id="nearly full"),
        pytest.param({"kv_usage_ratio": 0.89}, False, id="room"),
        pytest.param({"preemptions_total": lambda t: t}, False, id="preemptions"),
        pytest.param({"preemptions_total": lambda t: min(t, 5.0)}, True, id="15 s ago"),
        pytest.param({"sleeping": True}, False, id="asleep"),
    ],
)
def test_pressure(fields: dict[str, Any], holds: bool) -> None:
    moment = polls(20, **{"running": 4.0, "kv_usage_ratio": 0.92, **fields})
    assert severity(kv_pressure.RULE, moment) == ("info" if holds else None)


def test_pressure_tells_the_time_left_and_alarms_nobody() -> None:
    rising = polls(20, running=4.0, kv_usage_ratio=lambda t: 0.75 + 0.01 * t)
    verdict = only(kv_pressure.RULE, rising)
    assert figure(verdict, "kv_cache_exhaustion_seconds") == pytest.approx(5.0)
    assert (verdict.advice, verdict.confidence) == ((), "high")
    blind = only(kv_pressure.RULE, polls(20, kv_usage_ratio=0.92, preemptions_total=None))
    assert (blind.confidence, blind.missing) == ("low", ("preemptions_per_second",))


# Far too big.

FLAGS = {"gpu_memory_utilization": "0.9", "max_model_len": "4096"}
LOG = Start(kv_cache_bytes_per_rank=40 * GIB, weights_bytes_per_rank=16 * GIB)


def little_used(seconds: float = 30, *, every: float = 1.0, **fields: Any) -> list[Snapshot]:
    given = {"running": 2.0, "kv_usage_ratio": 0.1, **fields}
    return polls(seconds, every=every, gpus=lambda _: [own(70)], **given)


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(little_used(20), True, id="20 s of serving"),
        pytest.param(little_used(19), False, id="19 s"),
        pytest.param(little_used(running=0.0), False, id="nothing runs"),
        pytest.param(little_used(kv_usage_ratio=0.49), True, id="just under half"),
        pytest.param(little_used(kv_usage_ratio=0.5), False, id="half"),
        pytest.param(
            little_used(kv_usage_ratio=lambda t: 0.6 if t == 1 else 0.1), False, id="one peak"
        ),
        pytest.param(little_used(waiting=lambda t: float(t == 20)), False, id="somebody waited"),
        pytest.param(little_used(waiting=lambda t: float(t == 14)), True, id="long ago"),
        pytest.param(little_used(sleeping=True), False, id="asleep"),
    ],
)
def test_over_reserved(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(over_reserved.RULE, snapshots, flags=FLAGS) == ("info" if holds else None)


@pytest.mark.parametrize(
    ("seconds", "finished", "expected"),
    [
        (30, 499.0, "low"),
        (30, 500.0, "medium"),
        (290, 0.0, "low"),
        (300, 0.0, "medium"),
        (890, 500.0, "medium"),
        (900, 0.0, "high"),
    ],
)
def test_confidence_grows_with_what_was_watched(
    seconds: int, finished: float, expected: str
) -> None:
    moment = little_used(seconds, every=10.0, finished_total=lambda t: finished if t else 0.0)
    flags = {**FLAGS, "max_model_len": "1024"}
    verdict = only(over_reserved.RULE, moment, flags=flags, start=LOG)
    assert verdict.confidence == expected
    # 1.5 x 0.1 x 40 GiB stay of 40; 34 of 80 GiB are given back: 0.9 - 0.425, rounded up.
    assert figure(verdict, "gpu_memory_utilization_target") == 0.48
    if expected == "low":
        assert advised(verdict) == {"none": None}
    else:
        assert advised(verdict) == {"--gpu-memory-utilization": "0.48", "--max-num-seqs": None}
    assert avoided(verdict) == {"--block-size", "--enforce-eager"}


def watched(start: Start | None = LOG, *, flags: dict[str, str] = FLAGS, **fields: Any) -> Any:
    moment = little_used(300, every=10.0, **fields)
    return only(over_reserved.RULE, moment, flags=flags, start=start)


@pytest.mark.parametrize(
    ("usage", "longest", "weights", "to"),
    [
        # 40 GiB hold 16,016 tokens, so one request of 4,096 needs 10.23 GiB.
        pytest.param(0.2, "4096", 1, "0.55", id="1.5 x peak: 12 GiB"),
        pytest.param(0.01, "4096", 1, "0.53", id="one full-length request"),
        pytest.param(0.01, "16016", 1, None, id="one request fills it"),
        pytest.param(0.01, "160", 41, "0.54", id="not below weights, first load and margin"),
        pytest.param(0.01, "160", 75, None, id="nothing to give back"),
    ],
)
def test_how_far_down(usage: float, longest: str, weights: int, to: str | None) -> None:
    log = replace(LOG, weights_bytes_per_rank=weights * GIB)
    verdict = watched(log, flags={**FLAGS, "max_model_len": longest}, kv_usage_ratio=usage)
    assert advised(verdict).get("--gpu-memory-utilization") == to


def test_without_the_size_shares_only() -> None:
    verdict = watched(None)
    assert verdict.missing == ("kv_cache_bytes (log)",)
    assert figure(verdict, "gpu_memory_utilization_target") is None
    assert advised(verdict) == {"--max-num-seqs": None}


def test_room_is_given_back_by_the_flag_in_force() -> None:
    size = str(40 * GIB)
    labels = {"kv_cache_memory_bytes": size}
    cache = replace(CACHE, kv_cache_memory_bytes=40 * GIB, labels=labels)
    verdict = watched(cache=cache)
    assert "--gpu-memory-utilization" not in advised(verdict)
    assert figure(verdict, "gpu_memory_utilization_target") is None
    # One request of 4,096 of 16,016 tokens.
    assert int(advised(verdict)["--kv-cache-memory-bytes"] or 0) == pytest.approx(
        40 * GIB * 4096 / 16_016, abs=1
    )
    fixed = replace(
        CACHE, num_gpu_blocks_override=1_001, labels={"num_gpu_blocks_override": "1001"}
    )
    assert advised(watched(cache=fixed)) == {"--max-num-seqs": None}


# Concurrency fell, memory did not.


def drop(
    to: float = 4.0, later: float = 40.0, usage: float = 0.05, **fields: Any
) -> list[Snapshot]:
    return [
        *polls(20, running=32.0, kv_usage_ratio=0.4, gpus=lambda _: [own(40)]),
        *polls(
            20,
            first=21.0,
            running=to,
            kv_usage_ratio=usage,
            gpus=lambda _: [own(later)],
            **fields,
        ),
    ]


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(drop(), True, id="memory stays"),
        pytest.param(drop(8.0), True, id="by three quarters"),
        pytest.param(drop(9.0), False, id="by less"),
        pytest.param(drop(later=36.1), True, id="memory falls by less than a tenth"),
        pytest.param(drop(later=35.9), False, id="memory falls by a tenth"),
        pytest.param(drop(sleeping=True), False, id="asleep"),
        pytest.param(polls(20, running=4.0, gpus=lambda _: [own(40)]), False, id="no drop"),
    ],
)
def test_memory_held(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(memory_held.RULE, snapshots) == ("info" if holds else None)


@pytest.mark.parametrize(
    ("usage", "came_back"), [(0.05, True), (0.22, True), (0.23, False), (0.4, False)]
)
def test_blocks_that_came_back_are_told(usage: float, came_back: bool) -> None:
    verdict = only(memory_held.RULE, drop(usage=usage))
    assert ("nothing leaks" in verdict.summary) == came_back
    assert "leak" not in verdict.summary.replace("nothing leaks", "")
    assert verdict.advice == ()


def test_memory_that_nobody_measured_is_not_held() -> None:
    unseen = [replace(poll, gpus=None) for poll in drop()]
    assert not said(memory_held.RULE, unseen)


# Held by nobody.


def idle(seconds: float, usage: float = 0.2, **fields: Any) -> list[Snapshot]:
    return polls(seconds, every=10.0, kv_usage_ratio=usage, **fields)


@pytest.mark.parametrize(
    ("snapshots", "flags", "holds"),
    [
        pytest.param(idle(120), {}, True, id="for two minutes"),
        pytest.param(idle(110), {}, False, id="for less"),
        pytest.param(idle(300, running=1.0), {}, False, id="something runs"),
        pytest.param(idle(300, waiting=1.0), {}, False, id="something waits"),
        pytest.param(idle(300, running=lambda t: float(t == 200)), {}, False, id="ran lately"),
        pytest.param(idle(300, 0.0), {}, False, id="nothing held"),
        pytest.param(idle(300, sleeping=True), {}, False, id="asleep"),
        pytest.param(idle(300, 1 / 1001, version="0.10.1"), {}, False, id="the idle floor"),
        pytest.param(idle(300, 1 / 1001, version="0.10.2"), {}, True, id="no floor any more"),
        pytest.param(idle(300, 2 / 1001, version="0.10.1"), {}, True, id="above the floor"),
        pytest.param(
            idle(300, 0.001, version="0.8.4", cache=None), {}, False, id="a floor of unknown size"
        ),
        pytest.param(
            idle(300, 0.06, version="0.8.4", cache=None), {}, True, id="more than any floor"
        ),
        pytest.param(idle(590), {"kv_transfer_config": "{}"}, False, id="a connector may wait"),
        pytest.param(idle(600), {"kv_transfer_config": "{}"}, True, id="beyond its time-out"),
    ],
)
def test_leaked(snapshots: list[Snapshot], flags: dict[str, str], holds: bool) -> None:
    expected = "warning" if holds else None
    assert severity(kv_leaked.RULE, snapshots, flags=flags) == expected


def test_a_leak_is_cured_by_a_restart_of_that_engine() -> None:
    verdict = only(kv_leaked.RULE, idle(150))
    assert (verdict.scope, verdict.confidence) == (ENGINE, "high")
    assert advised(verdict) == {"restart": None}
    assert figure(verdict, "idle_seconds") == 150.0
    assert "--gpu-memory-utilization" in avoided(verdict)


def test_a_restart_begins_the_wait_anew() -> None:
    lives = [*idle(300), snapshot(310, engine(kv_usage_ratio=0.2), started=300.0)]
    assert not said(kv_leaked.RULE, lives)


# Badly filled.


def short_requests(
    seconds: float = 20, *, running: float, usage: float, blocks: int = 16
) -> list[Snapshot]:
    """Requests in progress since before the sidecar: only an estimate can be had."""
    cache = replace(CACHE, block_size=blocks, kv_cache_size_tokens=blocks * 1_001)
    return polls(seconds, running=running, kv_usage_ratio=usage, cache=cache)


@pytest.mark.parametrize(
    ("running", "usage", "expected"),
    [
        # R x 7.5 of U x 16,000 slots.
        pytest.param(160.0, 0.5, "info", id="15 %"),
        pytest.param(159.0, 0.5, None, id="a little less"),
        pytest.param(300.0, 0.89, "info", id="blocks are not scarce"),
        pytest.param(300.0, 0.9, "warning", id="blocks are scarce"),
    ],
)
def test_fragmentation(running: float, usage: float, expected: str | None) -> None:
    moment = short_requests(running=running, usage=usage)
    assert severity(fragmentation.RULE, moment) == expected


@pytest.mark.parametrize(
    ("blocks", "usage", "to"),
    [
        pytest.param(128, 0.95, "64", id="half of it"),
        pytest.param(32, 0.95, "16", id="the smallest"),
        pytest.param(16, 0.95, None, id="no smaller one"),
        pytest.param(128, 0.5, None, id="not scarce"),
    ],
)
def test_smaller_blocks_only_where_they_are_scarce(
    blocks: int, usage: float, to: str | None
) -> None:
    verdict = only(fragmentation.RULE, short_requests(running=400.0, usage=usage, blocks=blocks))
    assert advised(verdict).get("--block-size") == to
    assert ("--block-size" in avoided(verdict)) == (usage < 0.9)
    assert verdict.confidence == "medium"
    if to is not None:
        assert "slots gained" in verdict.advice[0].expect


def measured_fragmentation(*, preempted: float = 0.0) -> list[Snapshot]:
    """After an idle moment 100 requests of 12 tokens each hold a block of 16 each: 25 % empty."""
    running: dict[str, Any] = {
        "running": 100.0,
        "kv_usage_ratio": 0.1,
        "prompt_tokens_total": 1_200.0,
        "first_tokens_total": 100.0,
    }
    last = snapshot(10, engine(**running, preemptions_total=preempted))
    return [*polls(5), *polls(3, first=6.0, **running), last]


def test_what_was_measured_is_certain_until_the_books_are_spoiled() -> None:
    verdict = only(fragmentation.RULE, measured_fragmentation())
    assert (verdict.confidence, verdict.severity) == ("high", "info")
    assert figure(verdict, "kv_cache_internal_fragmentation_ratio") == pytest.approx(0.25)
    spoiled = only(fragmentation.RULE, measured_fragmentation(preempted=1.0))
    assert spoiled.confidence == "medium"
    assert figure(spoiled, "kv_cache_internal_fragmentation_ratio") == pytest.approx(0.46875)


def test_long_requests_are_never_fragmented() -> None:
    assert not said(fragmentation.RULE, short_requests(running=4.0, usage=0.95, blocks=128))


# Run away with.

HISTORY = {
    "finished_total": 100.0,
    "finished_prompt_tokens_total": 20_000.0,
    "finished_generation_tokens_total": 30_000.0,  # 500 tokens each, so 2,500 are five times that
}


def long_run(
    usage_at: Callable[[float], float], *, tokens: float = 20.0, **fields: Any
) -> list[Snapshot]:
    changing = {"generation_tokens_total": lambda t: 30_000.0 + tokens * t}
    given = {"running": 1.0, "kv_usage_ratio": usage_at, **HISTORY, **changing, **fields}
    return polls(130, **given)


def grows_to(end: float) -> Callable[[float], float]:
    """From 2,400 tokens below."""
    return lambda t: end - 0.15 * (1 - t / 130)


@pytest.mark.parametrize(
    ("snapshots", "longest", "expected"),
    [
        pytest.param(long_run(grows_to(0.5)), None, "runaway_request", id="it generates"),
        pytest.param(long_run(grows_to(0.5), tokens=2.0), None, "kv_unexplained", id="or not"),
        pytest.param(
            long_run(grows_to(0.5), tokens=10.0), None, "runaway_request", id="half of it"
        ),
        pytest.param(long_run(grows_to(0.5), tokens=9.0), None, "kv_unexplained", id="less"),
        pytest.param(long_run(grows_to(2_500 / 16_000)), None, "runaway_request", id="five times"),
        pytest.param(long_run(grows_to(2_480 / 16_000)), None, None, id="not quite"),
        pytest.param(long_run(grows_to(0.5)), "16000", "runaway_request", id="half of the longest"),
        pytest.param(long_run(grows_to(0.5)), "16100", None, id="less than half"),
        pytest.param(long_run(grows_to(0.5), finished_total=None), None, None, id="no counter"),
        pytest.param(
            long_run(grows_to(0.5), finished_total=lambda t: 100.0 + (t > 60)),
            None,
            None,
            id="ends",
        ),
        pytest.param(long_run(grows_to(0.5), running=4.0), "100", None, id="2,000 each"),
        pytest.param(long_run(grows_to(0.9), running=4.0), None, "runaway_request", id="four"),
        pytest.param(long_run(grows_to(0.99), running=5.0), None, None, id="five are many"),
        pytest.param(long_run(grows_to(0.5), sleeping=True), None, None, id="asleep"),
        pytest.param(long_run(grows_to(0.5))[:119], None, None, id="too short"),
    ],
)
def test_runaway(snapshots: list[Snapshot], longest: str | None, expected: str | None) -> None:
    flags = {} if longest is None else {"max_model_len": longest}
    rules = (runaway.RUNAWAY, runaway.UNEXPLAINED)
    found = [v for rule in rules for v in said(rule, snapshots, flags=flags)]
    assert [verdict.code for verdict in found] == ([expected] if expected else [])
    for verdict in found:
        assert verdict.severity == "info"
        assert not [flag for flag in advised(verdict) if flag.startswith("--")]
        assert "leak" not in verdict.summary


def test_a_little_is_no_runaway() -> None:
    tiny = {**HISTORY, "finished_prompt_tokens_total": 0.0, "finished_total": 10_000.0}
    assert not said(runaway.RUNAWAY, long_run(lambda t: 0.049, **tiny))
    assert said(runaway.RUNAWAY, long_run(lambda t: 0.05, **tiny))


# Nothing moves.


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(polls(30, running=2.0), True, id="for half a minute"),
        pytest.param(polls(29, running=2.0), False, id="for less"),
        pytest.param(polls(60, running=0.0), False, id="nothing runs"),
        pytest.param(polls(60, running=2.0, sleeping=True), False, id="asleep"),
        pytest.param(
            polls(60, running=2.0, generation_tokens_total=lambda t: t), False, id="tokens"
        ),
        pytest.param(
            polls(60, running=2.0, prefix_queries_total=lambda t: t), False, id="a pooling model"
        ),
    ],
)
def test_stalled(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(stalled.RULE, snapshots) == ("critical" if holds else None)


@pytest.mark.parametrize(
    ("answer", "holds", "missing"),
    [(None, True, ("is_paused",)), (False, True, ()), (True, False, ())],
)
def test_a_pause_is_no_stall(answer: bool | None, holds: bool, missing: tuple[str, ...]) -> None:
    freeze = [replace(poll, paused=answer) for poll in polls(40, running=2.0)]
    found = said(stalled.RULE, freeze)
    assert bool(found) == holds
    for verdict in found:
        assert verdict.missing == missing
        assert "pause" in verdict.advice[0].why
        assert avoided(verdict) == {"--gpu-memory-utilization", "--max-num-seqs"}
        assert list(advised(verdict)) == ["look", "restart"]


@pytest.mark.parametrize(
    "rule",
    [kv_pressure.RULE, over_reserved.RULE, kv_leaked.RULE, fragmentation.RULE, stalled.RULE],
    ids=lambda rule: rule.code,
)
def test_nothing_is_said_of_an_engine_without_usage(rule: Any) -> None:
    bare = polls(200, every=10.0, kv_usage_ratio=None, generation_tokens_total=lambda t: t)
    assert list(rule.judge(situation(bare))) == []
