from __future__ import annotations

import pytest
from synthetic import GIB, engine, gpu, history, measured, reason, snapshot

from sidecar.history import History
from sidecar.model import Snapshot


def falling(
    running: tuple[float, float],
    usage: tuple[float, float],
    used_gib: tuple[int, int],
    *,
    own: bool = True,
    between: tuple[Snapshot, ...] = (),
) -> History:
    """Ten seconds at the first of each pair, then ten at the second."""
    polls = []
    for phase in (0, 1):
        for second in range(10):
            at = 20.0 * phase + second
            device = gpu(used_gib[phase], {1: used_gib[phase] * GIB} if own else None)
            reading = engine(running=running[phase], kv_usage_ratio=usage[phase])
            polls.append(snapshot(at, reading, gpus=[device]))
        if phase == 0:
            polls.extend(between)
    return history(*polls)


@pytest.mark.parametrize(
    ("running", "usage", "used", "expected"),
    [
        pytest.param((32, 4), (0.8, 0.1), (70, 70), (0.875, 0.875, 0.0, 1.0), id="as it should"),
        pytest.param((32, 4), (0.8, 0.8), (70, 70), (0.875, 0.0, 0.0, 1.0), id="blocks stay"),
        pytest.param((32, 4), (0.8, 0.1), (70, 35), (0.875, 0.875, 0.5, 0.0), id="memory falls"),
        pytest.param((32, 8), (0.8, 0.2), (70, 70), (0.75, 0.75, 0.0, 1.0), id="just enough"),
        pytest.param((32, 9), (0.8, 0.2), (70, 70), None, id="not far enough"),
        pytest.param((7, 1), (0.8, 0.2), (70, 70), None, id="never busy"),
        pytest.param((4, 32), (0.1, 0.8), (70, 70), None, id="rising"),
    ],
)
def test_drop(
    running: tuple[float, float],
    usage: tuple[float, float],
    used: tuple[int, int],
    expected: tuple[float, float, float, float] | None,
) -> None:
    seen = falling(running, usage, used)
    names = ("concurrency_drop_ratio", "kv_cache_drop_ratio", "gpu_memory_drop_ratio")
    found = [measured(seen, name) for name in (*names, "gpu_memory_held")]
    assert found == (pytest.approx(list(expected)) if expected else [None] * 4)
    ratio = measured(seen, "memory_to_concurrency_drop_ratio")
    assert ratio == (pytest.approx(expected[2] / expected[0]) if expected else None)


def test_a_restart_between_makes_two_servers_of_it() -> None:
    restarted = snapshot(15, engine(running=32.0), gpus=[gpu(70, {2: 70 * GIB})], started=99.0)
    polls = [
        snapshot(float(t), engine(running=32.0, kv_usage_ratio=0.8), gpus=[gpu(70, {1: 70 * GIB})])
        for t in range(10)
    ]
    after = [
        snapshot(20.0 + t, engine(running=4.0), gpus=[gpu(70, {2: 70 * GIB})], started=99.0)
        for t in range(10)
    ]
    seen = history(*polls, restarted, *after)
    assert measured(seen, "concurrency_drop_ratio") is None


def test_sleep_between_makes_it_no_comparison() -> None:
    asleep = snapshot(15, engine(sleeping=True), gpus=[gpu(5, {1: 5 * GIB})])
    seen = falling((32, 4), (0.8, 0.1), (70, 70), between=(asleep,))
    assert measured(seen, "concurrency_drop_ratio") is None


def test_unknown_owners_and_a_device_that_moves_prove_nothing() -> None:
    seen = falling((32, 4), (0.8, 0.1), (70, 35), own=False)
    assert measured(seen, "concurrency_drop_ratio") == 0.875
    assert measured(seen, "gpu_memory_held") is None
    assert reason(seen, "gpu_memory_drop_ratio") == "owners_unknown"


def test_unknown_owners_on_a_still_device_are_enough() -> None:
    seen = falling((32, 4), (0.8, 0.1), (70, 70), own=False)
    assert measured(seen, "gpu_memory_held") == 1.0


def test_without_a_gpu_blocks_still_tell() -> None:
    polls = [
        snapshot(float(t), engine(running=32.0 if t < 10 else 4.0, kv_usage_ratio=0.5))
        for t in range(20)
    ]
    seen = history(*polls)
    assert measured(seen, "kv_cache_drop_ratio") == 0.0
    assert reason(seen, "gpu_memory_drop_ratio") == "gpu_memory_unknown"


def test_one_low_poll_is_no_plateau() -> None:
    polls = [
        snapshot(float(t), engine(running=4.0 if t == 19 else 32.0, kv_usage_ratio=0.5))
        for t in range(20)
    ]
    assert measured(history(*polls), "concurrency_drop_ratio") is None


def test_the_drop_is_forgotten_after_fifteen_minutes() -> None:
    polls = [snapshot(float(t), engine(running=32.0, kv_usage_ratio=0.5)) for t in range(10)]
    polls += [snapshot(10.0 + 10 * t, engine(running=4.0, kv_usage_ratio=0.1)) for t in range(92)]
    assert measured(history(*polls[:60]), "concurrency_drop_ratio") == 0.875
    assert measured(history(*polls), "concurrency_drop_ratio") is None
