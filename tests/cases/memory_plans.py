"""Recordings about device and host memory. Figures are the report's unless a comment says so."""

from __future__ import annotations

from typing import Any

from cases.pages import Server
from cases.serving_plans import STARTED
from cases.tracks import Plan, Stretch, Track, broken_gpu, gpu, host

Gpus = list[dict[str, Any]]
PLANS: dict[str, Plan] = {}


def _steady(
    running: int, usage: float, generation: float, seconds: float, *, arrived: int = 0
) -> Stretch:
    levels = (usage, usage + 0.01, usage - 0.01)
    return Stretch(seconds, running, 0, levels, generation, every=10, arrived=arrived)


# C25: TP2, eager, 0.95: memory creeps up under traffic, not when idle, and in the end it dies.
# Two cards of 24 GB and the pace are chosen: 1.2 GiB in 40 minutes of traffic.
_C25_TRAFFIC = ((0.0, 1200.0), (1500.0, 2700.0))


def _c25(at: float) -> Gpus:
    if at >= 2700:
        return [gpu(i, "NVIDIA GeForce RTX 4090", 24564, {}, reserved_mib=300) for i in range(2)]
    busy = sum(max(0.0, min(at, end) - start) for start, end in _C25_TRAFFIC)
    own = round(22950 + 1250 * busy / 2400)
    return [
        gpu(i, "NVIDIA GeForce RTX 4090", 24564, {5000 + i: own}, unowned_mib=18, reserved_mib=300)
        for i in range(2)
    ]


PLANS["C25"] = Plan(
    Server((0, 6, 1), v0=True, blocks=4_000),
    [
        Track(
            "m",
            [
                _steady(12, 0.35, 400, 1200),
                Stretch(300, 0, 0, (0.0, 0.0), every=10, ended=12, ended_tokens=(1200, 0)),
                _steady(12, 0.35, 400, 1200, arrived=12),
                Stretch(30, error="refused", every=2),
            ],
            mean_prompt=1200,
            mean_generation=600,
            before=400,
            resident=(14400, 0),
        )
    ],
    (
        "--tensor-parallel-size",
        "2",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "0.95",
    ),
    gpus=_c25,
)


# C26: native KV offloading, PP2 TP8: device memory grows without a plateau. One rank of each
# pipeline stage is shown; size of the card and pace are chosen.
def _c26(at: float) -> Gpus:
    own = round(69000 + 90 * at / 60)
    return [
        gpu(i, "NVIDIA A800-SXM4-80GB", 81559, {6000 + i: own}, reserved_mib=500, busy_percent=80)
        for i in range(2)
    ]


PLANS["C26"] = Plan(
    Server(
        (0, 22, 0), started_at=STARTED, blocks=30_001, own_labels={"kv_offloading_size": "200.0"}
    ),
    [
        Track(
            "m",
            [_steady(40, 0.45, 1200, 2700)],
            mean_prompt=4000,
            mean_generation=700,
            before=1000,
            resident=(160000, 14000),
        )
    ],
    (
        "--tensor-parallel-size",
        "8",
        "--pipeline-parallel-size",
        "2",
        "--kv-offloading-size",
        "200",
        "--kv-offloading-backend",
        "native",
    ),
    gpus=_c26,
)


# C38: the card shows 3,578 of 8,188 MiB in use before the second server (pid 2210) starts, which
# then refuses. How far it gets is chosen.
def _c38(at: float) -> Gpus:
    processes: dict[int, float | None] = {1100: 3560}
    if 10 <= at < 46:
        processes[2210] = min(1700.0, 200 + 50 * (at - 10))
    return [gpu(0, "NVIDIA GeForce RTX 4060 Ti", 8188, processes, unowned_mib=18)]


PLANS["C38"] = Plan(
    Server((0, 9, 0)),
    [Track("m", [Stretch(60, error="refused")])],
    ("--gpu-memory-utilization", "0.4"),
    gpus=_c38,
)

# C40: what is still in use after each sleep is the report's; cycles of ten minutes, 50 GiB awake
# at first and the growth awake (the same bytes) are chosen.
_C40_RESIDUE_GIB = (4.11, 11.57, 25.0, 24.0)


