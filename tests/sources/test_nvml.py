"""The NVML source against a scripted library: readings, troubles, absence, and coming back."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_pynvml import (
    MIB,
    FakeGpu,
    FakePynvml,
    NVMLLibraryMismatchError,
    one_gpu,
    two_gpus,
)

from sidecar.model import Failure, GpuMemory, GpuProcess, GpuReading, GpuReport
from sidecar.sources.nvml import (
    ALL,
    FAILURE_REASONS,
    GpuSelection,
    NvmlSource,
    parse_selection,
)

UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 3, 4, 6
DRIVER_NOT_LOADED, NVML_TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999
PROCESS_CALLS = ("processes_v3", "processes_v2", "processes")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., NvmlSource]


@pytest.fixture
async def make(clock: Clock, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes sources for a host of which nothing is known but its devices."""
    sources: list[NvmlSource] = []

    def build(
        library: FakePynvml, selection: GpuSelection = ALL, deadline_seconds: float = 2.0
    ) -> NvmlSource:
        source = NvmlSource(
            selection,
            library=library,
            clock=clock,
            deadline_seconds=deadline_seconds,
            proc=tmp_path,
        )
        sources.append(source)
        return source

    yield build
    for source in sources:
        await source.close()


async def report_of(source: NvmlSource) -> GpuReport:
    answer = await source.read()
    assert isinstance(answer, GpuReport), answer
    return answer


async def reading_of(source: NvmlSource) -> GpuReading:
    (reading,) = (await report_of(source)).gpus
    return reading


async def failure_of(source: NvmlSource) -> Failure:
    answer = await source.read()
    assert isinstance(answer, Failure), answer
    assert answer.reason in FAILURE_REASONS
    assert answer.detail
    assert "\n" not in answer.detail
    return answer


# -- What a healthy device gives ------------------------------------------------------------------


async def test_a_reading_has_bytes_and_ratios(make: Make) -> None:
    report = await report_of(make(one_gpu()))
    assert report.driver_version == "590.48.01"
    assert report.gpus == (
        GpuReading(
            index=0,
            uuid="GPU-aaaa",
            name="NVIDIA H200",
            memory=GpuMemory(143_771 * MIB, 126_000 * MIB, 17_157 * MIB, 614 * MIB),
            utilization_ratio=0.37,
            memory_bandwidth_ratio=0.12,
            processes=(GpuProcess(4242, 5 * MIB),),
        ),
    )
    memory = report.gpus[0].memory
    assert memory is not None
    assert memory.reserved_bytes is not None
    assert memory.total_bytes == memory.used_bytes + memory.free_bytes + memory.reserved_bytes


async def test_seconds_are_measured_with_the_clock(make: Make, clock: Clock) -> None:
    library = one_gpu()

    def take_time(name: str) -> None:
        clock.now += 0.25 if name == "utilization" else 0.0

    library.on_call = take_time
    assert (await report_of(make(library))).seconds == 0.25


async def test_bytes_of_old_bindings_become_text(make: Make) -> None:
    library = FakePynvml(FakeGpu(b"GPU-aaaa", name=b"Tesla T4"), driver=b"535.1")
    report = await report_of(make(library, parse_selection("GPU-aa")))
    assert (report.driver_version, report.gpus[0].uuid, report.gpus[0].name) == (
        "535.1",
        "GPU-aaaa",
        "Tesla T4",
    )


@pytest.mark.parametrize(
    ("used", "expected"), [(7, 7), (0, 0), (None, None), (2**64 - 1, None)], ids=str
)
async def test_process_bytes_that_the_driver_does_not_say_are_none(
    make: Make, used: int | None, expected: int | None
) -> None:
    process = SimpleNamespace(pid=1, usedGpuMemory=used)
    reading = await reading_of(make(FakePynvml(FakeGpu("GPU-a", processes=(process,)))))
    assert reading.processes == (GpuProcess(1, expected),)


async def test_no_process_is_an_empty_list_and_not_none(make: Make) -> None:
    reading = await reading_of(make(FakePynvml(FakeGpu("GPU-a", processes=()))))
    assert reading.processes == ()


async def test_identity_and_driver_are_asked_once(make: Make) -> None:
    library = one_gpu()
    source = make(library)
    for _ in range(3):
        await report_of(source)
    for name in (
        "nvmlInit",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
    ):
        assert library.calls[name] == 1
    assert library.calls["memory_v2"] == 3


