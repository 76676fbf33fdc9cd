from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import GIB, engine, gpu, history, measured, reason, snapshot

from sidecar.history import History
from sidecar.model import GpuProcess, GpuReading
from sidecar.startlog import Start


def owners(seen: History) -> tuple[float | None, float | None, float | None]:
    """GiB of vLLM, of others, and of nobody knows whom."""
    found = [
        measured(seen, "gpu_memory_owner_bytes", owner) for owner in ("vllm", "other", "unknown")
    ]
    return tuple(None if one is None else one / GIB for one in found)  # type: ignore[return-value]


def test_before_the_first_page_nobody_owns_anything() -> None:
    seen = history(snapshot(0, gpus=[gpu(20, {1: 20 * GIB})], failure="refused"))
    assert owners(seen) == (None, None, 20.0)
    assert reason(seen, "gpu_memory_owner_bytes") == "owners_unknown"


def test_processes_at_the_first_page_are_the_servers() -> None:
    seen = history(
        snapshot(0, engine(), gpus=[gpu(30, {1: 20 * GIB, 2: 9 * GIB})]),
        snapshot(1, engine(), gpus=[gpu(45, {1: 20 * GIB, 2: 9 * GIB, 3: 15 * GIB})]),
    )
    assert owners(seen) == (29.0, 15.0, 1.0)


def test_a_neighbour_stays_a_neighbour_when_the_server_restarts() -> None:
    seen = history(
        snapshot(0, engine(), gpus=[gpu(20, {1: 20 * GIB})]),
        snapshot(1, engine(), gpus=[gpu(35, {1: 20 * GIB, 3: 15 * GIB})]),
        snapshot(2, gpus=[gpu(15, {3: 15 * GIB})], failure="refused"),
        snapshot(3, engine(), gpus=[gpu(35, {7: 20 * GIB, 3: 15 * GIB})], started=99.0),
    )
    assert owners(seen) == (20.0, 15.0, 0.0)


def test_a_process_of_unknown_size_is_not_nothing() -> None:
    seen = history(snapshot(0, engine(), gpus=[gpu(30, {1: 20 * GIB, 2: None})]))
    assert owners(seen) == (None, None, 30.0)


def test_without_a_process_list_the_total_at_the_first_page_is_the_servers() -> None:
    seen = history(
        snapshot(0, engine(), gpus=[gpu(30, {})]),
        snapshot(1, engine(), gpus=[gpu(42, {})]),
    )
    assert owners(seen) == (30.0, 12.0, 0.0)
    assert reason(seen, "gpu_memory_growth_bytes") == "owners_unknown"


def titled(used: int, *processes: tuple[int, str | None]) -> GpuReading:
    """A device whose processes hold 10 GiB each."""
    held = tuple(GpuProcess(pid, 10 * GIB, title) for pid, title in processes)
    return replace(gpu(used), processes=held)


CORE = (1, "VLLM::EngineCore")


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        # A title tells a neighbour that was there before the server.
        ((CORE, (2, "python3")), (10.0, 10.0, 1.0)),
        ((CORE, (2, "child of vllm serve")), (20.0, 0.0, 1.0)),
        # A process without a title may well be one of the server's.
        ((CORE, (2, None)), (20.0, 0.0, 1.0)),
        # A server of one's own making says nothing of vLLM, so nothing is known.
        (((1, "python3"), (2, "python3")), (20.0, 0.0, 1.0)),
        (((1, None), (2, "python3")), (20.0, 0.0, 1.0)),
        # Two servers cannot be told apart by their titles.
        ((CORE, (2, "VLLM::EngineCore")), (20.0, 0.0, 1.0)),
    ],
)
def test_titles_tell_whose_a_process_at_the_first_page_is(
    present: tuple[tuple[int, str | None], ...], expected: tuple[float, float, float]
) -> None:
    assert owners(history(snapshot(0, engine(), gpus=[titled(21, *present)]))) == expected


def test_a_vllm_that_comes_later_is_another_one() -> None:
    seen = history(
        snapshot(0, engine(), gpus=[titled(10, CORE)]),
        snapshot(1, engine(), gpus=[titled(20, CORE, (2, "VLLM::EngineCore"))]),
    )
    assert owners(seen) == (10.0, 10.0, 0.0)


def test_memory_of_a_whole_host_is_nobodys_without_processes() -> None:
    seen = history(snapshot(0, engine(), gpus=[replace(gpu(30, {}), unified=True)]))
    assert owners(seen) == (None, None, 30.0)


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({}, ("false", "")),
        ({"unified": True}, ("true", "")),
        ({"mig_instance": "gi 3"}, ("false", "gi 3")),
    ],
)
def test_info_names_unified_memory_and_parts(
    fields: dict[str, Any], labels: tuple[str, str]
) -> None:
    seen = history(snapshot(0, engine(), gpus=[replace(gpu(30), **fields)]))
    assert measured(seen, "gpu_info", *labels) == 1.0


