"""What real machines answered, what is then exported, and what is then said: a row a machine.

The figures are from public reports, named in each row; a fake driver gives them. Memory is in MiB,
as nvidia-smi prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_pynvml import MIB, FakeGpu, FakePart, FakePynvml
from synthetic import engine, history, measured, reason, snapshot

from sidecar.history import History
from sidecar.model import Failure, GpuReport
from sidecar.sources.host import read_host
from sidecar.sources.nvml import ALL, NvmlSource, parse_selection

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, MISMATCH, UNKNOWN = 9, 12, 15, 18, 999
MEMORY = ("memory_v2", "memory_v1")
PROCESSES = ("processes_v3", "processes_v2", "processes")
NOT_AVAILABLE = 2**64 - 1

USED = "gpu_memory_used_bytes"
TOTAL = "gpu_memory_total_bytes"
FREE = "gpu_memory_free_bytes"
UTILIZATION = "gpu_utilization_ratio"
VLLM, OTHER, UNKNOWN_OWNER = (
    f"gpu_memory_owner_bytes {owner}" for owner in ("vllm", "other", "unknown")
)


def sizes(used: int, total: int, reserved: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        total=total * MIB,
        used=used * MIB,
        free=(total - used - reserved) * MIB,
        reserved=reserved * MIB,
    )


def process(pid: int, used: int | None) -> SimpleNamespace:
    held = None if used is None else used if used == NOT_AVAILABLE else used * MIB
    return SimpleNamespace(pid=pid, usedGpuMemory=held)


def gpu(used: int, total: int, *processes: SimpleNamespace, busy_percent: int = 0) -> FakeGpu:
    return FakeGpu(
        "GPU-a", memory=sizes(used, total), processes=processes, busy_percent=busy_percent
    )


def meminfo(total: int, available: int, swap_used: int = 0) -> str:
    lines = {
        "MemTotal": total,
        "MemFree": available // 2,
        "MemAvailable": available,
        "SwapTotal": 16_384,
        "SwapFree": 16_384 - swap_used,
    }
    return "".join(f"{name + ':':<16}{value * 1024:>8} kB\n" for name, value in lines.items())


def partitioned(*parts: FakePart | None) -> FakeGpu:
    """An H200 in MIG mode: 141 GB that none of its parts has."""
    return FakeGpu("GPU-a", parts=parts)


def part(uuid: str, instance: int, used: int, compute: int = 0) -> FakePart:
    return FakePart(uuid, instance, compute, sizes(used, 16_384), (process(77, used - 100),))


@dataclass(frozen=True)
class Machine:
    """`errors` are by call; `exported` in MiB or ratios; `absent` with the reason or None."""

    name: str
    gpus: tuple[FakeGpu, ...] = ()
    errors: Mapping[str | tuple[str, int | str], int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    gpus_setting: str = "all"
    serving: bool = True
    exported: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str | None] = field(default_factory=dict)
    said: str | None = None
    failure: str | None = None


def every(calls: tuple[str, ...], code: int) -> dict[str | tuple[str, int | str], int]:
    return dict.fromkeys(calls, code)


NOTHING = {USED: None, TOTAL: None, "gpu_up": None}
WSL = {"sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"}
GB10 = {**every(MEMORY, NOT_SUPPORTED)}

MACHINES = [
    Machine(
        # an L40S, driver 580.126.09
        "one process",
        (gpu(803, 46_068, process(5997, 794)),),
        exported={USED: 803, TOTAL: 46_068, VLLM: 794, OTHER: 0, UNKNOWN_OWNER: 9, UTILIZATION: 0},
    ),
    Machine(
        # github.com/NVIDIA/nvidia-container-toolkit/issues/1013: RTX 4090, driver 535.183.01
        "a container without the host's processes",
        (gpu(7325, 24_564),),
        exported={USED: 7325, VLLM: 7325, OTHER: 0},
        absent={"gpu_memory_growth_bytes": "owners_unknown"},
    ),
    Machine(
        # github.com/PrimeIntellect-ai/verifiers/issues/85: vLLM is gone, its memory is not
        "an orphan that computes on",
        (gpu(46_867, 49_140, busy_percent=100),),
        serving=False,
        exported={USED: 46_867, UNKNOWN_OWNER: 46_867, UTILIZATION: 1.0},
        absent={VLLM: "owners_unknown"},
    ),
    Machine(
        # github.com/vllm-project/vllm/issues/19125: the first of two on a card of 8 GB
        "half of a small card is taken",
        (gpu(3578, 8188),),
        every(PROCESSES, NOT_SUPPORTED),
        serving=False,
        exported={FREE: 4610, UNKNOWN_OWNER: 3578, "gpu_headroom_ratio": 4610 / 8188},
        absent={VLLM: "owners_unknown"},
        said="processes: not supported by this device",
    ),
    # github.com/vllm-project/vllm-ascend/issues/89: used of 64 GB, always above the budget
    *(
        Machine(
            f"a 7B model at utilisation {share}",
            (gpu(used, 65_536, process(1, used)),),
            exported={VLLM: used, FREE: 65_536 - used},
        )
        for share, used in ((0.4, 37_069), (0.6, 49_459), (0.8, 61_952), (0.9, 64_819))
    ),
    Machine(
        # the same, at 0.2 and 0.95: out of memory, so nothing serves and nothing is held
        "a 7B model that did not fit",
        (gpu(0, 65_536),),
        serving=False,
        exported={USED: 0, "gpu_headroom_ratio": 1.0, UNKNOWN_OWNER: 0},
        absent={VLLM: "owners_unknown", OTHER: "owners_unknown"},
    ),
    Machine(
        # vllm pull request 50463: a container with one MIG device, whose whole GPU is forbidden
        "a part of a GPU that may not be read itself",
        (partitioned(None, part("MIG-1", 3, 9000)),),
        {("memory_v2", 0): NO_PERMISSION, ("memory_v1", 0): NO_PERMISSION},
        exported={TOTAL: 16_384, USED: 9000, VLLM: 8900, UNKNOWN_OWNER: 100},
        absent={UTILIZATION: "not_supported"},
    ),
    Machine(
        # the same, where even the mode is a secret
        "a part of a GPU of which nothing may be read",
        (partitioned(part("MIG-1", 3, 9000)),),
        {"nvmlDeviceGetMigMode": NO_PERMISSION, ("memory_v2", 0): NO_PERMISSION},
        exported={TOTAL: 16_384, USED: 9000},
    ),
    Machine(
        # vLLM 0.19 to 0.26: 141 GB were taken for a slice of 16 GB
        "a part of a GPU that is asked by its UUID",
        (partitioned(part("MIG-1", 3, 9000), part("MIG-2", 4, 50)),),
        gpus_setting="MIG-2",
        exported={TOTAL: 16_384, USED: 50},
    ),
    Machine(
        # github.com/NVIDIA-AI-Blueprints/video-search-and-summarization/issues/25
        "a GPU that may not be read and shows no part",
        (gpu(9000, 81_920),),
        every((*MEMORY, "utilization", *PROCESSES, "nvmlDeviceGetMigMode"), NO_PERMISSION),
        absent=NOTHING,
        failure="no_permission",
        said="no permission: give the container this GPU",
    ),
    Machine(
        "a partitioned GPU without parts",
        (partitioned(),),
        absent=NOTHING,
        failure="no_devices",
        said="`nvidia-smi mig -cgi",
    ),
    Machine(
        # github.com/NVIDIA/nvidia-container-toolkit/issues/48 and 1227
        "a container after `systemctl daemon-reload`",
        (gpu(7325, 24_564),),
        every(("nvmlInit",), UNKNOWN),
        absent=NOTHING,
        failure="unknown_error",
        said="recreate the container",
    ),
    Machine(
        "the same, while it was being read",
        (gpu(7325, 24_564),),
        every((*MEMORY, "utilization", *PROCESSES), UNKNOWN),
        absent=NOTHING,
        failure="unknown_error",
        said="recreate the container",
    ),
    Machine(
        "a GB10 after the same",
        (gpu(0, 1),),
        {**GB10, **every(("utilization", *PROCESSES), UNKNOWN)},
        {"meminfo": meminfo(124_546, 288)},
        absent=NOTHING,
        failure="unknown_error",
        said="recreate the container",
    ),
    # A DGX Spark with vLLM 0.24 and 36 GiB for KV: the last samples before the host fell silent
    *(
        Machine(
            f"a GB10 about to freeze, {used} MiB in use",
            (gpu(0, 1, process(9, 60_000), busy_percent=busy),),
            GB10,
            {"meminfo": meminfo(124_546, 124_546 - used, swap)},
            exported={
                TOTAL: 124_546,
                USED: used,
                FREE: 124_546 - used,
                VLLM: 60_000,
                UTILIZATION: busy / 100,
                "host_memory_available_bytes": 124_546 - used,
                "host_swap_used_bytes": swap,
            },
            absent={"gpu_memory_reserved_bytes": "unified_memory"},
        )
        for used, swap, busy in ((124_258, 572, 96), (116_652, 316, 0), (118_280, 61, 96))
    ),
    Machine(
        "a GB10 that does not list its processes",
        (gpu(0, 1),),
        GB10,
        {"meminfo": meminfo(124_546, 60_000)},
        exported={USED: 64_546, UNKNOWN_OWNER: 64_546},
        absent={VLLM: "owners_unknown"},
    ),
    Machine(
        # vLLM 0.6.3 on a Jetson: killed by the host at 0.9 of a memory that all share
        "a Jetson, whose driver says little",
        (gpu(0, 1),),
        {**GB10, **every(("utilization", *PROCESSES), NOT_SUPPORTED)},
        {"meminfo": meminfo(62_800, 1200)},
        exported={TOTAL: 62_800, FREE: 1200, "host_memory_total_bytes": 62_800},
        absent={UTILIZATION: "not_supported", VLLM: "owners_unknown"},
        said="utilisation: not supported by this device; processes: not supported by this device",
    ),
    Machine(
        "a GB10 in a container without /proc/meminfo",
        (gpu(0, 1),),
        GB10,
        exported={UTILIZATION: 0, "gpu_up": 0},
        absent={USED: "not_readable", TOTAL: None, "host_memory_total_bytes": None},
        said="memory: not supported by this device",
    ),
    *(
        Machine(
            f"a GB10 that fails with {code} is no GB10 that works",
            (gpu(0, 1),),
            {"memory_v2": NOT_SUPPORTED, "memory_v1": code},
            {"meminfo": meminfo(124_546, 60_000)},
            absent={USED: absence, TOTAL: None},
            failure=failure,
            said=said,
        )
        for code, absence, failure, said in (
            (GPU_IS_LOST, None, "gpu_lost", "fallen off the bus"),
            (MISMATCH, None, "version_mismatch", "reboot the host"),
            (UNKNOWN, "not_readable", None, "recreate the container"),
            (NO_PERMISSION, "not_readable", None, "memory: not supported"),
        )
    ),
    Machine(
        # github.com/microsoft/WSL/issues/7162: utilisation N/A, no process listed
        "WSL",
        (gpu(30_843, 32_604),),
        every(("utilization",), NOT_SUPPORTED),
        WSL,
        exported={USED: 30_843, UNKNOWN_OWNER: 30_843},
        absent={VLLM: "owners_unknown", UTILIZATION: "not_supported"},
        said="WSL does not show them",
    ),
    *(
        Machine(
            f"WSL that lists a process and not its bytes ({mark})",
            (gpu(2880, 8192, process(25, mark)),),
            files=WSL,
            exported={USED: 2880, UNKNOWN_OWNER: 2880},
            absent={VLLM: "owners_unknown", OTHER: "owners_unknown"},
        )
        for mark in (None, NOT_AVAILABLE)
    ),
    Machine(
        "sizes that are markers",
        (
            FakeGpu(
                "GPU-a",
                memory=SimpleNamespace(
                    total=NOT_AVAILABLE, used=NOT_AVAILABLE + 1, free=0, reserved=0
                ),
            ),
        ),
        exported={"gpu_up": 0, UTILIZATION: 0.37},
        absent={USED: "not_readable", TOTAL: None},
        said="without usable sizes",
    ),
    Machine(
        "sizes that are all zero",
        (gpu(0, 0),),
        exported={"gpu_up": 0},
        absent={USED: "not_readable", TOTAL: None, FREE: None},
        said="without usable sizes",
    ),
    Machine(
        "a driver that was updated underneath",
        (gpu(803, 46_068),),
        every(("nvmlInit",), MISMATCH),
        absent=NOTHING,
        failure="version_mismatch",
        said="reboot the host or reload the module, then recreate the container",
    ),
    Machine(
        "a device that the cgroup took away",
        (gpu(803, 46_068),),
        every(("nvmlInit",), 17),
        absent=NOTHING,
        failure="no_permission",
        said="recreate the container with `--gpus`",
    ),
    Machine(
        # eight GPUs with a launch failure: "ERR!" in nvidia-smi until the reboot
        "one GPU of two is lost",
        (gpu(803, 46_068, process(1, 700)), FakeGpu("GPU-b")),
        {("memory_v2", 1): GPU_IS_LOST},
        exported={f"{USED} 0 GPU-a": 803, "gpu_up 0 GPU-a": 1, "gpu_up 1 GPU-b": 0},
        absent={f"{USED} 1 GPU-b": "not_readable"},
        said="see Xid in `dmesg`, then reset it or reboot the host",
    ),
    Machine(
        "the only GPU is lost",
        (gpu(803, 46_068),),
        {"memory_v2": GPU_IS_LOST},
        absent=NOTHING,
        failure="gpu_lost",
        said="then reset it or reboot the host",
    ),
    # A host with GPUs of AMD, or none: there is nothing to be missed.
    *(
        Machine(f"no NVIDIA GPU ({code})", errors=every(("nvmlInit",), code), absent=NOTHING)
        for code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, NOT_FOUND)
    ),
    *(
        Machine(
            f"no NVIDIA GPU ({code}) where one was named",
            errors=every(("nvmlInit",), code),
            gpus_setting="0",
            absent=NOTHING,
            failure=failure,
            said=said,
        )
        for code, failure, said in (
            (LIBRARY_NOT_FOUND, "library_missing", "install the NVIDIA driver (under WSL, that"),
            (DRIVER_NOT_LOADED, "driver_not_loaded", "`modprobe nvidia`"),
            (NOT_FOUND, "no_devices", "a container needs `--gpus`"),
        )
    ),
    Machine("a driver without devices", absent=NOTHING),
    Machine(
        "a driver without devices where one was named",
        gpus_setting="GPU-a",
        absent=NOTHING,
        failure="no_devices",
        said="GPU GPU-a is not there; present: none",
    ),
]


@dataclass(frozen=True)
class Seen:
    """What became of one read: the history behind the indicators, the failure, what was said."""

    history: History
    failure: Failure | None
    said: tuple[str, ...]


async def look(machine: Machine, proc: Path) -> Seen:
    for name, text in machine.files.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    library = FakePynvml(*machine.gpus)
    library.errors = dict(machine.errors)
    selection = ALL if machine.gpus_setting == "all" else parse_selection(machine.gpus_setting)
    source = NvmlSource(selection, library=library, proc=proc)
    answer = await source.read()
    again = await source.read()
    await source.close()
    engines = [engine()] if machine.serving else []
    poll = replace(snapshot(0, *engines), gpus=again, host=read_host(proc))
    if isinstance(answer, GpuReport):
        assert isinstance(again, GpuReport)
        assert again.gpus == answer.gpus, "what is remembered reads like what was asked"
        said = tuple(gpu.error for gpu in answer.gpus if gpu.error is not None)
        return Seen(history(poll), None, said)
    return Seen(history(poll), answer, (answer.detail,) if answer else ())


def in_unit(name: str, value: float) -> float:
    return value * MIB if "_bytes" in name else value


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
async def test_what_is_exported_and_said(machine: Machine, tmp_path: Path) -> None:
    seen = await look(machine, tmp_path)
    for name, value in machine.exported.items():
        indicator, *labels = name.split()
        found = measured(seen.history, indicator, *labels)
        assert found == pytest.approx(in_unit(name, value)), name
    for name, why in machine.absent.items():
        indicator, *labels = name.split()
        assert measured(seen.history, indicator, *labels) is None, name
        assert reason(seen.history, indicator) == why, name
    assert (seen.failure.reason if seen.failure else None) == machine.failure
    assert any(machine.said in line for line in seen.said) if machine.said else seen.said == ()
    assert all("\n" not in line for line in seen.said)


async def test_memory_that_stays_after_each_sleep_is_followed(tmp_path: Path) -> None:
    """github.com/NVIDIA-NeMo/RL/issues/2619: GiB that vLLM still holds after each sleep."""
    device = gpu(70_000, 81_559)
    source = NvmlSource(library=FakePynvml(device), proc=tmp_path)
    seen: list[float | None] = []
    polls = []
    for step, held in enumerate((4.11, 11.57, 25.0, 24.0)):
        for asleep, used in ((False, 70_000), (True, round(held * 1024))):
            device.memory = sizes(used, 81_559)
            device.processes = (process(5, used),)
            report = await source.read()
            assert isinstance(report, GpuReport)
            at = 2.0 * step + asleep
            polls.append(snapshot(at, engine(sleeping=asleep), gpus=report.gpus))
        seen.append(measured(history(*polls), "gpu_memory_owner_bytes", "vllm"))
    await source.close()
    assert seen == [value * MIB for value in (4209, 11_848, 25_600, 24_576)]
