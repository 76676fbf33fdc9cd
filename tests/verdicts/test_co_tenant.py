"""A neighbour on the card of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import GIB, engine, gpu, snapshot

from sidecar.model import GpuReading, Snapshot
from sidecar.verdicts import co_tenant
from sidecar.verdicts.rule import TWO_POLLS

from .moments import GPU_0, advised, card, figure, only, own, polls, said, severity, started_again


def beside(
    neighbour: Callable[[float], float],
    seconds: float = 10,
    *,
    own_gib: float = 40.0,
    **fields: Any,
) -> list[Snapshot]:
    """The server holds 40 of 80 GiB; a second process, in MiB, came after it."""

    def devices(t: float) -> list[GpuReading]:
        held = {1: own_gib * 1024}
        if t > 0:
            held[2] = neighbour(t)
        return [card((80 - own_gib) * 1024 - held.get(2, 0.0), held)]

    return polls(seconds, gpus=devices, **fields)


def steady(mib: float, seconds: float = 310, **fields: Any) -> list[Snapshot]:
    return beside(lambda _: mib, seconds, **fields)


FREE_OF_40 = 40 * 1024


@pytest.mark.parametrize(
    ("snapshots", "expected"),
    [
        pytest.param(steady(1024), "info", id="a GiB, for 5 minutes"),
        pytest.param(steady(1023), None, id="less"),
        pytest.param(steady(1024, 10), "warning", id="just arrived"),
        pytest.param(steady(FREE_OF_40 - 4096), "info", id="5 % free"),
        pytest.param(steady(FREE_OF_40 - 4095), "warning", id="less than 5 % free"),
        pytest.param(steady(FREE_OF_40 - 1639), "warning", id="2 % free"),
        pytest.param(steady(FREE_OF_40 - 1638), "critical", id="less than 2 % free"),
        pytest.param(
            beside(lambda t: 2048 + (256 if t > 400 else 0), 500), "warning", id="grows by 256 MiB"
        ),
        pytest.param(
            beside(lambda t: 2048 + (255 if t > 400 else 0), 500), "info", id="grows by less"
        ),
        pytest.param(
            beside(lambda t: 2048 - (512 if t > 400 else 0), 500), "info", id="it shrinks"
        ),
        pytest.param(steady(30_000, sleeping=True), None, id="asleep: made for sharing"),
        pytest.param(polls(310, gpus=lambda _: [gpu(40, {1: 39 * GIB})]), None, id="unowned"),
    ],
)
def test_co_tenant(snapshots: list[Snapshot], expected: str | None) -> None:
    assert severity(co_tenant.RULE, snapshots) == expected


def test_a_neighbour_is_named_with_what_to_do() -> None:
    verdict = only(co_tenant.RULE, steady(4096))
    assert (verdict.scope, verdict.confidence) == (GPU_0, "high")
    assert figure(verdict, "gpu_memory_owner_bytes_other") == 4 * GIB
    # Never a lower utilisation as the way, let alone the only one.
    assert list(advised(verdict)) == ["neighbour", "--kv-cache-memory-bytes"]
    fixed = only(co_tenant.RULE, steady(4096), flags={"num_gpu_blocks_override": "9"})
    assert list(advised(fixed)) == ["neighbour", "--num-gpu-blocks-override"]
    assert co_tenant.RULE.hold == TWO_POLLS


def test_without_processes_it_is_a_guess() -> None:
    bare = polls(10, gpus=lambda t: [gpu(40 if t == 0 else 50, {})])
    verdict = only(co_tenant.RULE, bare)
    assert (verdict.confidence, verdict.missing) == ("low", ("processes",))


def test_a_restart_suspends_it_for_a_minute() -> None:
    def lives(later: int) -> list[Snapshot]:
        again = [
            replace(
                snapshot(20.0 + t, engine(), gpus=[card(20 * 1024, {3: 20 * 1024, 2: 40 * 1024})]),
            )
            for t in range(later + 1)
        ]
        return [*steady(40 * 1024 - 10, 10), *(started_again(poll) for poll in again)]

    assert said(co_tenant.RULE, lives(59)) == []
    assert said(co_tenant.RULE, lives(60)) != []


def test_other_gpus_are_none_of_its_business() -> None:
    def devices(t: float) -> list[GpuReading]:
        elsewhere = {2: 30.0 * 1024} if t > 0 else {}
        return [own(40), card(50 * 1024, elsewhere, index=1)]

    up = polls(10, gpus=devices)
    assert said(co_tenant.RULE, up) == []
    dead = [
        snapshot(11.0 + t, failure="refused", gpus=[card(80 * 1024, {}), devices(5.0)[1]])
        for t in range(5)
    ]
    assert said(co_tenant.RULE, [*up, *dead]) == []
