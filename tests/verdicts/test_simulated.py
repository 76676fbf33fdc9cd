"""What is said of the simulated server in each of its scenarios."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from sidecar.launch import parse_arguments
from sidecar.model import Frame, GpuMemory, GpuProcess, GpuReading, GpuReport, Page, Poll
from sidecar.pipeline import Pipeline
from sidecar.settings import Thresholds
from sidecar.simulator.drive import Drive
from sidecar.simulator.gpu import engine_memory_bytes
from sidecar.simulator.page import MetricsPage
from sidecar.simulator.scenarios import SCENARIOS

from .moments import advised, avoided


@cache
def judged(scenario: str, seconds: int, every: int = 1) -> tuple[Frame, ...]:
    """Polls of a scenario that lasts so long, on a clock of its own."""
    drive = Drive((SCENARIOS[scenario],), seed=0, seconds_per_scenario=float(seconds))
    deployment = drive.engine.deployment
    page = MetricsPage(drive.engine, 1_000.0)
    pipeline = Pipeline(Thresholds(), parse_arguments(deployment.launch_arguments))
    frames = []
    for second in range(every, seconds + 1, every):
        drive.advance(float(second))
        poll = Poll(
            at=1_000.0 + second,
            vllm=Page(page.render().decode(), 0.01),
            gpus=device(drive),
            vllm_version=deployment.vllm_version,
            max_model_len=deployment.max_model_len_tokens,
        )
        frames.append(pipeline.advance(poll))
    return tuple(frames)


def device(drive: Drive) -> GpuReport:
    deployment = drive.engine.deployment
    held = engine_memory_bytes(deployment, drive.engine.largest_step_tokens)
    total, reserved = deployment.device_total_bytes, deployment.device_reserved_bytes
    memory = GpuMemory(total, held, total - held - reserved, reserved)
    return GpuReport(
        (GpuReading(0, "GPU-0", "simulated", memory, processes=(GpuProcess(1, held),)),), 0.0
    )


def codes(frames: tuple[Frame, ...]) -> Counter[str]:
    return Counter(verdict.code for frame in frames for verdict in frame.verdicts)


def test_ten_healthy_minutes_alarm_nobody() -> None:
    frames = judged("healthy", 600, every=2)
    assert {v.severity for frame in frames for v in frame.verdicts} == {"info"}
    assert set(codes(frames)) == {"idle", "healthy"}
    assert codes(frames[15:])["healthy"] == len(frames) - 15


def test_a_storm_is_exhaustion() -> None:
    frames = judged("preemption-storm", 120)
    held = [v for frame in frames for v in frame.verdicts if v.code == "kv_exhausted"]
    assert "critical" in {verdict.severity for verdict in held}
    # From a fifth of its time to its end.
    assert codes(frames[24:])["kv_exhausted"] == len(frames) - 24
    last = held[-1]
    assert next(iter(advised(last))) == "--gpu-memory-utilization"
    assert 40 <= int(advised(last)["--max-num-seqs"] or 0) < 128
    assert "--block-size" in avoided(last)
    assert not {"seqs_capped", "stalled", "kv_leaked"} & set(codes(frames))


def test_two_clients_reserve_too_much() -> None:
    frames = judged("over-reserved", 120)
    assert set(codes(frames)) == {"idle", "healthy", "over_reserved"}
    assert codes(frames[30:])["over_reserved"] == len(frames) - 30


def test_memory_is_held_when_28_clients_leave() -> None:
    frames = judged("drop-32-4", 120)
    half = len(frames) // 2
    assert codes(frames[:half])["memory_held"] == 0
    assert codes(frames[half + 10 :])["memory_held"] == half - 10
    assert {v.severity for frame in frames for v in frame.verdicts} == {"info"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_judged(scenario: str) -> None:
    """A new one needs a test above."""
    assert scenario in {"healthy", "preemption-storm", "over-reserved", "drop-32-4"}
