"""Concurrency fell and GPU memory did not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.model import Snapshot
from sidecar.verdicts import memory_held

from .moments import only, own, polls, said, severity


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