async def test_a_driver_that_hides_its_version_is_read_all_the_same(make: Make) -> None:
    library = one_gpu()
    library.errors["nvmlSystemGetDriverVersion"] = NOT_SUPPORTED
    report = await report_of(make(library))
    assert report.driver_version is None
    assert report.gpus[0].error is None


async def test_presence_is_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = make(two_gpus())
    await source.read()
    await source.read()
    assert caplog.messages == ["NVML: driver 590.48.01, watching GPU 0 (GPU-aaaa), 1 (GPU-bbbb)"]


# -- Parts that a device refuses ------------------------------------------------------------------


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, NOT_SUPPORTED, 25])
async def test_memory_falls_back_to_the_call_without_a_reserve(make: Make, code: int) -> None:
    library = one_gpu()
    library.errors["memory_v2"] = code
    source = make(library)
    for _ in range(3):
        reading = await reading_of(source)
        assert reading.memory == GpuMemory(143_771 * MIB, 126_614 * MIB, 17_157 * MIB, None)
        assert reading.error is None
    assert (library.calls["memory_v2"], library.calls["memory_v1"]) == (1, 3)


@pytest.mark.parametrize(
    ("errors", "asked"),
    [
        ({"processes_v3": FUNCTION_NOT_FOUND}, (1, 2, 0)),
        ({"processes_v3": FUNCTION_NOT_FOUND, "processes_v2": FUNCTION_NOT_FOUND}, (1, 1, 2)),
    ],
    ids=["v2", "unversioned"],
)
async def test_processes_fall_back_to_older_calls(
    make: Make,
    errors: dict[str | tuple[str, int | str], int | Exception],
    asked: tuple[int, int, int],
) -> None:
    library = one_gpu()
    library.errors = errors
    source = make(library)
    for _ in range(2):
        reading = await reading_of(source)
        assert (reading.processes, reading.error) == ((GpuProcess(4242, 5 * MIB),), None)
    assert tuple(library.calls[name] for name in PROCESS_CALLS) == asked


async def test_a_binding_without_a_call_uses_the_older_one(make: Make) -> None:
    class OldBinding(FakePynvml):
        def __getattribute__(self, name: str) -> object:
            if name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlMemory_v2"):
                raise AttributeError(name)
            return super().__getattribute__(name)

    library = OldBinding(FakeGpu("GPU-aaaa"))
    reading = await reading_of(make(library))
    assert reading.processes == (GpuProcess(4242, 5 * MIB),)
    assert reading.memory is not None
    assert reading.memory.reserved_bytes is None
    assert reading.error is None


PART_TROUBLES = [
    # calls that fail, with what, which fields are then None, and what the line says
    (("utilization",), NOT_SUPPORTED, {"utilization_ratio"}, "utilisation: not supported"),
    (("utilization",), NO_PERMISSION, {"utilization_ratio"}, "utilisation: no permission"),
    (("utilization",), UNKNOWN, {"utilization_ratio"}, "recreate the container"),
    (("memory_v2", "memory_v1"), NOT_SUPPORTED, {"memory"}, "memory: not supported"),
    (("memory_v2",), NVML_TIMEOUT, {"memory"}, "memory: the driver gave up waiting"),
    (PROCESS_CALLS, NOT_SUPPORTED, {"processes"}, "processes: not supported"),
    (PROCESS_CALLS, NO_PERMISSION, {"processes"}, "processes: no permission"),
    (PROCESS_CALLS, NVMLLibraryMismatchError("x"), {"processes"}, "nvidia-ml-py is too new"),
    (PROCESS_CALLS, 777, {"processes"}, "processes: NVML error 777: error 777"),
]


@pytest.mark.parametrize(("calls", "error", "blank", "text"), PART_TROUBLES)
async def test_one_part_that_fails_leaves_the_others(
    make: Make, calls: tuple[str, ...], error: int | Exception, blank: set[str], text: str
) -> None:
    library = one_gpu()
    library.errors = {call: error for call in calls}  # noqa: C420 - keeps the wide key type
    reading = await reading_of(make(library))
    parts = ("memory", "utilization_ratio", "processes")
    assert {part for part in parts if getattr(reading, part) is None} == blank
    assert (reading.memory_bandwidth_ratio is None) == ("utilization_ratio" in blank)
    assert reading.error is not None
    assert text in reading.error
    assert "\n" not in reading.error


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
async def test_what_a_device_refuses_is_never_asked_again(make: Make, code: int) -> None:
    library = two_gpus()
    for name in ("utilization", *PROCESS_CALLS):
        library.errors[name, 0] = code
    source = make(library)
    errors = {(await report_of(source)).gpus[0].error for _ in range(5)}
    assert len(errors) == 1
    assert None not in errors
    for name in ("utilization", *PROCESS_CALLS):
        assert library.calls[name, 0] == 1
    assert library.calls["utilization", 1] == 5
    assert library.calls["processes_v3", 1] == 5


