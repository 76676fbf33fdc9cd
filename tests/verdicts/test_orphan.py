"""Memory that was left behind."""

from __future__ import annotations

import pytest
from synthetic import snapshot

from sidecar.model import Snapshot
from sidecar.verdicts import co_tenant, gpu_memory

from .moments import GPU_0, advised, card, figure, only, own, polls, said, severity


def left_behind(
    seconds: int, processes: dict[int, float], *, first_timeouts: int = 0
) -> list[Snapshot]:
    device = card(
        (80 - sum(processes.values())) * 1024, {p: g * 1024 for p, g in processes.items()}
    )
    reasons = ["timeout"] * first_timeouts + ["refused"] * (seconds + 1)
    return [
        *polls(2, gpus=lambda _: [own(40)]),
        *(snapshot(3.0 + t, failure=why, gpus=[device]) for t, why in enumerate(reasons)),
    ]


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(left_behind(30, {1: 40.0}), True, id="for 30 s"),
        pytest.param(left_behind(29, {1: 40.0}), False, id="for 29 s"),
        pytest.param(
            left_behind(29, {1: 40.0}, first_timeouts=20), False, id="it listened until then"
        ),
        pytest.param(left_behind(60, {}), False, id="all gone"),
        pytest.param(left_behind(60, {1: 40.0, 9: 2.0}), False, id="a newer process"),
        pytest.param(polls(60, gpus=lambda _: [own(40)]), False, id="up"),
    ],
)
def test_orphan(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(gpu_memory.ORPHAN, snapshots) == ("warning" if holds else None)


def test_orphans_are_listed_and_are_no_neighbours() -> None:
    moment = left_behind(40, {1: 40.0})
    verdict = only(gpu_memory.ORPHAN, moment)
    assert (verdict.scope, figure(verdict, "pids")) == (GPU_0, "1")
    assert advised(verdict) == {"end processes": None}
    assert said(co_tenant.RULE, moment) == []
