"""Requests run and nothing moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.model import Snapshot
from sidecar.verdicts import stalled

from .moments import advised, avoided, polls, said, severity


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
