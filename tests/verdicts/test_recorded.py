"""What must be said, and never said, of a real vLLM on real GPUs."""

from __future__ import annotations

from functools import cache

import pytest
from recorded import RECORDINGS

from sidecar.diagnosis import Report, diagnose_recording, explain
from sidecar.launch import parse_arguments
from sidecar.model import Frame, Verdict
from sidecar.pipeline import Pipeline
from sidecar.recordings import open_recording
from sidecar.settings import Thresholds
from sidecar.startlog.reader import read_log
from sidecar.startlog.start import Start

from .moments import GIB, advised, avoided, figure

SERVED = (
    "block16-short",
    "eager-32-4-0",
    "graphs-32-4-0",
    "kill-restart",
    "lowuse-c2",
    "neighbour-grows",
    "pause-keep",
    "preempt-storm",
    "runtime-oom",
    "sleep-wake",
    "tp2-32-4-0",
)
CALM = ("block16-short", "eager-32-4-0", "graphs-32-4-0", "lowuse-c2", "pause-keep", "sleep-wake")


@cache
def log_of(name: str) -> Start:
    return read_log(RECORDINGS / f"{name}.vllm.log.gz").last


@cache
def played(name: str) -> tuple[Frame, ...]:
    """All frames of a recording, judged with its log."""
    recording = open_recording(RECORDINGS / f"{name}.jsonl.gz")
    flags = parse_arguments(recording.header.vllm_args)
    pipeline = Pipeline(Thresholds(), flags, log_is_complete=True)
    pipeline.judge.start = log_of(name)
    return tuple(pipeline.advance(poll) for poll in recording.polls())


@cache
def report_of(name: str) -> Report:
    recording = open_recording(RECORDINGS / f"{name}.jsonl.gz")
    return diagnose_recording(recording, Thresholds(), log_of(name))


def found(name: str, code: str) -> Verdict:
    """The one verdict of that code, at its strongest moment."""
    verdicts = [verdict for verdict in report_of(name).verdicts if verdict.code == code]
    assert len(verdicts) == 1, f"{code} of {name}: {len(verdicts)}"
    return verdicts[0]


def codes(name: str, phase: str | None = None) -> set[str]:
    frames = [f for f in played(name) if phase is None or f.snapshot.phase == phase]
    assert frames
    return {verdict.code for frame in frames for verdict in frame.verdicts}


@pytest.mark.parametrize("name", ["graphs-32-4-0", "eager-32-4-0"])
def test_held_memory_is_explained_and_nothing_is_changed_yet(name: str) -> None:
    assert {"memory_held", "healthy", "over_reserved"} <= codes(name, "c4")
    reserved = found(name, "over_reserved")
    assert reserved.confidence == "low"
    assert figure(reserved, "gpu_memory_utilization_target") == 0.16
    assert advised(reserved) == {"none": None}
    held = found(name, "memory_held")
    assert "nothing leaks" in held.summary
    assert held.advice == ()


@pytest.mark.parametrize("name", CALM)
def test_nothing_is_wrong_before_the_server_is_stopped(name: str) -> None:
    for frame in played(name):
        if frame.snapshot.phase != "stopped" and frame.snapshot.failure is None:
            assert {verdict.severity for verdict in frame.verdicts} <= {"info"}, frame.at


def test_the_storm_is_critical_while_it_lasts() -> None:
    storm = [f for f in played("preempt-storm") if f.snapshot.phase == "c128"]
    held = [[v for v in frame.verdicts if v.code == "kv_exhausted"] for frame in storm]
    assert any(verdict.severity == "critical" for verdicts in held for verdict in verdicts)
    # Twelve of its eighteen seconds; it must fill the pool first.
    assert sum(1 for verdicts in held if verdicts) >= 12
    assert "healthy" not in {verdict.code for verdict in storm[-1].verdicts}


def test_the_storm_is_met_in_order() -> None:
    verdict = found("preempt-storm", "kv_exhausted")
    assert verdict.severity == "critical"
    flags = advised(verdict)
    assert next(iter(flags)) == "--gpu-memory-utilization"
    assert 28 <= int(flags["--max-num-seqs"] or 0) <= 45
    assert flags["--watermark"] == "0.3"
    assert "--block-size" not in flags
    assert "--block-size" in avoided(verdict)
    assert figure(verdict, "preemptions_30s") == 88.0


def test_no_storm_elsewhere() -> None:
    for name in SERVED:
        if name != "preempt-storm":
            assert "kv_exhausted" not in codes(name)


def test_low_use_is_said_with_low_confidence() -> None:
    verdict = found("lowuse-c2", "over_reserved")
    assert (verdict.severity, verdict.confidence) == ("info", "low")
    assert advised(verdict) == {"none": None}


@pytest.mark.parametrize("name", SERVED)
def test_ten_per_cent_are_no_fragmentation(name: str) -> None:
    assert "internal_fragmentation" not in codes(name)
    assert "internal_fragmentation" not in {verdict.code for verdict in report_of(name).verdicts}


