"""What a log leads to: one row for each way in which a start or a run ends, with its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import GIB

from sidecar.model import Verdict
from sidecar.settings import Thresholds
from sidecar.startlog.failures import FailureKind, LogFailure
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.startlog.serving import Serving
from sidecar.startlog.start import Start
from sidecar.verdicts import RULES
from sidecar.verdicts.out_of_memory_figures import foreign_bytes
from sidecar.verdicts.start import SEVERITIES, judge_start

from .moments import MIB, advised, avoided, figure

SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
PLAIN = Start(
    vllm_version="0.25.0",
    gpu_memory_utilization=0.9,
    weights_bytes_per_rank=16 * GIB,
    max_num_seqs=128,
    max_num_batched_tokens=8192,
)


def judged(
    start: Start = PLAIN, thresholds: Thresholds | None = None, **failure: Any
) -> tuple[Verdict, ...]:
    """The verdicts of a start that fails so; its outcome first."""
    if failure:
        start = replace(start, failures=(LogFailure(**failure),))
    verdicts = judge_start(start, thresholds or Thresholds())
    known = {rule.code: rule.severities for rule in RULES} | dict(SEVERITIES)
    for verdict in verdicts:
        assert verdict.severity in known[verdict.code]
    return verdicts


def outcome(start: Start = PLAIN, thresholds: Thresholds | None = None, **failure: Any) -> Verdict:
    return judged(start, thresholds, **failure)[0]


# It started, or nobody can tell.


def test_started_with_its_budget() -> None:
    start = replace(PLAIN, started=True, kv_cache_bytes_per_rank=40 * GIB, kv_cache_tokens=9)
    verdict = outcome(start)
    assert (verdict.code, verdict.severity, verdict.advice) == ("started", "info", ())
    assert figure(verdict, "kv_cache_bytes_per_rank") == 40.0 * GIB
    assert figure(verdict, "kv_cache_tokens") == 9.0


def test_a_log_that_ends_early_is_not_judged() -> None:
    verdict = outcome(PLAIN)
    assert (verdict.code, verdict.severity, verdict.advice) == ("incomplete", "info", ())
    assert verdict.missing


@pytest.mark.parametrize(
    ("exception", "code"), [(None, "incomplete"), ("ValueError: no such layer", "not_memory")]
)
def test_an_engine_that_died_elsewhere(exception: str | None, code: str) -> None:
    start = replace(PLAIN, last_exception=exception)
    assert outcome(start, kind="engine_dead").code == code


# Found by vLLM's own arithmetic.


def not_enough(free: float, *, start: Start = PLAIN, total: float = 80.0) -> Verdict:
    return outcome(
        start,
        kind="free_memory_below_desired",
        free_bytes=int(free * GIB),
        total_bytes=int(total * GIB),
        desired_bytes=int(0.95 * total * GIB),
        utilization=0.95,
    )


@pytest.mark.parametrize(
    ("free", "to", "neighbour"),
    [
        # (free - 0.8 of margin) / 80, rounded down; 6 % of 80 GiB are 4.8.
        pytest.param(60.0, "0.74", True, id="a neighbour"),
        pytest.param(75.21, "0.93", False, id="less than 6 % taken: driver or display"),
        pytest.param(75.19, "0.92", True, id="more than 6 % taken"),
        pytest.param(17.0, "0.20", True, id="just above the weights"),
        pytest.param(16.9, "0.20", True, id="at the weights"),
        pytest.param(15.7, None, True, id="not even the weights"),
        pytest.param(0.5, None, True, id="nothing"),
    ],
)
def test_not_enough_free(free: float, to: str | None, neighbour: bool) -> None:
    start = replace(PLAIN, weights_bytes_per_rank=15 * GIB)
    verdict = not_enough(free, start=start)
    assert verdict.code == "not_enough_free"
    assert advised(verdict).get("--gpu-memory-utilization") == to
    assert ("neighbour" in advised(verdict)) == neighbour
    assert "expandable_segments" in avoided(verdict)


def test_what_is_short_is_said_in_mib() -> None:
    verdict = not_enough(75.0)
    assert "1,024 MiB short" in verdict.summary
    assert figure(verdict, "taken_bytes") == 5.0 * GIB


def test_a_negative_estimate_of_graphs_spoils_the_figures() -> None:
    verdict = not_enough(71.0, start=replace(PLAIN, cuda_graph_estimated_bytes_per_rank=-GIB))
    assert verdict.code == "graph_memory"
    assert "estimator is at fault" in verdict.summary
    assert "--gpu-memory-utilization" in avoided(verdict)
    assert "--gpu-memory-utilization" not in advised(verdict)


@pytest.mark.parametrize(
    ("now", "available", "to", "ruled_out"),
    [
        # What is missing, a GiB, and a margin of 0.8, of 80 GiB.
        pytest.param(0.2, -2.0, "0.25", False, id="2 GiB are missing"),
        pytest.param(0.2, 0.0, "0.23", False, id="nothing is left"),
        pytest.param(0.9, -4.6, "0.98", False, id="the most"),
        pytest.param(0.9, -4.7, None, True, id="no share is enough"),
        pytest.param(0.98, -2.0, None, False, id="at the most"),
    ],
)
def test_no_kv_memory(now: float, available: float, to: str | None, ruled_out: bool) -> None:
    start = replace(PLAIN, gpu_memory_utilization=now, total_bytes=80 * GIB)
    verdict = outcome(start, kind="no_available_memory", available_bytes=int(available * GIB))
    assert verdict.code == "no_kv_memory"
    assert advised(verdict).get("--gpu-memory-utilization") == to
    assert ("--gpu-memory-utilization" in avoided(verdict)) == ruled_out
    assert "--quantization" in advised(verdict)
    assert "--max-num-seqs" in avoided(verdict)


@pytest.mark.parametrize(("activations", "holds"), [(4.0, False), (4.1, True)])
def test_large_activations_are_named(activations: float, holds: bool) -> None:
    start = replace(PLAIN, activation_bytes_per_rank=int(activations * GIB))
    verdict = outcome(start, kind="no_available_memory")
    assert ("--max-num-batched-tokens" in advised(verdict)) == holds


def test_without_figures_it_is_steps() -> None:
    advice = outcome(kind="no_available_memory").advice[0]
    assert (advice.to, "in steps of 0.02" in advice.why) == (None, True)


def too_long(start: Start = PLAIN, **figures: Any) -> Verdict:
    return outcome(start, kind="max_len_too_long", **{"max_model_len": 131_072, **figures})


@pytest.mark.parametrize(
    ("figures", "block", "to"),
    [
        pytest.param({"estimated_max_model_len": 40_015}, None, "40000", id="to 16"),
        pytest.param({"estimated_max_model_len": 40_015}, 128, "39936", id="to the block"),
        pytest.param({"capacity_tokens": 9_999}, None, "9984", id="V0's capacity"),
        pytest.param(
            {"needed_bytes": 16 * GIB, "available_bytes": 4 * GIB}, None, "32768", id="4/16"
        ),
        pytest.param({"estimated_max_model_len": 15}, None, None, id="not a block"),
        pytest.param({}, None, None, id="no figure"),
    ],
)
def test_max_len_too_long(figures: dict[str, int], block: int | None, to: str | None) -> None:
    verdict = too_long(replace(PLAIN, block_size=block), **figures)
    assert verdict.code == "max_len_too_long"
    assert advised(verdict).get("--max-model-len") == to
    assert "--max-num-seqs" in avoided(verdict)


@pytest.mark.parametrize(
    ("start", "flag", "to"),
    [
        # 12 GiB and 128 MiB of 80.
        pytest.param({"gpu_memory_utilization": 0.7}, "--gpu-memory-utilization", "0.86", id="up"),
        pytest.param(
            {"gpu_memory_utilization": 0.9}, "--gpu-memory-utilization", "-", id="not possible"
        ),
        pytest.param(
            {"kv_cache_memory_bytes": 4 * GIB},
            "--kv-cache-memory-bytes",
            str(16 * GIB),
            id="the flag in force",
        ),
    ],
)
def test_room_for_the_longest_request(start: dict[str, Any], flag: str, to: str) -> None:
    verdict = too_long(
        replace(PLAIN, total_bytes=80 * GIB, **start),
        needed_bytes=16 * GIB,
        available_bytes=4 * GIB,
    )
    assert advised(verdict).get(flag, "-") == to
    if flag != "--gpu-memory-utilization":
        assert "--gpu-memory-utilization" not in advised(verdict)


def test_a_neighbour_that_left_while_it_measured() -> None:
    verdict = outcome(kind="profiling_disturbed", initial_free_bytes=10 * GIB, free_bytes=20 * GIB)
    assert (verdict.code, verdict.severity) == ("neighbour_left", "warning")
    assert advised(verdict) == {"retry": None}


# Out of memory.


def out_of_memory(
    *,
    tried: float = 1.0,
    free: float = 0.5,
    own: float | None = 79.5,
    slack: float = 0.1,
    processes: tuple[tuple[int, int], ...] = (),
    allocated: float | None = None,
) -> OutOfMemory:
    return OutOfMemory(
        tried_bytes=int(tried * GIB),
        total_bytes=80 * GIB,
        free_bytes=int(free * GIB),
        this_process_bytes=None if own is None else int(own * GIB),
        processes=processes,
        allocated_bytes=None if allocated is None else int(allocated * GIB),
        reserved_unallocated_bytes=int(slack * GIB),
    )


def died(
    moment: str | None,
    message: OutOfMemory | None,
    *,
    kind: FailureKind = "cuda_oom",
    start: Start = PLAIN,
    **fields: Any,
) -> Verdict:
    return outcome(start, kind=kind, moment=moment, out_of_memory=message, **fields)


@pytest.mark.parametrize(
    ("moment", "message", "code"),
    [
        ("serving", out_of_memory(), "runtime_oom"),
        ("serving", None, "runtime_oom"),
        ("loading", out_of_memory(), "weights_too_big"),
        (None, out_of_memory(), "weights_too_big"),
        ("profiling", out_of_memory(), "activation_peak"),
        ("sampler_warmup", out_of_memory(), "activation_peak"),
        ("graph_capture", out_of_memory(), "graph_memory"),
        ("loading", out_of_memory(own=78.4), "not_enough_free"),
        ("loading", out_of_memory(own=78.6), "weights_too_big"),
        ("profiling", out_of_memory(own=60.0), "not_enough_free"),
        ("serving", out_of_memory(own=60.0), "runtime_oom"),
        ("profiling", out_of_memory(tried=71.9), "activation_peak"),
        ("profiling", out_of_memory(tried=72.0), "single_allocation"),
        ("serving", out_of_memory(tried=90.0), "single_allocation"),
        ("serving", out_of_memory(slack=3.99), "runtime_oom"),
        ("serving", out_of_memory(slack=4.0), "allocator_slack"),
    ],
)
def test_moment_and_figures_tell_the_kind(
    moment: str | None, message: OutOfMemory | None, code: str
) -> None:
    assert died(moment, message).code == code


@pytest.mark.parametrize(
    ("message", "limits", "code"),
    [
        (out_of_memory(tried=40.0), Thresholds(single_allocation_ratio=0.5), "single_allocation"),
        (out_of_memory(slack=1.7), Thresholds(allocator_slack_ratio=0.02), "allocator_slack"),
        (out_of_memory(own=77.0), Thresholds(neighbour_bytes=4 * GIB), "weights_too_big"),
    ],
)
def test_limits_are_settings(message: OutOfMemory, limits: Thresholds, code: str) -> None:
    failure: dict[str, Any] = {"kind": "cuda_oom", "moment": "loading", "out_of_memory": message}
    assert outcome(**failure).code != code
    assert outcome(thresholds=limits, **failure).code == code


def test_what_a_driver_may_take_is_a_setting() -> None:
    failure: dict[str, Any] = {
        "kind": "free_memory_below_desired",
        "free_bytes": 70 * GIB,
        "total_bytes": 80 * GIB,
        "desired_bytes": 72 * GIB,
    }
    assert "neighbour" in advised(outcome(**failure))
    limits = Thresholds(driver_and_display_ratio=0.125)
    assert "neighbour" not in advised(outcome(thresholds=limits, **failure))


@pytest.mark.parametrize(
    "moment", ["serving", "loading", "profiling", "sampler_warmup", "graph_capture"]
)
@pytest.mark.parametrize("slack", [0.0, 0.1, 3.99])
def test_segments_are_ruled_out_below_five_per_cent(moment: str, slack: float) -> None:
    for own in (79.5, 60.0):
        verdict = died(moment, out_of_memory(slack=slack, own=own))
        assert not [flag for flag in advised(verdict) if "expandable_segments" in flag]
        assert "expandable_segments" in avoided(verdict)


@pytest.mark.parametrize(
    ("version", "asleep", "holds"),
    [
        ("0.21.9", True, False),
        ("0.22.0", True, True),
        (None, True, False),
        ("0.21.9", False, True),
        (None, False, True),
    ],
)
def test_segments_with_a_large_slack(version: str | None, asleep: bool, holds: bool) -> None:
    start = replace(PLAIN, vllm_version=version, arguments={"enable_sleep_mode": asleep})
    verdict = died("serving", out_of_memory(slack=8.0), start=start)
    assert (verdict.code, SEGMENTS in advised(verdict)) == ("allocator_slack", holds)
    assert figure(verdict, "allocator_slack_ratio") == pytest.approx(0.1)


def test_a_neighbour_is_the_first_thing_to_move() -> None:
    verdict = died("serving", out_of_memory(own=60.0))
    assert list(advised(verdict)) == ["neighbour", "--kv-cache-memory-bytes"]
    assert "19.50 GiB" in verdict.summary
    assert {"expandable_segments", "--block-size"} <= avoided(verdict)


@pytest.mark.parametrize(
    ("start", "tried", "expected"),
    [
        # At least 0.02; else what was asked for, less what was free, and 0.8 of margin.
        pytest.param({}, 0.2, ("--gpu-memory-utilization", "0.88"), id="0.02"),
        pytest.param({}, 4.0, ("--gpu-memory-utilization", "0.84"), id="4.3 GiB"),
        pytest.param(
            {"arguments": {"enable_lora": True}},
            0.2,
            ("--gpu-memory-utilization", "0.85"),
            id="adapters leave more behind",
        ),
        pytest.param({}, 60.0, None, id="not below the weights"),
        pytest.param(
            {"kv_cache_memory_bytes": 20 * GIB},
            4.0,
            ("--kv-cache-memory-bytes", str(20 * GIB - int(4.3 * GIB) - 1)),
            id="bytes are set",
        ),
        pytest.param(
            {"num_gpu_blocks_override": 9}, 4.0, ("--num-gpu-blocks-override", None), id="blocks"
        ),
    ],
)
def test_room_beside_the_pool(
    start: dict[str, Any], tried: float, expected: tuple[str, str | None] | None
) -> None:
    verdict = died("serving", out_of_memory(tried=tried), start=replace(PLAIN, **start))
    pool = ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--num-gpu-blocks-override")
    found = [(flag, to) for flag, to in advised(verdict).items() if flag in pool]
    assert found == ([] if expected is None else [expected])
    assert "--max-num-batched-tokens" in advised(verdict)


@pytest.mark.parametrize(
    ("seqs", "dummies", "to"),
    [
        (1024, None, "256"),
        (300, None, "150"),
        (256, None, None),
        (None, 1024, "256"),
        (100, 100, "50"),
    ],
)
def test_a_warm_up_with_too_many_requests(
    seqs: int | None, dummies: int | None, to: str | None
) -> None:
    verdict = died(
        "sampler_warmup",
        out_of_memory(),
        kind="sampler_warmup_oom",
        start=replace(PLAIN, max_num_seqs=seqs),
        dummy_requests=dummies,
    )
    assert verdict.code == "activation_peak"
    assert advised(verdict).get("--max-num-seqs") == to


def test_beside_a_neighbour() -> None:
    verdict = died("loading", out_of_memory(own=20.0, free=0.0))
    # 80 - 60 - 0.8 of 80.
    assert advised(verdict) == {"neighbour": None, "--gpu-memory-utilization": "0.24"}


def test_graphs_before_eager() -> None:
    flags = list(advised(died("graph_capture", out_of_memory())))
    assert flags == [
        "--gpu-memory-utilization",
        "--cudagraph-capture-sizes",
        "--enforce-eager",
    ]


def test_weights_go_over_more_gpus() -> None:
    verdict = died("loading", out_of_memory(), start=replace(PLAIN, tensor_parallel_size=2))
    assert advised(verdict) == {"--tensor-parallel-size": "4"}
    assert "--gpu-memory-utilization" in avoided(verdict)


@pytest.mark.parametrize(("started", "code"), [(True, "runtime_oom"), (False, "activation_peak")])
def test_out_of_memory_in_disguise(started: bool, code: str) -> None:
    verdict = outcome(replace(PLAIN, started=started), kind="oom_in_disguise")
    assert verdict.code == code
    assert SEGMENTS not in advised(verdict)
    assert advised(verdict)["--gpu-memory-utilization"] == "0.88"


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        pytest.param(None, 0.0, id="nothing said"),
        pytest.param(out_of_memory(own=60.0), 19.5, id="as named"),
        pytest.param(
            out_of_memory(own=None, allocated=59.0, processes=((7, 60 * GIB), (8, 19 * GIB))),
            19.5,
            id="in a container it is one of those listed",
        ),
        pytest.param(
            out_of_memory(own=None, allocated=59.0, slack=0.0), 20.0, id="before PyTorch 2.1"
        ),
        pytest.param(out_of_memory(own=99.0), 0.0, id="never less than nothing"),
    ],
)
def test_bytes_of_others(message: OutOfMemory | None, gib: float) -> None:
    assert foreign_bytes(message) == gib * GIB


# What a started server says beside.


def graphs(
    measured: float | None, estimated: float | None, *, weights: float = 16.0, total: float = 80.0
) -> list[Verdict]:
    start = replace(
        PLAIN,
        started=True,
        weights_bytes_per_rank=int(weights * GIB),
        total_bytes=int(total * GIB),
        cuda_graph_bytes_per_rank=None if measured is None else int(measured * GIB),
        cuda_graph_estimated_bytes_per_rank=None if estimated is None else int(estimated * GIB),
    )
    return [verdict for verdict in judged(start) if verdict.code == "graph_memory"]


@pytest.mark.parametrize(
    ("measured", "estimated", "weights", "fault"),
    [
        pytest.param(0.7, 0.7, 16.0, None, id="as usual"),
        pytest.param(4.0, None, 16.0, None, id="5 % of the card"),
        pytest.param(4.1, None, 16.0, "they are large", id="more than 5 %"),
        pytest.param(1.1, None, 1.0, "they are large", id="larger than the weights"),
        pytest.param(0.9, None, 1.0, None, id="smaller"),
        pytest.param(1.0, 2.0, 16.0, None, id="twice the truth"),
        pytest.param(1.0, 2.1, 16.0, "the estimate is at fault", id="more than twice"),
        pytest.param(0.2, 0.65, 16.0, None, id="more than twice, and small"),
        pytest.param(2.1, 1.0, 16.0, "the estimate is at fault", id="less than half"),
        pytest.param(None, 16.0, 20.0, "they are large", id="20 % of the card"),
        pytest.param(None, 16.1, 20.0, "the estimate is at fault", id="more than 20 %"),
        pytest.param(0.5, -0.1, 16.0, "the estimate is at fault", id="negative"),
    ],
)
def test_graph_memory(
    measured: float | None, estimated: float | None, weights: float, fault: str | None
) -> None:
    found = graphs(measured, estimated, weights=weights)
    assert len(found) == (0 if fault is None else 1)
    for verdict in found:
        assert fault is not None
        assert fault in verdict.summary
        assert verdict.severity == "warning"
        assert list(advised(verdict)) == ["--cudagraph-capture-sizes", "--max-num-seqs"]
        assert "--enforce-eager" in avoided(verdict)


def test_what_graphs_may_take_is_a_setting() -> None:
    start = replace(
        PLAIN, started=True, total_bytes=80 * GIB, cuda_graph_bytes_per_rank=int(4.1 * GIB)
    )
    assert "graph_memory" in [verdict.code for verdict in judged(start)]
    limits = Thresholds(graph_memory_ratio=0.06)
    assert "graph_memory" not in [verdict.code for verdict in judged(start, limits)]


@pytest.mark.parametrize(
    ("version", "flag"),
    [("0.8.5", None), ("0.10.2", "--cuda-graph-sizes"), ("0.25.0", "--cudagraph-capture-sizes")],
)
def test_the_capture_list_by_the_name_of_the_release(version: str, flag: str | None) -> None:
    start = replace(PLAIN, vllm_version=version, started=True, cuda_graph_bytes_per_rank=17 * GIB)
    flags = advised(judged(start)[-1])
    assert [name for name in flags if "graph" in name] == ([] if flag is None else [flag])


@pytest.mark.parametrize(
    ("waste", "block", "holds"),
    [(0.15, 16, True), (0.14, 16, False), (None, 256, True), (None, 255, False)],
)
def test_a_layout_that_wastes(waste: float | None, block: int, holds: bool) -> None:
    start = replace(PLAIN, started=True, padding_waste_ratio=waste, block_size=block)
    found = [v for v in judged(start) if v.code == "internal_fragmentation"]
    assert len(found) == int(holds)
    for verdict in found:
        assert verdict.severity == "info"
        assert avoided(verdict) == {"--block-size"}


def test_counters_that_count_backwards() -> None:
    start = replace(PLAIN, started=True, serving=Serving(counter_errors=3))
    verdict = judged(start)[-1]
    assert (verdict.code, figure(verdict, "counter_errors")) == ("metrics_invalid", 3.0)
    assert "--gpu-memory-utilization" in avoided(verdict)


# Not memory.


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ({"kind": "device_error"}, "not_memory"),
        ({"kind": "exception"}, "not_memory"),
        ({"kind": "argument_error", "arguments": ("--swap-space",)}, "bad_argument"),
        ({"kind": "config_rejected", "allowed_max_model_len": 4096}, "bad_argument"),
        ({"kind": "host_oom"}, "host_oom"),
        ({"kind": "killed", "exit_status": -9}, "host_oom"),
    ],
)
def test_no_memory_flag_helps(failure: dict[str, Any], code: str) -> None:
    verdict = outcome(**failure)
    assert (verdict.code, verdict.severity) == (code, "critical")
    memory = {"--gpu-memory-utilization", "--kv-cache-memory-bytes", "--max-num-seqs"}
    assert not memory & advised(verdict).keys()


@pytest.mark.parametrize(
    ("flag", "version", "text"),
    [
        ("--swap-space", "0.25.0", "--kv-offloading-size"),
        ("--watermark", "0.20.0", "since 0.24.0"),
        ("--made_up", "0.25.0", "--help"),
    ],
)
def test_a_flag_that_does_not_exist(flag: str, version: str, text: str) -> None:
    start = replace(PLAIN, vllm_version=version)
    verdict = outcome(start, kind="argument_error", arguments=(flag,))
    assert flag in verdict.summary
    assert text in " ".join(item.why for item in verdict.advice)


def test_a_length_beyond_the_model() -> None:
    verdict = outcome(kind="config_rejected", max_model_len=9999, allowed_max_model_len=4096)
    assert advised(verdict) == {"--max-model-len": "4096"}
    assert "--gpu-memory-utilization" in avoided(verdict)


@pytest.mark.parametrize(("tokens", "holds"), [(None, False), (9, True)])
def test_killed_after_it_took_its_pool(tokens: int | None, holds: bool) -> None:
    """On memory that the host shares the pool is what took the last of it."""
    verdict = outcome(replace(PLAIN, kv_cache_tokens=tokens), kind="killed")
    assert ("--gpu-memory-utilization" in advised(verdict)) == holds
    assert "host" in advised(verdict)


def test_every_code_is_declared_once() -> None:
    assert set(SEVERITIES) & {rule.code for rule in RULES} == set()
    assert MIB == 2**20
