"""Requests wait although there is room: which limit is it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import engine, snapshot

from sidecar.model import Histogram, LoraAdapters, Snapshot
from sidecar.verdicts import caps
from sidecar.verdicts.caps import pinned_step

from .moments import ENGINE, advised, avoided, figure, only, polls, said

INF = float("inf")
PINNED: dict[str, Any] = {"running": 16.0, "waiting": 8.0, "kv_usage_ratio": 0.4}
MEMORY_FLAGS = {"--gpu-memory-utilization", "--kv-cache-memory-bytes", "--block-size"}


def capped(seconds: float = 16, **fields: Any) -> list[Snapshot]:
    return polls(seconds, **{**PINNED, **fields})


@pytest.mark.parametrize(
    ("snapshots", "stated", "holds"),
    [
        pytest.param(capped(), "16", True, id="pinned at the flag"),
        pytest.param(capped(), None, True, id="pinned, the flag is not known"),
        pytest.param(capped(), "17", True, id="one below the flag"),
        pytest.param(capped(), "18", False, id="two below the flag: another limit"),
        pytest.param(capped(14), "16", False, id="too short"),
        pytest.param(capped(waiting=0.0), "16", False, id="nobody waits"),
        pytest.param(
            capped(waiting=lambda t: 0.0 if t == 8 else 8.0), "16", False, id="the queue emptied"
        ),
        pytest.param(capped(kv_usage_ratio=0.79), "16", True, id="just enough room"),
        pytest.param(capped(kv_usage_ratio=0.8), "16", False, id="no room"),
        pytest.param(capped(running=lambda t: 14.0 + t % 3), "16", False, id="not pinned"),
        pytest.param(
            capped(waiting_by_reason={"capacity": 8.0, "deferred": 0.0}),
            "16",
            True,
            id="the queue's name says nothing",
        ),
        pytest.param(
            capped(waiting_by_reason={"deferred": 8.0}), "16", False, id="waits for another thing"
        ),
        pytest.param(capped(sleeping=True), "16", False, id="asleep"),
    ],
)
def test_sequences(snapshots: list[Snapshot], stated: str | None, holds: bool) -> None:
    flags = {} if stated is None else {"max_num_seqs": stated}
    assert bool(said(caps.SEQUENCES, snapshots, flags=flags)) == holds


@pytest.mark.parametrize(
    ("fields", "to"),
    [
        pytest.param({"waiting": 4.0, "kv_usage_ratio": 0.2}, "20", id="R + Q"),
        pytest.param({"waiting": 80.0, "kv_usage_ratio": 0.4}, "28", id="0.7 R / U"),
        pytest.param({"waiting": 80.0, "kv_usage_ratio": 0.1}, "32", id="2 R"),
        pytest.param({"waiting": 80.0, "kv_usage_ratio": 0.0}, "32", id="nothing used"),
        pytest.param({"waiting": 80.0, "kv_usage_ratio": 0.7}, None, id="no step is left"),
        pytest.param({"waiting": 80.0, "kv_usage_ratio": 0.65}, "17", id="one step is left"),
    ],
)
def test_the_next_step_of_sequences(fields: dict[str, float], to: str | None) -> None:
    verdict = only(caps.SEQUENCES, capped(**fields), flags={"max_num_seqs": "16"})
    assert advised(verdict).get("--max-num-seqs") == to
    assert not MEMORY_FLAGS & advised(verdict).keys()
    assert {"--gpu-memory-utilization", "--block-size"} <= avoided(verdict)


def test_confidence_follows_what_is_known() -> None:
    known = only(caps.SEQUENCES, capped(), flags={"max_num_seqs": "16"})
    assert (known.confidence, known.missing, known.scope) == ("high", (), ENGINE)
    assert known.advice[0].current == "16"
    guessed = only(caps.SEQUENCES, capped())
    assert (guessed.confidence, guessed.missing) == ("low", ("max_num_seqs (log)",))


def steps(*counts: tuple[float, float], total: float | None = None) -> Histogram:
    """A histogram from upper bounds and how many steps fell below each, cumulative."""
    count = counts[-1][1]
    return Histogram((*counts, (INF, count)), total or 0.0, count)


def growing(each_second: int, bucket: float) -> Any:
    return lambda t: steps((bucket / 2, 0.0), (bucket, each_second * t), total=bucket * t)


def budget_pinned(**fields: Any) -> list[Snapshot]:
    moving = {"running": lambda t: 10.0 + t % 4, "waiting": 8.0, "kv_usage_ratio": 0.4}
    return polls(16, **{**moving, "iteration_tokens": growing(10, 2048.0), **fields})


@pytest.mark.parametrize(
    ("fields", "stated", "holds"),
    [
        pytest.param({}, "2048", True, id="at the budget"),
        pytest.param({}, None, True, id="at a bucket"),
        pytest.param({}, "8192", False, id="below the budget"),
        pytest.param({"iteration_tokens": growing(10, 256.0)}, None, False, id="small steps"),
        pytest.param({"running": 16.0}, "2048", False, id="sequences are pinned"),
        pytest.param({"waiting": 0.0}, "2048", False, id="nobody waits"),
        pytest.param({"kv_usage_ratio": 0.8}, "2048", False, id="no room"),
        pytest.param({"iteration_tokens": None}, "2048", False, id="no histogram"),
        pytest.param({"waiting_by_reason": {"deferred": 1.0}}, "2048", False, id="deferred"),
    ],
)
def test_token_budget(fields: dict[str, Any], stated: str | None, holds: bool) -> None:
    flags = {} if stated is None else {"max_num_batched_tokens": stated}
    found = said(caps.TOKEN_BUDGET, budget_pinned(**fields), flags=flags)
    assert bool(found) == holds


def test_advice_on_the_token_budget() -> None:
    known = only(caps.TOKEN_BUDGET, budget_pinned(), flags={"max_num_batched_tokens": "2000"})
    assert advised(known) == {"--max-num-batched-tokens": "4000"}
    assert (known.severity, known.confidence, known.missing) == ("warning", "high", ())
    guessed = only(caps.TOKEN_BUDGET, budget_pinned())
    assert advised(guessed) == {"--max-num-batched-tokens": "4096"}
    assert (guessed.confidence, guessed.missing) == ("medium", ("max_num_batched_tokens (log)",))


@pytest.mark.parametrize(
    ("histogram", "budget", "expected"),
    [
        pytest.param(steps((256, 40), (512, 100), total=9e9), None, 512, id="most steps"),
        pytest.param(steps((256, 50), (512, 100), total=9e9), None, 512, id="half of them"),
        pytest.param(steps((256, 51), (512, 100), total=9e9), None, None, id="fewer than half"),
        pytest.param(
            steps((256, 99), (512, 100), total=512), None, 512, id="half of the tokens in one"
        ),
        pytest.param(steps((128, 0), (256, 100), total=9e9), None, None, id="too small a bucket"),
        pytest.param(steps((256, 0), (512, 100)), 512, 512, id="budget in the bucket"),
        pytest.param(steps((256, 0), (512, 100)), 256, None, id="budget below it"),
        pytest.param(steps((256, 0), (512, 100)), 513, None, id="budget above it"),
        pytest.param(steps((512, 0)), None, None, id="no step"),
    ],
)
def test_pinned_step(histogram: Histogram, budget: int | None, expected: float | None) -> None:
    assert pinned_step(histogram, budget) == expected


def lora(*waiting: str, deferred: float = 3.0, slots: int = 4) -> Snapshot:
    moment = snapshot(0, engine(running=4.0, waiting_by_reason={"deferred": deferred}))
    assert moment.server is not None
    adapters = LoraAdapters(slots, ("a",), waiting)
    return replace(moment, server=replace(moment.server, lora=adapters))


@pytest.mark.parametrize(
    ("moment", "to"),
    [
        (lora("b", "c"), "8"),
        (lora("b", "c", "d", "e", "f"), "9"),
        (lora(), None),
        (lora("b", deferred=0.0), None),
    ],
)
def test_adapters(moment: Snapshot, to: str | None) -> None:
    found = said(caps.LORA, [moment])
    assert [advised(verdict) for verdict in found] == ([{"--max-loras": to}] if to else [])
    for verdict in found:
        assert "--gpu-memory-utilization" in avoided(verdict)
        assert figure(verdict, "requests_waiting_deferred") == 3.0
