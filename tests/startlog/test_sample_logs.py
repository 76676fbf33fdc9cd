"""Every sample log, against what a person reads in it."""

from __future__ import annotations

import gzip
import time

import pytest

from sidecar.startlog import read_log, start_json
from startlog.expected_logs import FIGURES, PUBLIC, RECORDED, SIZES, Row
from startlog.sample_logs import CAPTURES, gib, public_log, read_text, recorded_log

ROWS = {**PUBLIC, **RECORDED}


@pytest.mark.parametrize("name", ROWS)
def test_reads_what_stands_there(name: str) -> None:
    row: Row = ROWS[name]
    reader = read_log(public_log(name) if name in PUBLIC else recorded_log(name))
    start = reader.last
    expected: Row = {}
    actual: Row = {}
    for short, field in FIGURES.items():
        expected[short], actual[short] = row.get(short), getattr(start, field)
    for short, field in SIZES.items():
        size = row.get(short)
        expected[short] = None if size is None else gib(size)
        actual[short] = getattr(start, field)
    expected["outcome"], actual["outcome"] = row["outcome"], start.outcome
    expected["starts"], actual["starts"] = row.get("starts", 1), reader.start_count
    expected["usage"], actual["usage"] = row.get("usage"), start.serving.max_kv_usage_ratio
    assert actual == expected


def test_no_sample_is_left_out() -> None:
    logs = {path.name.removeprefix("log-") for path in (CAPTURES / "logs").glob("log-*.log")}
    recorded = {path.name for path in (CAPTURES / "recordings").glob("*.vllm.log.gz")}
    assert logs == {f"{name}.log" for name in PUBLIC}
    assert recorded == {f"{name}.vllm.log.gz" for name in RECORDED}


@pytest.mark.parametrize("name", ROWS)
def test_no_sample_names_a_machine_or_a_secret(name: str) -> None:
    path = public_log(name) if name in PUBLIC else recorded_log(name)
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    for word in ("/home/", "/root/", "sk-", "hf_"):
        assert word not in text.replace("hf_token", "").replace("hf_overrides", "")


def test_the_first_start_of_a_crash_loop_keeps_its_own_figures() -> None:
    first, second = read_log(public_log("v0.10.2-freemem-less-than-desired-by-10MiB")).starts
    assert first.outcome == "free_memory_below_desired"
    assert first.process_names == {941339: "APIServer", 941609: "EngineCore_DP0"}
    failure = first.decisive_failure
    assert failure is not None
    assert (failure.free_bytes, failure.desired_bytes) == (gib(13.58), gib(13.59))
    assert second.process_names == {943457: "APIServer", 943603: "EngineCore_DP0"}
    # Cut off by whoever shortened the log: what is not whole is not an argument.
    assert second.arguments == {"host": "localhost", "port": 24001}


def test_a_killed_server_and_the_one_after_it_are_two_starts() -> None:
    first, second = read_log(recorded_log("kill-restart")).starts
    assert first.process_names == {1290: "APIServer", 1404: "EngineCore"}
    assert second.process_names == {1613: "APIServer", 1726: "EngineCore"}
    assert (first.first_stamp, first.last_stamp) == ("11-29 16:22:16", "11-29 16:23:02")
    assert (first.shut_down, second.shut_down) == (False, True)
    assert first.serving.max_kv_usage_ratio == 0.161


def test_two_ranks_are_told_apart() -> None:
    start = read_log(recorded_log("tp2-32-4-0")).last
    assert (start.world_size, start.ranks) == (2, (0, 1))
    assert start.process_names == {
        1940: "APIServer",
        2054: "EngineCore",
        2165: "Worker_TP0",
        2166: "Worker_TP1",
    }


def test_a_pause_and_its_end_are_seen_with_their_times() -> None:
    serving = read_log(recorded_log("pause-keep")).last.serving
    pause, resume = serving.control_requests
    assert (pause.path, pause.query, pause.stamp) == ("/pause", "mode=keep", "11-29 16:47:03")
    assert (resume.path, resume.status, resume.stamp) == ("/resume", 200, "11-29 16:47:16")
    assert serving.paused is False
    assert serving.asleep is None