async def test_a_call_that_exists_explains_more_than_one_that_does_not(make: Make) -> None:
    library = one_gpu()
    library.errors = {
        "processes_v3": FUNCTION_NOT_FOUND,
        "processes_v2": NO_PERMISSION,
        "processes": NVMLLibraryMismatchError(),
    }
    reading = await reading_of(make(library))
    assert reading.error is not None
    assert "no permission" in reading.error


async def test_a_passing_error_is_asked_again(make: Make) -> None:
    library = one_gpu()
    library.errors["memory_v2"] = NVML_TIMEOUT
    source = make(library)
    assert (await reading_of(source)).memory is None
    assert library.calls["memory_v1"] == 0
    library.errors.clear()
    reading = await reading_of(source)
    assert reading.memory is not None
    assert reading.error is None


# -- Slow process lists ---------------------------------------------------------------------------


async def test_a_slow_process_list_is_asked_every_five_seconds(make: Make, clock: Clock) -> None:
    library = one_gpu()

    def take_time(name: str) -> None:
        clock.now += 0.006 if name == "processes_v3" else 0.0

    library.on_call = take_time
    source = make(library)
    for _ in range(11):
        assert (await reading_of(source)).processes == (GpuProcess(4242, 5 * MIB),)
        clock.now += 1.0
    assert library.calls["processes_v3"] == 3
    assert library.calls["memory_v2"] == 11


async def test_a_fast_process_list_is_asked_each_time(make: Make, clock: Clock) -> None:
    library = one_gpu()

    def take_time(name: str) -> None:
        clock.now += 0.004 if name == "processes_v3" else 0.0

    library.on_call = take_time
    source = make(library)
    for _ in range(4):
        await report_of(source)
    assert library.calls["processes_v3"] == 4


async def test_a_kept_process_list_does_not_outlive_its_failure(make: Make, clock: Clock) -> None:
    library = one_gpu()

    def take_time(name: str) -> None:
        clock.now += 0.006 if name == "processes_v3" else 0.0

    library.on_call = take_time
    source = make(library)
    await report_of(source)
    library.errors["processes_v3"] = NVML_TIMEOUT
    clock.now += 5.0
    for _ in range(2):
        assert (await reading_of(source)).processes is None


# -- One device of two ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED])
async def test_a_lost_gpu_leaves_the_other_and_is_opened_anew(
    make: Make, clock: Clock, code: int
) -> None:
    library = two_gpus()
    source = make(library)
    await report_of(source)
    library.errors["memory_v2", 1] = code
    for _ in range(4):
        good, lost = (await report_of(source)).gpus
        assert good.memory is not None
        assert good.error is None
        assert (lost.index, lost.uuid, lost.name) == (1, "GPU-bbbb", "NVIDIA H200")
        assert (lost.memory, lost.utilization_ratio, lost.processes) == (None, None, None)
        assert lost.error is not None
        assert "reset" in lost.error
        clock.now += 7.0
    assert library.calls["memory_v2", 1] == 2, "a lost GPU must be left alone for a while"
    library.errors.clear()
    clock.now += 7.0
    good, back = (await report_of(source)).gpus
    assert back.memory is not None
    assert back.error is None
    assert library.calls["nvmlInit"] == 1, "the healthy GPU must not be disturbed"


async def test_a_gpu_broken_from_the_start_is_reported_by_index(make: Make, clock: Clock) -> None:
    library = two_gpus()
    library.errors["nvmlDeviceGetHandleByIndex", 0] = GPU_IS_LOST
    source = make(library)
    lost, good = (await report_of(source)).gpus
    assert (lost.index, lost.uuid, lost.memory) == (0, "", None)
    assert lost.error is not None
    assert good.memory is not None
    library.errors.clear()
    clock.now += 30.0
    assert [gpu.uuid for gpu in (await report_of(source)).gpus] == ["GPU-aaaa", "GPU-bbbb"]


