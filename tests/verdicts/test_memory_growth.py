"""vLLM's memory grows without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from synthetic import GIB

from sidecar.model import Snapshot
from sidecar.verdicts import gpu_memory

from .moments import advised, figure, only, own, polls, severity


def growing(
    held: Callable[[float], float], *, minutes: float = 31, usage: Any = 0.3, **fields: Any
) -> list[Snapshot]:
    """A poll each 10 s of a serving server; GiB by minutes since the first load."""
    return polls(
        minutes * 60 + 70,
        every=10.0,
        gpus=lambda t: [own(held(max(0.0, (t - 70) / 60)))],
        running=2.0,
        kv_usage_ratio=usage,
        **fields,
    )


def line(gib_in_half_an_hour: float) -> Callable[[float], float]:
    return lambda minutes: 40 + gib_in_half_an_hour * minutes / 30


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        # 2 % of 80 GiB are 1.6 GiB.
        pytest.param(growing(line(1.6)), True, id="2 % in half an hour"),
        pytest.param(growing(line(1.5)), False, id="less"),
        pytest.param(growing(line(4.0), minutes=27), False, id="too short"),
        pytest.param(growing(lambda m: 42.0 if m > 5 else 40.0), False, id="a jump is a plateau"),
        pytest.param(growing(lambda m: 40 + min(m, 15) / 5), False, id="it has stopped"),
        pytest.param(growing(line(-4.0)), False, id="it shrinks"),
        pytest.param(growing(line(4.0), usage=lambda t: 0.3 + t / 17_500), False, id="with the KV"),
        pytest.param(growing(line(4.0), usage=lambda t: 0.3 + t / 18_500), True, id="KV flat"),
        pytest.param(growing(line(4.0), sleeping=True), False, id="asleep"),
    ],
)
def test_growth(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(gpu_memory.GROWTH, snapshots) == ("warning" if holds else None)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"gpu_memory_utilization": "0.9"}, {"--gpu-memory-utilization": "0.88"}),
        ({"kv_cache_memory_bytes": "5"}, {"--kv-cache-memory-bytes": None}),
        ({}, {"--gpu-memory-utilization": None}),
    ],
)
def test_growth_is_met_by_the_flag_in_force(
    flags: dict[str, str], expected: dict[str, str | None]
) -> None:
    verdict = only(gpu_memory.GROWTH, growing(line(3.0)), flags=flags)
    assert advised(verdict) == expected
    # 6 GiB an hour, and 37 left.
    assert figure(verdict, "gpu_memory_growth_bytes_per_hour") == pytest.approx(6 * GIB, rel=0.01)
    assert figure(verdict, "gpu_memory_exhaustion_seconds") == pytest.approx(22_140, rel=0.01)