def test_a_sleep_says_what_it_freed_and_what_is_left() -> None:
    serving = read_log(recorded_log("sleep-wake")).last.serving
    (sleep,) = serving.sleeps
    assert (sleep.freed_bytes, sleep.in_use_bytes, sleep.pid) == (gib(84.14), gib(0.8), 930)
    assert [request.path for request in serving.control_requests] == ["/sleep", "/wake_up"]
    (residue,) = read_log(public_log("v0.8.4-V0-sleep-still-in-use")).last.serving.sleeps
    assert (residue.freed_bytes, residue.in_use_bytes) == (gib(19.51), gib(26.31))


def test_a_death_while_serving_names_who_held_the_memory() -> None:
    start = read_log(recorded_log("runtime-oom")).last
    failure = start.decisive_failure
    assert start.started
    assert failure is not None
    memory = failure.out_of_memory
    assert (failure.moment, failure.process, failure.pid) == ("serving", "EngineCore", 633)
    assert memory is not None
    assert memory.tried_bytes == 54 * 1024**2
    assert memory.processes == ((899, gib(56.95)),)
    assert memory.this_process_bytes == gib(82.83)
    assert memory.reserved_unallocated_bytes == round(71.42 * 1024**2)
    assert start.last_exception is not None
    assert start.last_exception.startswith("torch.OutOfMemoryError")


def test_available_memory_below_zero_belongs_to_the_failure() -> None:
    failure = read_log(recorded_log("fail-no-kv")).last.decisive_failure
    assert failure is not None
    assert failure.available_bytes == gib(-0.17)


def test_the_worst_of_four_devices_decides() -> None:
    start = read_log(public_log("v0.23.0-freemem")).last
    assert [failure.device for failure in start.failures] == [
        "cuda:0",
        "cuda:3",
        "cuda:1",
        "cuda:2",
    ]
    decisive = start.decisive_failure
    assert decisive is not None
    assert (decisive.device, decisive.free_bytes) == ("cuda:3", gib(53.76))


def test_preemption_warnings_carry_mode_count_and_the_usage_before_them() -> None:
    swapped = read_log(public_log("v0.6.3-V0-preempt-swap-then-stuck")).last.serving
    assert swapped.last_preemption is not None
    assert swapped.last_preemption.mode == "SWAP"
    assert swapped.last_preemption.total == 1
    assert swapped.last_preemption.kv_usage_ratio == 0.861
    assert swapped.max_waiting_requests == 98
    other = read_log(public_log("v0.6.3-priority-preempt-not-kv")).last.serving.last_preemption
    assert other is not None
    assert (other.mode, other.kv_usage_ratio) == ("RECOMPUTE", None)


def test_what_an_engine_refuses_is_named() -> None:
    flag = read_log(public_log("v0.25.1-unrecognized-argument")).last.decisive_failure
    assert flag is not None
    assert flag.arguments == ("--no-such-flag",)
    length = read_log(public_log("v0.25.1-max-model-len-rejected")).last.decisive_failure
    assert length is not None
    assert (length.max_model_len, length.allowed_max_model_len) == (999999, 2048)
    capacity = read_log(public_log("v0.2.7-V0-maxlen-larger-than-kv")).last.decisive_failure
    assert capacity is not None
    assert (capacity.max_model_len, capacity.capacity_tokens) == (4096, 3664)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("v0.6.3.post1-V0", 2987 * 16), ("v0.6.3-jetson-killed-946x", 189376), ("v0.10.0-ok", 20960)],
)
def test_capacity_in_tokens_also_where_only_blocks_are_said(name: str, tokens: int) -> None:
    start = read_log(public_log(name)).last
    assert start.capacity_tokens == tokens
    assert start_json(start)["kv_cache_tokens"] == tokens


def test_json_holds_the_contract() -> None:
    reader = read_log(recorded_log("kill-restart"))
    document = start_json(reader.last, starts=reader.start_count)
    assert document["outcome"] == "started"
    assert document["starts"] == 2
    assert document["weights_bytes_per_rank"] == gib(13.06)
    assert document["kv_cache_bytes_per_rank"] == gib(27.79)
    assert document["activation_bytes_per_rank"] is None
    assert document["failure"] is None
    assert start_json(reader.last, outcome="runtime_oom")["outcome"] == "runtime_oom"


def test_a_megabyte_is_read_in_a_moment() -> None:
    text = gzip.decompress(recorded_log("block16-short").read_bytes())
    megabyte = (text * (1 + 1_000_000 // len(text)))[:1_000_000]
    begun = time.process_time()
    read_text(megabyte)
    assert time.process_time() - begun < 1.0  # 0.15 s on a small machine; room for a busy one
