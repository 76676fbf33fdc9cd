"""The pool is full and requests are thrown back: when it counts, and what to do in which order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import CACHE, GIB

from sidecar.model import CacheConfig, GpuReading, Snapshot
from sidecar.startlog.start import Start
from sidecar.verdicts import kv_exhausted
from sidecar.verdicts.kv_remedies import fitting_sequences

from .moments import ENGINE, advised, avoided, card, figure, only, own, polls, severity, situation

RULE = kv_exhausted.RULE
Field = Callable[[float], float]


def storm(
    seconds: float = 40,
    *,
    per_finished: float | None = 0.6,
    usage: float | Field = 0.99,
    gpus: Callable[[float], list[GpuReading]] | None = None,
    version: str | None = "0.25.0",
    cache: CacheConfig = CACHE,
    **fields: Any,
) -> list[Snapshot]:
    """20 run, 20 wait, a request a second finishes after 800 tokens (one in 20 blocks of the
    pool), and so many preemptions come with each."""
    changing: dict[str, Any] = {
        "finished_total": (lambda t: t) if per_finished is not None else 0.0,
        "finished_prompt_tokens_total": lambda t: 300.0 * t,
        "finished_generation_tokens_total": lambda t: 500.0 * t,
        "preemptions_total": lambda t: (per_finished or 0.0) * t,
        "generation_tokens_total": lambda t: 500.0 * t,
        "prompt_tokens_total": lambda t: 300.0 * t,
    }
    return polls(
        seconds,
        gpus=gpus,
        version=version,
        running=fields.pop("running", 20.0),
        waiting=fields.pop("waiting", 20.0),
        kv_usage_ratio=usage,
        cache=cache,
        **{**changing, **fields},
    )


def jumps(*at: float, by: float = 1.0) -> Field:
    """A counter that rises at these seconds."""
    return lambda t: by * sum(1 for moment in at if t >= moment)


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(storm(), True, id="full, and preemptions"),
        pytest.param(storm(per_finished=0.1), True, id="one in ten"),
        pytest.param(storm(per_finished=0.08), False, id="8 % is healthy"),
        pytest.param(storm(usage=0.95), True, id="just full"),
        pytest.param(storm(usage=0.949), False, id="not quite full"),
        pytest.param(storm(usage=lambda t: 0.99 if t < 5 else 0.5), True, id="full lately"),
        pytest.param(
            storm(90, usage=lambda t: 0.99 if t < 30 else 0.5), False, id="full a minute ago"
        ),
        pytest.param(storm(preemptions_total=jumps(5.0, by=9.0)), False, id="over for 30 s"),
        pytest.param(storm(preemptions_total=0.0), False, id="full, and nothing preempted"),
        pytest.param(storm(sleeping=True), False, id="asleep"),
    ],
)
def test_full_and_moving(snapshots: list[Snapshot], holds: bool) -> None:
    assert bool(severity(RULE, snapshots)) == holds


@pytest.mark.parametrize(
    ("counter", "holds"),
    [
        pytest.param(jumps(20.0, 25.0, 30.0), True, id="three, ten seconds apart"),
        pytest.param(jumps(20.0, 25.0), False, id="two"),
        pytest.param(jumps(20.0, 25.0, by=1.5), True, id="three at two polls, 5 s apart"),
        pytest.param(jumps(20.0, 24.0, by=1.5), False, id="4 s apart"),
        pytest.param(jumps(20.0, by=16.0), False, id="one jump, as after a pause"),
        pytest.param(jumps(9.0, 15.0, 30.0), False, id="one of them too long ago"),
    ],
)
def test_without_finished_requests_preemptions_are_counted(counter: Field, holds: bool) -> None:
    moment = storm(per_finished=None, preemptions_total=counter)
    assert bool(severity(RULE, moment)) == holds


@pytest.mark.parametrize(("times", "holds"), [((30,), False), ((30, 34), True)])
def test_two_suspicions_are_as_good_as_the_counter(times: tuple[int, ...], holds: bool) -> None:
    """Running falls by 2 and waiting rises by 2 for a single poll, the counter says nothing."""
    moment = storm(
        preemptions_total=None,
        finished_total=None,
        running=lambda t: 18.0 if t in times else 20.0,
        waiting=lambda t: 22.0 if t in times else 20.0,
    )
    assert bool(severity(RULE, moment)) == holds


@pytest.mark.parametrize(("times", "holds"), [((30,), False), ((30, 34), True)])
def test_suspicions_count_where_the_counter_has_hardly_moved(
    times: tuple[int, ...], holds: bool
) -> None:
    moment = storm(
        per_finished=None,
        preemptions_total=jumps(35.0),
        running=lambda t: 18.0 if t in times else 20.0,
        waiting=lambda t: 22.0 if t in times else 20.0,
    )
    assert bool(severity(RULE, moment)) == holds


def test_a_resume_after_a_pause_with_room_is_silent() -> None:
    moment = storm(per_finished=None, usage=0.1, preemptions_total=jumps(20.0, 26.0, by=16.0))
    assert severity(RULE, moment) is None


def slower(loss: float, after: float = 30.0) -> Field:
    """Tokens of a server that falls behind its best rate by a share after so many seconds."""
    return lambda t: 1000.0 * (min(t, after) + max(0.0, t - after) * (1.0 - loss))


@pytest.mark.parametrize(
    ("loss", "waiting_later", "expected"),
    [
        pytest.param(0.0, 20.0, "warning", id="throughput holds"),
        pytest.param(0.24, 20.0, "warning", id="a little less"),
        pytest.param(0.26, 20.0, "critical", id="a quarter less"),
        pytest.param(0.26, 0.0, "critical", id="as much is asked for"),
        pytest.param(0.26, -1.0, "warning", id="less is asked for"),
    ],
)
def test_critical_when_it_costs_throughput(
    loss: float, waiting_later: float, expected: str
) -> None:
    moment = storm(
        60,
        generation_tokens_total=slower(loss),
        prompt_tokens_total=0.0,
        waiting=lambda t: 20.0 if t <= 45 else max(0.0, waiting_later),
        running=lambda t: 20.0 if t <= 45 else 20.0 + min(0.0, waiting_later),
    )
    verdict = only(RULE, moment)
    assert verdict.severity == expected
    assert (figure(verdict, "throughput_loss_ratio") is None) == (waiting_later < 0)
    said_of_throughput = "throughput still holds" in verdict.summary
    assert said_of_throughput == (expected == "warning" and waiting_later >= 0)


def test_when_the_pool_has_emptied_it_is_not_called_full() -> None:
    verdict = only(RULE, storm(usage=lambda t: 0.99 if t < 25 else 0.3))
    assert "was full" in verdict.summary
    assert "holds" not in verdict.summary


def test_evidence_and_confidence() -> None:
    verdict = only(RULE, storm(per_finished=0.5))
    assert verdict.scope == ENGINE
    assert figure(verdict, "kv_cache_usage_peak_ratio") == 0.99
    assert figure(verdict, "preemptions_per_finished_request") == pytest.approx(0.5)
    assert verdict.confidence == "high"
    assert verdict.missing == ("log", "nvml")
    few = storm(per_finished=None, preemptions_total=jumps(20.0, 25.0, 30.0))
    assert only(RULE, few).confidence == "medium"


FLAGS = {"gpu_memory_utilization": "0.5", "max_num_seqs": "64", "kv_cache_dtype": "auto"}
LOG = Start(kv_cache_bytes_per_rank=20 * GIB)


def roomy(_: float) -> list[GpuReading]:
    return [own(40)]


def test_the_order_of_remedies() -> None:
    verdict = only(RULE, storm(gpus=roomy), flags=FLAGS, start=LOG)
    assert list(advised(verdict).items()) == [
        ("--gpu-memory-utilization", "0.99"),
        ("--kv-cache-dtype", "fp8"),
        ("--watermark", "0.3"),
        ("--max-num-seqs", "20"),
        ("--kv-offloading-size", None),
        ("--max-model-len", None),
    ]
    assert "16,016 tokens become about" in verdict.advice[0].expect
    assert avoided(verdict) == {"--block-size", "--enforce-eager"}
    assert verdict.missing == ()


@pytest.mark.parametrize(
    ("held", "now", "to"),
    [
        # (held + free - 0.8 of margin) / 80 GiB, rounded down.
        pytest.param(40.0, "0.5", "0.99", id="all that is free"),
        pytest.param(78.0, "0.97", "0.99", id="two steps"),
        pytest.param(78.0, "0.98", "0.99", id="one step"),
        pytest.param(78.0, "0.985", None, id="less than a step"),
        pytest.param(79.2, "0.9", None, id="the margin is all there is"),
    ],
)
def test_more_utilization_up_to_the_margin(held: float, now: str, to: str | None) -> None:
    moment = storm(gpus=lambda _: [own(held)])
    verdict = only(RULE, moment, flags={**FLAGS, "gpu_memory_utilization": now}, start=LOG)
    assert advised(verdict).get("--gpu-memory-utilization") == to


def test_the_tightest_gpu_decides_and_neighbours_count() -> None:
    first, second = [card(40 * 1024, {1: 40 * 1024})], card(40 * 1024, {2: 20 * 1024}, index=1)
    crowded = card(10 * 1024, {2: 20 * 1024, 3: 50 * 1024}, index=1)
    # What comes later is somebody else's: 20 + 10 - 0.8 of 80 GiB.
    moment = storm(gpus=lambda t: [*first, second if t == 0 else crowded])
    verdict = only(RULE, moment, flags={**FLAGS, "gpu_memory_utilization": "0.3"}, start=LOG)
    assert advised(verdict)["--gpu-memory-utilization"] == "0.36"


def test_the_flag_in_force_is_the_bytes() -> None:
    cache = replace(
        CACHE,
        kv_cache_memory_bytes=20 * GIB,
        labels={"kv_cache_memory_bytes": str(20 * GIB), "gpu_memory_utilization": "0.5"},
    )
    verdict = only(RULE, storm(gpus=roomy, cache=cache), flags=FLAGS)
    assert "--gpu-memory-utilization" not in advised(verdict)
    # 40 GiB are free, 0.8 stay.
    assert advised(verdict)["--kv-cache-memory-bytes"] == str(int(20 * GIB + 39.2 * GIB))


def test_the_flag_in_force_is_the_number_of_blocks() -> None:
    cache = replace(
        CACHE, num_gpu_blocks_override=1_001, labels={"num_gpu_blocks_override": "1001"}
    )
    verdict = only(RULE, storm(gpus=roomy, cache=cache), flags=FLAGS, start=LOG)
    assert advised(verdict)["--num-gpu-blocks-override"] == "2002"
    assert "16,016 tokens become about 32,032" in verdict.advice[0].expect
    assert not {"--gpu-memory-utilization", "--kv-cache-memory-bytes"} & advised(verdict).keys()


def test_without_a_device_no_bytes_are_promised() -> None:
    flags = advised(only(RULE, storm(), flags=FLAGS)).keys()
    assert not {"--gpu-memory-utilization", "--kv-cache-dtype"} & flags


@pytest.mark.parametrize(("dtype", "holds"), [("auto", True), ("fp8", False), ("bfloat16", False)])
def test_half_the_bytes_only_where_nothing_was_chosen(dtype: str, holds: bool) -> None:
    verdict = only(RULE, storm(gpus=roomy), flags={**FLAGS, "kv_cache_dtype": dtype}, start=LOG)
    assert ("--kv-cache-dtype" in advised(verdict)) == holds


@pytest.mark.parametrize(
    ("per_finished", "version", "now", "holds"),
    [
        pytest.param(0.5, "0.24.0", None, True, id="half a preemption a request"),
        pytest.param(0.49, "0.24.0", None, False, id="fewer"),
        pytest.param(0.6, "0.23.9", None, False, id="the release lacks it"),
        pytest.param(0.6, None, None, False, id="the release is not known"),
        pytest.param(0.6, "0.24.0", "0.1", True, id="set lower"),
        pytest.param(0.6, "0.24.0", "0.3", False, id="set already"),
    ],
)
def test_watermark(per_finished: float, version: str | None, now: str | None, holds: bool) -> None:
    flags = {} if now is None else {"watermark": now}
    verdict = only(RULE, storm(per_finished=per_finished, version=version), flags=flags)
    assert ("--watermark" in advised(verdict)) == holds


@pytest.mark.parametrize(("version", "holds"), [("0.11.0", False), ("0.11.1", True), (None, True)])
def test_offloading(version: str | None, holds: bool) -> None:
    verdict = only(RULE, storm(version=version))
    assert ("--kv-offloading-size" in advised(verdict)) == holds


@pytest.mark.parametrize(
    ("finished_tokens", "usage", "expected"),
    [
        # 1,000 blocks of 16 tokens; 20 requests run.
        pytest.param(800.0, 0.5, 20, id="50 blocks each"),
        pytest.param(801.0, 0.5, 19, id="51 blocks each"),
        pytest.param(100.0, 0.5, 40, id="what runs now is longer: 25 blocks each"),
        pytest.param(100.0, 1.0, 20, id="a full pool"),
        pytest.param(99_999.0, 0.5, 1, id="at least one"),
    ],
)
def test_fitting_sequences(finished_tokens: float, usage: float, expected: int) -> None:
    moment = storm(
        usage=usage,
        finished_prompt_tokens_total=0.0,
        finished_generation_tokens_total=lambda t: finished_tokens * t,
    )
    assert fitting_sequences(situation(moment).history.engines[0]) == expected


@pytest.mark.parametrize(("now", "to"), [("64", "20"), ("21", "20"), ("20", None), (None, "20")])
def test_a_cap_is_lower_than_what_is_set(now: str | None, to: str | None) -> None:
    flags = {} if now is None else {"max_num_seqs": now}
    assert advised(only(RULE, storm(), flags=flags)).get("--max-num-seqs") == to


@pytest.mark.parametrize(
    "running",
    [
        pytest.param(40.0, id="steadily"),
        pytest.param(lambda t: 30.0 if t % 2 else 50.0, id="50 at this moment"),
        pytest.param(lambda t: 50.0 if t % 2 else 30.0, id="30 at this moment"),
    ],
)
def test_a_cap_says_what_it_costs(running: float | Field) -> None:
    advice = {a.flag: a for a in only(RULE, storm(running=running), flags=FLAGS).advice}
    # 20 of 40 requests: between half of the 800 tokens a second and all of them.
    assert announced(advice["--max-num-seqs"].expect) == pytest.approx((400, 800), rel=0.03)
    assert "may cost throughput" in advice["--max-num-seqs"].why


def announced(expect: str) -> tuple[float, ...]:
    """Tokens a second, the least and the most."""
    found = re.search(r"between ([\d,]+) and ([\d,]+)", expect)
    assert found is not None, expect
    return tuple(float(figure.replace(",", "")) for figure in found.groups())


def knee(best_at: float, until: float = 30.0) -> list[Snapshot]:
    """1,000 tokens a second at first, then 40 run and 500 come out; 20 would fit."""
    return storm(
        60,
        running=lambda t: best_at if t <= 30 else 40.0,
        generation_tokens_total=slower(0.5, until),
        prompt_tokens_total=0.0,
    )


@pytest.mark.parametrize(
    ("moment", "to", "expect", "gains"),
    [
        pytest.param(knee(10.0), "10", "back towards 1,000", True, id="fewer ran at the best"),
        # 20 of 40 at 500 a second; whether as many as at the best are needed is not known.
        pytest.param(knee(30.0), "20", "between 250 and 1,000", False, id="fewer than that fit"),
        pytest.param(knee(40.0), "20", "between 250 and 500", False, id="as many ran: no knee"),
        # 1,000 in 20 s and 500 in 10 s: 833 on average, a sixth below the best.
        pytest.param(knee(10.0, 50.0), "20", "between 417 and 833", False, id="a short dip"),
    ],
)
def test_a_measured_knee_lowers_the_cap(
    moment: list[Snapshot], to: str, expect: str, gains: bool
) -> None:
    verdict = only(RULE, moment, flags=FLAGS)
    assert verdict.severity == "critical"
    advice = next(a for a in verdict.advice if a.flag == "--max-num-seqs")
    assert advice.to == to
    assert expect in advice.expect
    assert ("gains throughput" in advice.why) == gains


@pytest.mark.parametrize(
    ("running", "holds"),
    [
        # The estimate is R x 15 / 2 of 15,840 slots in use.
        pytest.param(300.0, True, id="14 % empty: blocks are filled"),
        pytest.param(340.0, False, id="16 % empty"),
    ],
)
def test_block_size_is_ruled_out_unless_blocks_are_empty(running: float, holds: bool) -> None:
    verdict = only(RULE, storm(running=running))
    assert ("--block-size" in avoided(verdict)) == holds
    assert "--block-size" not in advised(verdict)
    assert "--enforce-eager" in avoided(verdict)
