"""Prefixes of every release, and what collectors put around them."""

from __future__ import annotations

import json

import pytest

from sidecar.startlog import LogLine, parse_lines
from startlog.sample_logs import gib, start_of

MESSAGE = "Available KV cache memory: 1.92 GiB"
STAMP = "01-31 12:00:00"
DOCKER_TIME = "2026-01-31T12:00:00.123456789Z"

PREFIXED = {
    "0.7.3": (f"INFO {STAMP} worker.py:123] {MESSAGE}", ("INFO", None, None, "worker.py")),
    "0.8": (f"INFO {STAMP} [worker.py:123] {MESSAGE}", ("INFO", None, None, "worker.py")),
    "0.10.1": (
        f"(EngineCore_0 pid=97) ERROR {STAMP} [core.py:1] {MESSAGE}",
        ("ERROR", "EngineCore_0", 97, "core.py"),
    ),
    "coloured": (
        f"\x1b[1;36m(EngineCore_DP0 pid=97)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m{STAMP}\x1b[0m "
        f"\x1b[90m[core.py:1]\x1b[0m {MESSAGE}",
        ("INFO", "EngineCore_DP0", 97, "core.py"),
    ),
    "debug paths": (
        f"(Worker_DP0_PP0_TP1_EP0 pid=9) DEBUG {STAMP} [v1/worker/gpu_worker.py:298] {MESSAGE}",
        ("DEBUG", "Worker_DP0_PP0_TP1_EP0", 9, "v1/worker/gpu_worker.py"),
    ),
    "ray": (
        f"(RayWorkerWrapper pid=9, ip=192.0.2.1) INFO {STAMP} [a.py:1] {MESSAGE}",
        ("INFO", "RayWorkerWrapper", 9, "a.py"),
    ),
}


@pytest.mark.parametrize("era", PREFIXED)
def test_the_prefix_comes_off(era: str) -> None:
    raw, (level, process, pid, file) = PREFIXED[era]
    assert parse_lines(raw) == (LogLine(MESSAGE, level, process, pid, STAMP, file),)


PLAIN = f"(EngineCore pid=97) INFO {STAMP} [core.py:1] {MESSAGE}"

WRAPPED = {
    "docker logs -t": f"{DOCKER_TIME} {PLAIN}",
    "docker json-file": json.dumps({"log": PLAIN + "\n", "stream": "stderr", "time": DOCKER_TIME}),
    "compose v1": f"vllm_1  | {PLAIN}",
    "compose v2, coloured": f"\x1b[36mvllm-1        | \x1b[0m{PLAIN}",
    "compose with times": f"vllm-1  | {DOCKER_TIME} {PLAIN}",
    "podman-compose": f"[vllm]                 | {PLAIN}",
    "kubernetes node": f"{DOCKER_TIME} stdout F {PLAIN}",
    "kubectl --prefix": f"[pod/vllm-7d9f-x/vllm] {PLAIN}",
    "kubectl --prefix --timestamps": f"[pod/vllm-7d9f-x/vllm] {DOCKER_TIME} {PLAIN}",
    "stern": f"vllm-7d9f-x vllm {PLAIN}",
    "journald": f"Jan 31 12:00:00 node vllm[12]: {PLAIN}",
    "journald short-iso": f"2026-01-31T12:00:00+0000 node vllm[12]: {PLAIN}",
    "journald json": json.dumps({"MESSAGE": PLAIN, "_PID": "12"}),
    "windows": PLAIN + "\r",
    "VLLM_LOGGING_PREFIX": f"prod-a {PLAIN}",
}


@pytest.mark.parametrize("tool", WRAPPED)
def test_the_wrapping_comes_off(tool: str) -> None:
    line = parse_lines(WRAPPED[tool])[-1]
    assert line == LogLine(MESSAGE, "INFO", "EngineCore", 97, STAMP, "core.py")
    assert start_of(WRAPPED[tool]).kv_cache_bytes_per_rank == gib(1.92)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "vllm-1  | ",
        f"{DOCKER_TIME} ",
        f"{DOCKER_TIME} stderr F ",
        "[pod/a/b] ",
        "(Worker pid=7) ",
    ],
)
def test_lines_without_a_level_lose_their_wrapping_too(prefix: str) -> None:
    (line,) = parse_lines(prefix + "ValueError: No available memory for the cache blocks.")
    assert line.text == "ValueError: No available memory for the cache blocks."
    assert line.level is None