def _c40(at: float) -> Gpus:
    cycle = min(3, int(at // 600))
    residue = _C40_RESIDUE_GIB[cycle]
    grown = _C40_RESIDUE_GIB[max(0, cycle - 1)] - _C40_RESIDUE_GIB[0]
    own = round(1024 * (residue if at % 600 >= 480 else 50.0 + grown))
    return [gpu(0, "NVIDIA H100 80GB HBM3", 81559, {811: own}, reserved_mib=600)]


_C40_ASLEEP = Stretch(
    120,
    0,
    0,
    (0.0, 0.0),
    every=10,
    sleep="weights_offloaded",
    ended=32,
    ended_tokens=(1500, 0),
)
_C40_FIRST = [_steady(32, 0.30, 1500, 480), _C40_ASLEEP]
_C40_NEXT = [_steady(32, 0.30, 1500, 480, arrived=32), _C40_ASLEEP]

PLANS["C40"] = Plan(
    Server((0, 20, 0), started_at=STARTED, blocks=20_001),
    [
        Track(
            "m",
            [*_C40_FIRST, *_C40_NEXT * 3],
            mean_prompt=1500,
            mean_generation=1500,
            before=64,
            resident=(48000, 0),
        )
    ],
    ("--enable-sleep-mode",),
    gpus=_c40,
)


# C50: the engine is used as a Python library. It works, and no port is ever open.
def _c50(_: float) -> Gpus:
    return [gpu(0, "NVIDIA H100 80GB HBM3", 81559, {900: 72800}, busy_percent=90)]


PLANS["C50"] = Plan(
    Server((0, 9, 0)), [Track("m", [Stretch(90, error="refused", every=3)])], gpus=_c50
)


def _serving(running: int, usage: float, generation: float, seconds: float) -> Track:
    return Track(
        "m",
        [Stretch(seconds, running, 0, (usage, usage + 0.005, usage - 0.005), generation)],
        mean_prompt=600,
        mean_generation=300,
        before=200,
        resident=(600.0 * running, 150.0 * running),
    )


# C66: NVML answers, then (the host reloaded systemd) no more; vLLM serves on.
def _c66(at: float) -> Gpus:
    if at >= 20:
        return [broken_gpu(0, "NVIDIA L40S", "Failed to initialize NVML: Unknown Error")]
    return [gpu(0, "NVIDIA L40S", 46068, {700: 41000}, reserved_mib=400, busy_percent=70)]


PLANS["C66"] = Plan(
    Server((0, 19, 1), started_at=STARTED, blocks=12_001),
    [_serving(8, 0.06, 250, 90)],
    gpus=_c66,
)


# C67: in a container: 7,325 of 24,564 MiB in use, no process listed, from the first poll on.
def _c67(_: float) -> Gpus:
    return [
        gpu(
            0,
            "NVIDIA GeForce RTX 4090",
            24564,
            {},
            unowned_mib=7325,
            reserved_mib=None,
            busy_percent=30,
        )
    ]


PLANS["C67"] = Plan(
    Server((0, 8, 3), started_at=STARTED, blocks=3_001), [_serving(2, 0.04, 90, 60)], gpus=_c67
)


# C68: the pid is found, then for ten seconds not, then again; the device's total never moves.
def _c68(at: float) -> Gpus:
    listed = int(at // 10) % 2 == 0
    return [
        gpu(
            0,
            "NVIDIA A100-SXM4-80GB",
            81920,
            {1200: 61000} if listed else {},
            unowned_mib=0 if listed else 61000,
            reserved_mib=600,
            busy_percent=60,
        )
    ]


PLANS["C68"] = Plan(
    Server((0, 22, 1), started_at=STARTED, blocks=12_001), [_serving(6, 0.05, 200, 80)], gpus=_c68
)


# C69: the parent of a MIG slice refuses the memory query; it is never asked for the slice.
def _c69(_: float) -> Gpus:
    return [broken_gpu(0, "NVIDIA H200", "memory: Insufficient Permissions")]


PLANS["C69"] = Plan(
    Server((0, 24, 0), started_at=STARTED, blocks=2_001), [_serving(3, 0.09, 110, 60)], gpus=_c69
)


# C72: GB10, unified memory: what the host has is what the device has. Ends where the host fell
# silent, with 124,258 of 124,546 MiB used and 572 MiB of swap; the way there is chosen.
def _c72_used(at: float) -> int:
    return min(124258, round(112000 + 102.15 * at))


def _c72(at: float) -> Gpus:
    return [
        gpu(
            0,
            "NVIDIA GB10",
            124546,
            {3000: 61000},
            unowned_mib=_c72_used(at) - 61000,
            reserved_mib=None,
            busy_percent=96,
            unified=True,
        )
    ]


PLANS["C72"] = Plan(
    Server(
        (0, 24, 0),
        started_at=STARTED,
        blocks=40_001,
        own_labels={"kv_cache_memory_bytes": "38654705664"},
    ),
    [_serving(6, 0.12, 180, 130)],
    ("--kv-cache-memory-bytes", "36864M"),
    gpus=_c72,
    host=lambda at: host(124546, 124546 - _c72_used(at), 572 * min(1.0, at / 120)),
)


# C74: the API server was killed; port closed, EngineCore's workers keep both cards.
def _c74(_: float) -> Gpus:
    return [
        gpu(
            i,
            "NVIDIA H100 80GB HBM3",
            81559,
            {4100 + i: 73200},
            titles={4100 + i: f"VLLM::Worker_TP{i}"},
        )
        for i in range(2)
    ]


_C74 = _serving(6, 0.05, 300, 20)
PLANS["C74"] = Plan(
    Server((0, 28, 0), started_at=STARTED, blocks=20_001),
    [
        Track(
            "m",
            [*_C74.stretches, Stretch(90, error="refused")],
            mean_prompt=600,
            mean_generation=300,
            before=200,
            resident=(3600, 900),
        )
    ],
    ("--tensor-parallel-size", "2"),
    gpus=_c74,
)


# C75: the container was removed; 22 GB stay with processes that no container list shows.
def _c75(_: float) -> Gpus:
    return [gpu(0, "NVIDIA GeForce RTX 4090", 24564, {8800: 20981}, unowned_mib=12)]


PLANS["C75"] = Plan(
    Server((0, 18, 0), started_at=STARTED, blocks=4_001),
    [
        Track(
            "m",
            [
                Stretch(20, 2, 0, (0.05, 0.055, 0.05), 80),
                Stretch(90, error="refused"),
            ],
            mean_prompt=600,
            mean_generation=300,
            before=30,
            resident=(1200, 300),
        )
    ],
    gpus=_c75,
)


# C76: TP8; a kernel fails to launch, GPU 3 shows ERR! in every field, the others are let go.
def _c76(at: float) -> Gpus:
    name = "NVIDIA H200"
    if at < 30:
        return [gpu(i, name, 143771, {300 + i: 128000}, reserved_mib=615) for i in range(8)]
    return [
        broken_gpu(i, name, "Unknown Error")
        if i == 3
        else gpu(i, name, 143771, {}, reserved_mib=615)
        for i in range(8)
    ]


PLANS["C76"] = Plan(
    Server((0, 11, 0), started_at=STARTED, blocks=60_001),
    [
        Track(
            "m",
            [
                Stretch(30, 12, 0, (0.115, 0.12, 0.119), 402, every=3),
                Stretch(60, error="refused", every=3),
            ],
            mean_prompt=600,
            mean_generation=300,
            before=200,
            resident=(90000, 20000),
        )
    ],
    ("--tensor-parallel-size", "8"),
    gpus=_c76,
)


# C80: 0.28 takes host memory while it starts, until the kernel ends it. No figures in the report.
def _c80(at: float) -> Gpus:
    own = {66: 500 + 150 * at} if at < 70 else {}
    return [gpu(0, "NVIDIA H100 80GB HBM3", 81559, own)]


PLANS["C80"] = Plan(
    Server((0, 28, 0)),
    [Track("m", [Stretch(80, error="refused")])],
    ("--max-model-len", "32768"),
    gpus=_c80,
    host=lambda at: host(131072, 110000 - 1560 * at if at < 70 else 112000, 4000 if at > 50 else 0),
)
