"""Blocks are held and nothing runs."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import engine, snapshot

from sidecar.model import Snapshot
from sidecar.verdicts import kv_leaked

from .moments import ENGINE, advised, avoided, figure, only, polls, said, severity


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
