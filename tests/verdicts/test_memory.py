"""Memory of the device and of the host: whose it is, how it grows, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import CACHE, GIB, engine, gpu, snapshot

from sidecar.model import Failure, GpuMemory, GpuReading, HostReading, Scope, Snapshot
from sidecar.verdicts import co_tenant, gpu_memory, host_memory
from sidecar.verdicts.memory_arithmetic import (
    flag_in_force,
    margin_bytes,
    round_utilization_down,
    round_utilization_up,
    vllm_total_bytes,
)
from sidecar.verdicts.rule import TWO_POLLS

from .moments import GPU_0, MIB, advised, card, figure, only, own, polls, said, severity, situation

# The arithmetic.


@pytest.mark.parametrize(
    ("share", "down", "up"),
    [
        (0.9, 0.9, 0.9),
        (0.909, 0.9, 0.91),
        (0.29, 0.29, 0.29),  # 0.29 x 100 is 28.999999999999996
        (0.57, 0.57, 0.57),
        (0.5700001, 0.57, 0.58),
        (0.5699, 0.56, 0.57),
    ],
)
def test_utilization_is_rounded_to_the_careful_side(share: float, down: float, up: float) -> None:
    assert round_utilization_down(share) == down
    assert round_utilization_up(share) == up


@pytest.mark.parametrize(
    ("total", "margin"), [(80 * GIB, 0.8 * GIB), (12.5 * GIB, 128 * MIB), (8 * GIB, 128 * MIB)]
)
def test_margin_is_one_per_cent_and_at_least_128_mib(total: float, margin: float) -> None:
    assert margin_bytes(total) == margin


def test_total_is_less_what_the_driver_reserves() -> None:
    assert vllm_total_bytes(GpuMemory(100, 10, 85, 5)) == 95
    assert vllm_total_bytes(GpuMemory(100, 15, 85, None)) == 100


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "--gpu-memory-utilization"),
        ({"kv_cache_memory_bytes": "None"}, "--gpu-memory-utilization"),
        ({"kv_cache_memory_bytes": "1"}, "--kv-cache-memory-bytes"),
        (
            {"kv_cache_memory_bytes": "1", "num_gpu_blocks_override": "9"},
            "--num-gpu-blocks-override",
        ),
    ],
)
def test_flag_in_force(flags: dict[str, str], expected: str) -> None:
    assert flag_in_force(situation(polls(1), flags=flags)) == expected


def test_the_page_overrules_what_was_written_down() -> None:
    cache = replace(CACHE, labels={"num_gpu_blocks_override": "9"})
    moment = situation(polls(1, cache=cache), flags={"kv_cache_memory_bytes": "1"})
    assert flag_in_force(moment) == "--num-gpu-blocks-override"


# A neighbour.


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
        return [*steady(40 * 1024 - 10, 10), *(_started_again(poll) for poll in again)]

    assert said(co_tenant.RULE, lives(59)) == []
    assert said(co_tenant.RULE, lives(60)) != []


def _started_again(poll: Snapshot) -> Snapshot:
    assert poll.server is not None
    return replace(poll, server=replace(poll.server, process_start_seconds=20.0))


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


# Left behind.


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


# Growth.


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


# Nearly nothing left.


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
        _started_again(replace(poll, at=20.0 + t)) for t in (0.0, 59.0, 60.0) for poll in tight[-1:]
    ]
    assert severity(gpu_memory.HEADROOM, [*tight, *again[:2]]) is None
    assert severity(gpu_memory.HEADROOM, [*tight, *again]) == "warning"


# The host.


def host(available_gib: float, *, total_gib: float = 128, unified: bool = False) -> Snapshot:
    device = card(1024, {1: 1024}, unified=unified)
    memory = HostReading(int(total_gib * GIB), int(available_gib * GIB), 0, 0)
    return replace(snapshot(0, engine(), gpus=[device]), host=memory)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param(host(12.81), None, id="10 %"),
        pytest.param(host(12.79), "warning", id="less than 10 %"),
        pytest.param(host(3.85), "warning", id="3 %"),
        pytest.param(host(3.83), "critical", id="less than 3 %"),
        pytest.param(host(10, unified=True), None, id="unified: 10 GiB"),
        pytest.param(host(9.99, unified=True), "warning", id="unified: less than 10 GiB"),
        pytest.param(host(6, unified=True), "warning", id="unified: 6 GiB"),
        pytest.param(host(5.99, unified=True), "critical", id="unified: less than 6 GiB"),
        pytest.param(snapshot(0, engine()), None, id="not read"),
    ],
)
def test_host_memory(moment: Snapshot, expected: str | None) -> None:
    assert severity(host_memory.RULE, [moment]) == expected


def test_host_memory_is_no_matter_of_utilization() -> None:
    for moment in (host(2), host(2, unified=True)):
        verdict = only(host_memory.RULE, [moment])
        assert [item.flag for item in verdict.avoid] == ["--gpu-memory-utilization"]
        assert verdict.scope == Scope()
    assert advised(only(host_memory.RULE, [host(2)])) == {"host": None}


@pytest.mark.parametrize("rule", [gpu_memory.ORPHAN, gpu_memory.GROWTH, gpu_memory.HEADROOM])
def test_nothing_is_said_of_devices_that_were_not_read(rule: Any) -> None:
    moments: Iterable[Snapshot] = [
        replace(poll, gpus=Failure("library_missing")) for poll in polls(60, running=1.0)
    ]
    assert said(rule, moments) == []
