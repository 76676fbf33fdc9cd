"""What holds of several rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sidecar.model import Failure, Snapshot
from sidecar.verdicts import (
    fragmentation,
    gpu_memory,
    kv_leaked,
    kv_pressure,
    over_reserved,
    stalled,
)

from .moments import polls, said, situation


@pytest.mark.parametrize(
    "rule",
    [kv_pressure.RULE, over_reserved.RULE, kv_leaked.RULE, fragmentation.RULE, stalled.RULE],
    ids=lambda rule: rule.code,
)
def test_nothing_is_said_of_an_engine_without_usage(rule: Any) -> None:
    bare = polls(200, every=10.0, kv_usage_ratio=None, generation_tokens_total=lambda t: t)
    assert list(rule.judge(situation(bare))) == []


@pytest.mark.parametrize("rule", [gpu_memory.ORPHAN, gpu_memory.GROWTH, gpu_memory.HEADROOM])
def test_nothing_is_said_of_devices_that_were_not_read(rule: Any) -> None:
    moments: Iterable[Snapshot] = [
        replace(poll, gpus=Failure("library_missing")) for poll in polls(60, running=1.0)
    ]
    assert said(rule, moments) == []
