"""Partitioned GPUs: which parts are read, under which name, and what the whole is never asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_pynvml import MIB, FakeGpu, FakePart, FakePynvml

from sidecar.model import Failure, GpuProcess, GpuReading, GpuReport
from sidecar.sources.nvml import NvmlSource, parse_selection


def memory(used: int) -> SimpleNamespace:
    return SimpleNamespace(
        total=18_432 * MIB, used=used * MIB, free=(18_400 - used) * MIB, reserved=32 * MIB
    )


def process(pid: int, used: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if used is None else used * MIB)


def partitioned() -> FakePynvml:
    """A whole GPU, and one with three GPU instances, of which one has two compute instances."""
    shared = memory(7000)
    parts = (
        FakePart("MIG-e0", 5, 0, memory(10)),
        None,
        FakePart("MIG-c1", 3, 1, shared, (process(31, 4000),)),
        FakePart("MIG-c0", 3, 0, shared, (process(30, 3000),)),
        FakePart("MIG-d0", 4, 0, memory(500), (process(40),)),
    )
    return FakePynvml(FakeGpu("GPU-whole"), FakeGpu("GPU-cut", parts=parts))


async def read(
    library: FakePynvml, tmp_path: Path, gpus: str = "all"
) -> tuple[GpuReading, ...] | Failure | None:
    source = NvmlSource(parse_selection(gpus), library=library, proc=tmp_path)
    answer = await source.read()
    await source.close()
    return answer.gpus if isinstance(answer, GpuReport) else answer


async def test_each_gpu_instance_is_one_reading(tmp_path: Path) -> None:
    library = partitioned()
    readings = await read(library, tmp_path)
    assert isinstance(readings, tuple)
    whole, first, second, third = readings
    assert (whole.index, whole.uuid, whole.mig_instance) == (0, "GPU-whole", None)
    assert first.processes == (GpuProcess(30, 3000 * MIB), GpuProcess(31, 4000 * MIB))
    assert first.memory is not None
    assert first.memory.used_bytes == 7000 * MIB, "compute instances share the memory"
    assert second.processes == (GpuProcess(40, None),)
    assert third.processes == ()
    assert [(gpu.index, gpu.uuid, gpu.mig_instance) for gpu in readings[1:]] == [
        (1, "MIG-c0", "gi 3"),
        (1, "MIG-d0", "gi 4"),
        (1, "MIG-e0", "gi 5"),
    ]
    for gpu in readings[1:]:
        assert gpu.utilization_ratio is None
        assert gpu.error is None, "no utilisation is what a part has"
        assert gpu.name == "NVIDIA H200 MIG 1g.18gb"
    assert library.calls["utilization"] == 1
    for call in ("memory_v2", "memory_v1", "processes_v3"):
        assert library.calls[call, 1] == 0, "the whole of a partitioned GPU is never asked"


@pytest.mark.parametrize(
    ("gpus", "uuids"),
    [
        ("0", ["GPU-whole"]),
        ("1", ["MIG-c0", "MIG-d0", "MIG-e0"]),
        ("GPU-cut", ["MIG-c0", "MIG-d0", "MIG-e0"]),
        ("GPU-c", ["MIG-c0", "MIG-d0", "MIG-e0"]),
        ("MIG-d0", ["MIG-d0"]),
        ("mig-D", ["MIG-d0"]),
        ("MIG-c1", ["MIG-c0"]),
        ("MIG-c", ["MIG-c0"]),
        ("MIG-GPU-cut/4/0", ["MIG-d0"]),
        ("MIG-d0,MIG-e0,0", ["GPU-whole", "MIG-d0", "MIG-e0"]),
    ],
)
async def test_parts_are_selected_by_any_of_their_names(
    tmp_path: Path, gpus: str, uuids: list[str]
) -> None:
    readings = await read(partitioned(), tmp_path, gpus)
    assert isinstance(readings, tuple)
    assert [gpu.uuid for gpu in readings] == uuids


@pytest.mark.parametrize(
    ("gpus", "said"), [("MIG-ff", "GPU MIG-ff is not there"), ("MIG-", "is no GPU")]
)
async def test_a_part_that_is_not_there(tmp_path: Path, gpus: str, said: str) -> None:
    if gpus == "MIG-":
        with pytest.raises(ValueError, match=said):
            parse_selection(gpus)
        return
    failure = await read(partitioned(), tmp_path, gpus)
    assert isinstance(failure, Failure)
    assert said in failure.detail
    assert "1 (MIG-c0)" in failure.detail


@pytest.mark.parametrize("code", [2, 4, 6])
async def test_parts_of_others_are_not_seen(tmp_path: Path, code: int) -> None:
    library = partitioned()
    library.errors["nvmlDeviceGetGpuInstanceId", "MIG-d0"] = code
    readings = await read(library, tmp_path, "1")
    assert isinstance(readings, tuple)
    assert [gpu.uuid for gpu in readings] == ["MIG-c0", "MIG-e0"]


@pytest.mark.parametrize("code", [3, 4, 13])
async def test_a_gpu_that_knows_no_partitions_is_whole(tmp_path: Path, code: int) -> None:
    library = FakePynvml(FakeGpu("GPU-old"))
    library.errors["nvmlDeviceGetMigMode"] = code
    library.errors["nvmlDeviceGetMaxMigDeviceCount"] = code
    readings = await read(library, tmp_path)
    assert isinstance(readings, tuple)
    assert readings[0].memory is not None


async def test_memory_of_a_part_is_never_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemAvailable: 500 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    library = partitioned()
    library.errors["memory_v2"] = library.errors["memory_v1"] = 3
    readings = await read(library, tmp_path, "MIG-d0,0")
    assert isinstance(readings, tuple)
    whole, part = readings
    assert whole.unified
    assert (part.memory, part.unified) == (None, False)
    assert part.error == "memory: not supported by this device"


async def test_no_permission_is_remembered(tmp_path: Path) -> None:
    library = partitioned()
    for call in ("memory_v2", "memory_v1"):
        library.errors[call, "MIG-d0"] = 4
    source = NvmlSource(parse_selection("MIG-d0"), library=library, proc=tmp_path)
    for _ in range(4):
        report = await source.read()
        assert isinstance(report, GpuReport)
        assert report.gpus[0].memory is None
    await source.close()
    assert library.calls["memory_v2", "MIG-d0"] == 1
    assert library.calls["memory_v1", "MIG-d0"] == 1
    assert library.calls["nvmlDeviceGetMigMode"] == 2, "once a GPU, at the start"


async def test_parts_are_looked_for_anew_when_all_are_gone(tmp_path: Path) -> None:
    now = 0.0
    library = FakePynvml(FakeGpu("GPU-cut", parts=(FakePart("MIG-old", 3, 0, memory(5)),)))
    source = NvmlSource(library=library, proc=tmp_path, clock=lambda: now)
    assert isinstance(await source.read(), GpuReport)
    library.gpus[0].parts = ()
    library.errors["memory_v2", "MIG-old"] = 6
    failure = await source.read()
    assert isinstance(failure, Failure)
    assert failure.detail.startswith("GPU 0 gi 3: ")
    now += 30.0
    failure = await source.read()
    assert isinstance(failure, Failure)
    assert "nvidia-smi mig -cgi" in failure.detail
    library.gpus[0].parts = (FakePart("MIG-new", 9, 0, memory(5)),)
    now += 30.0
    report = await source.read()
    assert isinstance(report, GpuReport)
    assert [gpu.uuid for gpu in report.gpus] == ["MIG-new"]
    await source.close()


async def test_a_gpu_partitioned_meanwhile_is_not_read_as_a_whole(tmp_path: Path) -> None:
    now = 0.0
    library = FakePynvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
    source = NvmlSource(library=library, proc=tmp_path, clock=lambda: now)
    await source.read()
    library.errors["memory_v2", 1] = 15
    await source.read()
    library.errors.clear()
    library.gpus[1].parts = (FakePart("MIG-new", 9, 0, memory(5)),)
    now += 30.0
    report = await source.read()
    assert isinstance(report, GpuReport)
    assert report.gpus[1].memory is None
    assert report.gpus[1].error is not None
    assert "restart the sidecar" in report.gpus[1].error
    await source.close()
