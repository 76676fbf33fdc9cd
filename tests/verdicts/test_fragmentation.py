"""Used blocks are badly filled: when it matters and what smaller ones gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import CACHE, engine, snapshot

from sidecar.model import Snapshot
from sidecar.verdicts import fragmentation

from .moments import advised, avoided, figure, only, polls, said, severity


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