async def test_refusals_are_asked_again_after_a_device_was_lost(make: Make, clock: Clock) -> None:
    library = two_gpus()
    library.errors["utilization", 1] = NOT_SUPPORTED
    source = make(library)
    await report_of(source)
    library.errors["memory_v2", 1] = GPU_IS_LOST
    await report_of(source)
    library.errors.clear()
    clock.now += 30.0
    assert (await report_of(source)).gpus[1].utilization_ratio == 0.37


# -- Nothing to read ------------------------------------------------------------------------------

ABSENCES = [
    (LIBRARY_NOT_FOUND, "library_missing"),
    (DRIVER_NOT_LOADED, "driver_not_loaded"),
    (NOT_FOUND, "no_devices"),
]


@pytest.mark.parametrize(("code", "reason"), ABSENCES)
async def test_what_was_never_there_is_none_and_logged_once(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture, code: int, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    library = one_gpu()
    library.errors["nvmlInit"] = code
    source = make(library)
    for _ in range(130):
        assert await source.read() is None
        clock.now += 1.0
    assert library.calls["nvmlInit"] == 3, "once, and then every 60 s"
    assert len(caplog.messages) == 1
    assert "no GPU is watched" in caplog.messages[0]
    library.errors.clear()
    clock.now += 60.0
    assert (await reading_of(source)).memory is not None


async def test_a_driver_without_gpus_is_none_and_given_back(make: Make, clock: Clock) -> None:
    library = FakePynvml()
    source = make(library)
    assert await source.read() is None
    assert library.calls["nvmlShutdown"] == 1
    library.gpus.append(FakeGpu("GPU-late"))
    assert await source.read() is None
    clock.now += 60.0
    assert (await reading_of(source)).uuid == "GPU-late"


@pytest.mark.parametrize(("code", "reason"), ABSENCES)
async def test_absence_is_a_failure_where_a_gpu_was_named(
    make: Make, code: int, reason: str
) -> None:
    library = one_gpu()
    library.errors["nvmlInit"] = code
    assert (await failure_of(make(library, parse_selection("0")))).reason == reason


async def test_none_selected_starts_nothing(make: Make) -> None:
    library = one_gpu()
    source = make(library, parse_selection("none"))
    assert await source.read() is None
    await source.close()
    assert not library.calls


async def test_a_lookalike_module_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(__file__="/x/pynvml.py"))
    source = NvmlSource()
    assert await source.read() is None
    await source.close()
    assert "/x/pynvml.py is not NVIDIA's binding" in caplog.text


# -- Failing as a whole, and coming back ----------------------------------------------------------

START_FAILURES = [
    (LIB_RM_VERSION_MISMATCH, "version_mismatch", "reboot the host"),
    (UNKNOWN, "unknown_error", "recreate the container"),
    (NO_PERMISSION, "no_permission", "no permission"),
    (GPU_IS_LOST, "gpu_lost", "reset it or reboot"),
    (NVML_TIMEOUT, "timeout", "gave up waiting"),
    (UNINITIALIZED, "other", "started again"),
    (777, "other", "NVML error 777"),
    (ValueError("odd"), "other", "unexpected ValueError: odd"),
]


@pytest.mark.parametrize(("error", "reason", "cure"), START_FAILURES)
async def test_a_driver_that_is_there_and_does_not_start_is_a_failure(
    make: Make, clock: Clock, error: int | Exception, reason: str, cure: str
) -> None:
    library = one_gpu()
    library.errors["nvmlInit"] = error
    source = make(library)
    for _ in range(61):
        failure = await failure_of(source)
        assert failure.reason == reason
        assert cure in failure.detail
        clock.now += 1.0
    assert library.calls["nvmlInit"] == 3, "once, and then every 30 s"
    library.errors.clear()
    clock.now += 30.0
    assert (await reading_of(source)).memory is not None


@pytest.mark.parametrize(
    ("calls", "code", "reason"),
    [
        (("memory_v2",), GPU_IS_LOST, "gpu_lost"),
        (("memory_v2",), UNINITIALIZED, "other"),
        (("utilization",), LIB_RM_VERSION_MISMATCH, "version_mismatch"),
        (("processes_v3",), DRIVER_NOT_LOADED, "driver_not_loaded"),
        (("memory_v2", "utilization", "processes_v3"), UNKNOWN, "unknown_error"),
        (("memory_v2", "memory_v1", "utilization", *PROCESS_CALLS), NO_PERMISSION, "no_permission"),
    ],
)
async def test_losing_every_gpu_starts_nvml_again_after_thirty_seconds(
    make: Make, clock: Clock, calls: tuple[str, ...], code: int, reason: str
) -> None:
    library = two_gpus()
    source = make(library)
    await report_of(source)
    for call in calls:
        library.errors[call] = code
    failure = await failure_of(source)
    assert failure.reason == reason
    assert failure.detail.startswith("GPU 0, 1: ")
    assert library.calls["nvmlShutdown"] == 1, "a lost GPU held open cannot be reset"
    library.errors.clear()
    made = library.calls.total()
    clock.now += 29.0
    assert await failure_of(source) == failure
    assert library.calls.total() == made
    clock.now += 1.0
    assert [gpu.error for gpu in (await report_of(source)).gpus] == [None, None]
    assert library.calls["nvmlInit"] == 2


