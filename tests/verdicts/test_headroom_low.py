"""Nearly nothing is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.model import Snapshot
from sidecar.verdicts import gpu_memory

from .moments import advised, card, only, polls, severity, started_again


def left(free_mib: float, *, total_gib: float = 80, **fields: Any) -> list[Snapshot]:
    device = card(free_mib, {1: total_gib * 1024 - free_mib}, total_mib=total_gib * 1024)
    return polls(2, **{"running": 1.0, **fields}, gpus=lambda _: [device])


@pytest.mark.parametrize(
    ("snapshots", "holds"),
    [
        pytest.param(left(819), True, id="less than 1 %"),
        pytest.param(left(820), False, id="1 %"),
        pytest.param(left(255, total_gib=16), True, id="less than 256 MiB"),
        pytest.param(left(256, total_gib=16), False, id="256 MiB of a small card"),
        pytest.param(left(100, running=0.0), False, id="nothing runs"),
        pytest.param(left(100, sleeping=True), False, id="asleep"),
    ],
)
def test_headroom(snapshots: list[Snapshot], holds: bool) -> None:
    assert severity(gpu_memory.HEADROOM, snapshots) == ("warning" if holds else None)


@pytest.mark.parametrize(
    ("free_mib", "flags", "expected"),
    [
        # 819.2 - 409.6 are missing and 819.2 of margin: 1.5 % of 80 GiB.
        (409.6, {"gpu_memory_utilization": "0.9"}, {"--gpu-memory-utilization": "0.88"}),
        (818.0, {"gpu_memory_utilization": "0.9"}, {"--gpu-memory-utilization": "0.88"}),
        (409.6, {"num_gpu_blocks_override": "5"}, {"--num-gpu-blocks-override": None}),
    ],
)
def test_headroom_is_made_by_the_flag_in_force(
    free_mib: float, flags: dict[str, str], expected: dict[str, str | None]
) -> None:
    assert advised(only(gpu_memory.HEADROOM, left(free_mib), flags=flags)) == expected


def test_headroom_waits_a_minute_after_a_restart() -> None:
    tight = left(100)
    again = [
        started_again(replace(poll, at=20.0 + t)) for t in (0.0, 59.0, 60.0) for poll in tight[-1:]
    ]
    assert severity(gpu_memory.HEADROOM, [*tight, *again[:2]]) is None
    assert severity(gpu_memory.HEADROOM, [*tight, *again]) == "warning"