def polls_until(name: str, code: str, least_bytes: float, severity: str | None = None) -> int:
    """Polls from the first with so many foreign bytes to the verdict."""
    waited = None
    for frame in played(name):
        others = [
            sample.value
            for sample in frame.samples
            if sample.declaration.name == "gpu_memory_owner_bytes" and sample.labels[-1] == "other"
        ]
        if waited is None and any(float(value) >= least_bytes for value in others):  # type: ignore[arg-type]
            waited = 0
        if waited is not None:
            if any(
                verdict.code == code and severity in (None, verdict.severity)
                for verdict in frame.verdicts
            ):
                return waited
            waited += 1
    raise AssertionError(f"{code} was never said of {name}")


def test_a_neighbour_is_noticed_soon() -> None:
    assert polls_until("neighbour-grows", "co_tenant", GIB) <= 5
    verdict = found("neighbour-grows", "co_tenant")
    assert verdict.severity == "warning"
    assert not {"--gpu-memory-utilization", "--max-num-seqs"} & advised(verdict).keys()


def test_a_neighbour_that_fills_the_card_is_critical_then_deadly() -> None:
    assert polls_until("runtime-oom", "co_tenant", GIB, "critical") <= 3
    critical = [
        frame.at
        for frame in played("runtime-oom")
        for verdict in frame.verdicts
        if verdict.code == "co_tenant" and verdict.severity == "critical"
    ]
    down = [f.at for f in played("runtime-oom") if "vllm_down" in {v.code for v in f.verdicts}]
    assert down[0] > critical[0]
    assert "orphan" not in codes("runtime-oom")


def test_the_log_of_that_death_blames_the_neighbour() -> None:
    (verdict,) = explain(log_of("runtime-oom"), Thresholds()).verdicts
    assert verdict.code == "runtime_oom"
    assert list(advised(verdict)) == ["neighbour", "--kv-cache-memory-bytes"]
    assert "headroom" in verdict.advice[1].expect
    assert not [flag for flag in advised(verdict) if "segments" in flag or "block" in flag]
    assert "fragment" not in verdict.summary
    assert figure(verdict, "allocator_slack_ratio") == pytest.approx(0.0005, abs=1e-4)


def test_sleep_is_no_trouble() -> None:
    assert "asleep" in codes("sleep-wake")
    assert not {"kv_leaked", "stalled", "memory_growth", "co_tenant"} & codes("sleep-wake")


def test_a_pause_is_no_trouble() -> None:
    assert not {"kv_leaked", "kv_exhausted", "seqs_capped"} & codes("pause-keep")
    for frame in played("pause-keep"):
        for verdict in frame.verdicts:
            if verdict.code == "stalled":
                assert "pause" in verdict.advice[0].why


def test_killed_and_started_again() -> None:
    order: list[str] = []
    for frame in played("kill-restart"):
        for verdict in frame.verdicts:
            if verdict.code in ("vllm_down", "restarted") and verdict.code not in order[-1:]:
                order.append(verdict.code)
    # The last one is the end of the recording.
    assert order == ["vllm_down", "restarted", "vllm_down"]
    assert not {"kv_exhausted", "stalled", "orphan", "over_reserved"} & codes("kill-restart")


def test_memory_verdicts_wait_a_minute_after_a_restart() -> None:
    for frame in played("kill-restart"):
        held = {verdict.code for verdict in frame.verdicts}
        if "restarted" in held:
            assert held <= {"restarted", "healthy", "idle"}


def test_a_start_beside_a_neighbour() -> None:
    (verdict,) = explain(log_of("fail-neighbour"), Thresholds()).verdicts
    assert verdict.code == "not_enough_free"
    # A GiB of NVIDIA's card is reserved, 98.69 of 139.8 GiB are free and 1.4 stay.
    assert 0.68 <= float(advised(verdict)["--gpu-memory-utilization"] or 0) <= 0.70
    assert "neighbour" in advised(verdict)


def test_a_start_without_room_for_a_pool() -> None:
    (verdict,) = explain(log_of("fail-no-kv"), Thresholds()).verdicts
    assert verdict.code == "no_kv_memory"
    # -0.17 GiB at 0.1 of 139.8 GiB: it would start at 0.12.
    assert advised(verdict)["--gpu-memory-utilization"] == "0.12"
    assert figure(verdict, "available_kv_cache_bytes") == pytest.approx(-0.17 * GIB, rel=0.01)


@pytest.mark.parametrize("name", ["fail-neighbour", "fail-no-kv"])
def test_a_server_that_never_came_up_was_starting(name: str) -> None:
    assert codes(name) == {"starting"}


def test_two_gpus_of_one_server() -> None:
    assert {"memory_held", "over_reserved"} <= codes("tp2-32-4-0", "c4")
    assert "co_tenant" not in codes("tp2-32-4-0")


@pytest.mark.parametrize("name", SERVED)
def test_a_recording_that_ends_with_the_server_is_not_down(name: str) -> None:
    down = [v for v in report_of(name).verdicts if v.code == "vllm_down"]
    assert bool(down) == (name in ("runtime-oom", "kill-restart"))