async def test_absence_after_presence_is_a_failure(make: Make, clock: Clock) -> None:
    library = one_gpu()
    source = make(library)
    await report_of(source)
    library.errors = {"memory_v2": UNINITIALIZED, "nvmlInit": DRIVER_NOT_LOADED}
    await failure_of(source)
    clock.now += 30.0
    assert (await failure_of(source)).reason == "driver_not_loaded"


async def test_a_gpu_that_does_not_come_back_is_reported_not_dropped(
    make: Make, clock: Clock
) -> None:
    library = two_gpus()
    source = make(library)
    await report_of(source)
    library.errors["memory_v2"] = UNINITIALIZED
    await failure_of(source)
    library.errors.clear()
    del library.gpus[0]
    clock.now += 30.0
    gone, good = (await report_of(source)).gpus
    assert (gone.uuid, gone.memory) == ("GPU-aaaa", None)
    assert gone.error is not None
    assert "not there" in gone.error
    assert (good.uuid, good.index) == ("GPU-bbbb", 0), "the index moved, the UUID did not"
    assert good.memory is not None


async def test_an_unforeseen_error_while_reading_is_a_failure(make: Make, clock: Clock) -> None:
    library = one_gpu()
    source = make(library)
    await report_of(source)
    library.errors["utilization"] = RuntimeError("odd")
    assert "unexpected RuntimeError: odd" in (await failure_of(source)).detail
    library.errors.clear()
    clock.now += 30.0
    await report_of(source)


async def test_a_return_is_logged_once(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    library = one_gpu()
    source = make(library)
    await report_of(source)
    library.errors["memory_v2"] = GPU_IS_LOST
    for _ in range(100):
        await failure_of(source)
        clock.now += 1.0
    library.errors.clear()
    clock.now += 30.0
    await report_of(source)
    assert len(caplog.messages) == 2


# -- Selections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("all", ["GPU-aa11", "GPU-aa22", "GPU-aa2"]),
        ("1", ["GPU-aa22"]),
        ("1,0", ["GPU-aa11", "GPU-aa22"]),
        ("gpu-AA1", ["GPU-aa11"]),
        ("GPU-aa2", ["GPU-aa2"]),
        ("1,GPU-aa22", ["GPU-aa22"]),
    ],
)
async def test_selected_devices_are_read_and_no_others(
    make: Make, text: str, uuids: list[str]
) -> None:
    library = FakePynvml(FakeGpu("GPU-aa11"), FakeGpu("GPU-aa22"), FakeGpu("GPU-aa2"))
    report = await report_of(make(library, parse_selection(text)))
    assert [gpu.uuid for gpu in report.gpus] == uuids
    assert library.calls["memory_v2"] == len(uuids)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("7", "GPU 7 is not there; present: 0 (GPU-aa11), 1 (GPU-aa22)"),
        ("0,GPU-cc", "GPU GPU-cc is not there; present: 0 (GPU-aa11), 1 (GPU-aa22)"),
        ("GPU-aa", "GPU-aa is the beginning of several GPUs; present: 0 (GPU-aa11), 1 (GPU-aa22)"),
        ("MIG-1", "GPU MIG-1 is not there; present: 0 (GPU-aa11), 1 (GPU-aa22)"),
    ],
)
async def test_a_named_gpu_that_is_not_there_is_a_failure(
    make: Make, text: str, detail: str
) -> None:
    library = FakePynvml(FakeGpu("GPU-aa11"), FakeGpu("GPU-aa22"))
    failure = await failure_of(make(library, parse_selection(text)))
    assert failure == Failure("no_devices", detail)
    assert library.calls["nvmlShutdown"] == 1


async def test_a_gpu_named_where_there_is_none(make: Make) -> None:
    failure = await failure_of(make(FakePynvml(), parse_selection("0")))
    assert failure == Failure("no_devices", "GPU 0 is not there; present: none")