def test_parts_of_one_gpu_are_told_apart() -> None:
    parts = [replace(gpu(used), uuid=f"MIG-{used}", mig_instance=f"gi {used}") for used in (3, 4)]
    seen = history(snapshot(0, engine(), gpus=parts))
    assert measured(seen, "gpu_memory_used_bytes", "0", "MIG-3") == 3 * GIB
    assert measured(seen, "gpu_memory_used_bytes", "0", "MIG-4") == 4 * GIB


def test_an_unreadable_device_is_not_an_empty_one() -> None:
    broken = replace(gpu(0), memory=None, error="GPU is lost")
    seen = history(snapshot(0, engine(), gpus=[broken]))
    assert measured(seen, "gpu_up") == 0.0
    assert measured(seen, "gpu_memory_used_bytes") is None
    assert reason(seen, "gpu_memory_used_bytes") == "not_readable"


def test_one_broken_device_leaves_the_other() -> None:
    broken = replace(gpu(0, index=1), memory=None, error="GPU is lost")
    seen = history(snapshot(0, engine(), gpus=[gpu(30), broken]))
    assert measured(seen, "gpu_up", "0", "GPU-0") == 1.0
    assert measured(seen, "gpu_up", "1", "GPU-1") == 0.0
    assert measured(seen, "gpu_memory_used_bytes", "0", "GPU-0") == 30.0 * GIB


def test_devices_that_never_answered_do_not_stand_for_each_other() -> None:
    lost = [replace(gpu(0, index=i), uuid="", memory=None, error="lost") for i in (0, 1)]
    seen = history(snapshot(0, engine(), gpus=lost))
    assert measured(seen, "gpu_up", "0", "") == 0.0
    assert measured(seen, "gpu_up", "1", "") == 0.0


def test_a_driver_without_reserved_memory_says_so() -> None:
    device = gpu(30)
    assert device.memory is not None
    old = replace(device, memory=replace(device.memory, reserved_bytes=None))
    assert reason(history(snapshot(0, gpus=[old])), "gpu_memory_reserved_bytes") == "old_driver"


def grown(*held: int) -> History:
    """A minute of serving at the first size, then a poll a minute at each of the others."""
    sizes = [held[0]] * 61 + list(held[1:])
    return history(
        *(
            snapshot(
                float(t) if t < 61 else 60.0 + 20.0 * (t - 60),
                engine(running=1.0, generation_tokens_total=float(t)),
                gpus=[gpu(size, {1: size * GIB})],
            )
            for t, size in enumerate(sizes)
        )
    )


def test_growth_is_judged_after_the_first_load() -> None:
    assert reason(grown(30), "gpu_memory_growth_bytes") == "warming_up"
    assert measured(grown(30, 30, 31), "gpu_memory_growth_bytes") == 1.0 * GIB
    assert measured(grown(30, 30, 29), "gpu_memory_growth_bytes") == -1.0 * GIB


def test_slope_needs_ten_minutes_and_ignores_a_jump() -> None:
    assert reason(grown(30, *[30] * 20), "gpu_memory_growth_bytes_per_hour") == "too_short_observed"
    jump = grown(30, *[30] * 30, *[34] * 10)
    assert measured(jump, "gpu_memory_growth_bytes_per_hour") == 0.0
    assert measured(jump, "gpu_memory_exhaustion_seconds") is None
    # A GiB each 100 s is 36 in an hour, and 80 - 40 GiB are left for 4,000 s.
    steady = grown(30, *[31 + t // 5 for t in range(46)])
    slope = measured(steady, "gpu_memory_growth_bytes_per_hour")
    assert slope == pytest.approx(36 * GIB, rel=0.05)
    assert measured(steady, "gpu_memory_exhaustion_seconds") == pytest.approx(4_000, rel=0.06)


def test_a_failing_source_leaves_no_device() -> None:
    seen = history(snapshot(0, engine(), gpus=[gpu(30)]), snapshot(1, engine()))
    assert measured(seen, "gpu_memory_used_bytes") is None


def test_the_log_tells_two_servers_on_one_device_apart() -> None:
    """Both are there at the first page; the log names process 7 as this server's."""
    seen = History()
    seen.start = Start(process_names={7: "EngineCore", 8: "APIServer"})
    seen.add(snapshot(0, engine(), gpus=[gpu(50, {7: 30 * GIB, 9: 20 * GIB})]))
    assert owners(seen) == (30.0, 20.0, 0.0)


def test_a_log_of_another_namespace_names_nobody_here() -> None:
    seen = History()
    seen.start = Start(process_names={101: "EngineCore"})
    seen.add(snapshot(0, engine(), gpus=[gpu(50, {7: 30 * GIB, 9: 20 * GIB})]))
    assert owners(seen) == (50.0, 0.0, 0.0)
