"""The memory budget of the recordings whose log is there."""

from __future__ import annotations

from functools import cache

import pytest
from recorded import RECORDINGS, values

from sidecar.launch import parse_arguments
from sidecar.model import Frame, GpuReport
from sidecar.pipeline import Pipeline
from sidecar.recordings import open_recording
from sidecar.startlog import read_log

GIB = 2**30
NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDINGS.glob("*.jsonl.gz"))


@cache
def played_with_log(name: str) -> tuple[Frame, ...]:
    recording = open_recording(RECORDINGS / f"{name}.jsonl.gz")
    pipeline = Pipeline(flags=parse_arguments(recording.header.vllm_args), log_is_complete=True)
    pipeline.judge.start = read_log(RECORDINGS / f"{name}.vllm.log.gz").last
    return tuple(pipeline.advance(poll) for poll in recording.polls())


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_add_up_to_the_device_to_the_byte(name: str) -> None:
    for frame in played_with_log(name):
        assert isinstance(frame.snapshot.gpus, GpuReport)
        for gpu in frame.snapshot.gpus.gpus:
            parts = values(frame, "gpu_memory_budget_bytes", uuid=gpu.uuid)
            assert gpu.memory is not None
            assert sum(parts) == gpu.memory.total_bytes
            assert min(parts) >= 0, (name, frame.snapshot.phase, parts)


def test_where_the_memory_of_the_eager_server_went() -> None:
    served = [f for f in played_with_log("eager-32-4-0") if f.snapshot.phase == "c32"][-1]
    part = {
        sample.labels[2]: sample.value / GIB
        for sample in served.samples
        if sample.declaration.name == "gpu_memory_budget_bytes" and isinstance(sample.value, float)
    }
    assert part["weights"] == pytest.approx(13.06, abs=0.01)
    assert part["kv_cache_used"] + part["kv_cache_free"] == pytest.approx(111.67, abs=0.01)
    assert part["kv_cache_used"] < 0.06 * part["kv_cache_free"]
    assert part["driver_reserved"] == pytest.approx(0.60, abs=0.01)
    assert 0.0 <= part["unexplained"] < 3.0
    assert part["other_processes"] == 0.0


def test_a_sleeping_server_is_not_explained_by_what_it_gave_back() -> None:
    asleep = [f for f in played_with_log("sleep-wake") if values(f, "engine_sleeping") == [1.0]]
    assert asleep
    for frame in asleep:
        assert values(frame, "gpu_memory_budget_bytes", part="kv_cache_free") == []
        assert values(frame, "gpu_memory_budget_bytes", part="weights") == []


def test_the_kv_cache_of_two_ranks_is_theirs_together() -> None:
    served = [f for f in played_with_log("tp2-32-4-0") if f.snapshot.phase == "c32"][-1]
    per_rank = read_log(RECORDINGS / "tp2-32-4-0.vllm.log.gz").last.kv_cache_bytes_per_rank
    assert per_rank is not None
    assert values(served, "kv_cache_bytes") == [2.0 * per_rank]