def test_the_json_formatter_of_vllm() -> None:
    record = {
        "asctime": "2026-11-29 15:55:53,123",
        "levelname": "ERROR",
        "name": "vllm.v1.engine.core",
        "processName": "EngineCore",
        "process": 97,
        "message": "EngineCore failed to start.",
        "exc_info": 'Traceback (most recent call last):\n  File "a.py", line 1, in load_model\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    }
    lines = parse_lines(json.dumps(record))
    assert {(line.level, line.process, line.pid) for line in lines} == {("ERROR", "EngineCore", 97)}
    assert lines[0].text == "EngineCore failed to start."
    assert lines[0].stamp == "2026-11-29 15:55:53,123"
    failure = start_of(json.dumps(record)).decisive_failure
    assert failure is not None
    assert (failure.kind, failure.moment, failure.pid) == ("cuda_oom", "loading", 97)


def test_the_json_of_open_telemetry() -> None:
    (line,) = parse_lines(json.dumps({"severity_text": "WARN", "body": MESSAGE, "timestamp": "t"}))
    assert line == LogLine(MESSAGE, "WARNING", stamp="t")


def test_a_line_that_docker_cut_is_joined() -> None:
    first = json.dumps({"log": "Available KV cache mem", "stream": "stdout"})
    last = json.dumps({"log": "ory: 1.92 GiB\n", "stream": "stdout"})
    assert start_of(f"{first}\n{last}\n").kv_cache_bytes_per_rank == gib(1.92)
    cri = f"{DOCKER_TIME} stdout P Available KV cache mem\n{DOCKER_TIME} stdout F ory: 1.92 GiB\n"
    assert start_of(cri).kv_cache_bytes_per_rank == gib(1.92)


def test_uvicorn_and_progress_bars() -> None:
    (line,) = parse_lines('(APIServer pid=9) INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK')
    assert line.text == '127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'
    assert (line.level, line.process) == ("INFO", "APIServer")
    drawn = parse_lines("Loading:   0%|   | 0/2\rLoading:  50%|#  | 1/2\rLoading: 100%|## | 2/2")
    assert [part.text[:13] for part in drawn] == ["Loading:   0%", "Loading:  50%", "Loading: 100%"]


def test_a_progress_bar_in_front_of_a_line_does_not_hide_it() -> None:
    raw = f"Capturing CUDA graphs:  40%|####      | 27/67 [00:08<00:12]{PLAIN}"
    bar, line = parse_lines(raw)
    assert bar.text.startswith("Capturing CUDA graphs:  40%")
    assert (line.text, line.process) == (MESSAGE, "EngineCore")


def test_two_prefixes_in_one_line_name_nobody() -> None:
    raw = f"(EngineCore pid=2054) (APIServer pid=1940) INFO {STAMP} [core.py:1333] {MESSAGE}"
    (line,) = parse_lines(raw)
    assert (line.process, line.pid, line.text) == (None, None, MESSAGE)


def test_workers_that_write_at_once() -> None:
    text = (
        f"(Worker_TP0 pid=1) INFO {STAMP} [a.py:1] Model loading took 6.50 GiB and 1.4 seconds\n"
        f"(Worker_TP1 pid=2) (Worker_TP0 pid=1) INFO {STAMP} [a.py:1] {MESSAGE}\n"
        f"INFO {STAMP} [a.py:1] Model loading took 6.56 GiB and 1.5 seconds\n"
    )
    start = start_of(text)
    assert start.weights_bytes_per_rank == gib(6.56)
    assert start.kv_cache_bytes_per_rank == gib(1.92)
    assert start.process_names == {1: "Worker_TP0"}


def test_a_message_on_several_lines_is_one_line_each() -> None:
    text = "Memory profiling takes 2.3 seconds\nthe current vLLM instance can use total_gpu_memory"
    assert len(parse_lines(json.dumps({"message": text}))) == 2
