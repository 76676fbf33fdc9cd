"""Properties: pieces of any size give the same result, and no input raises."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.startlog import LogReader, Start, parse_lines, start_json
from startlog.sample_logs import CAPTURES, public_log, read_text, recorded_log

SAMPLES = [
    public_log("v0.10.2-freemem-less-than-desired-by-10MiB").read_bytes(),
    public_log("v0.6.3.post1-V0").read_bytes(),
    gzip.decompress(recorded_log("fail-no-kv").read_bytes()),
]
ALL_LINES = [
    line
    for path in sorted((CAPTURES / "logs").glob("*.log"))
    for line in path.read_text().splitlines()
]


def in_pieces(data: bytes, ends: list[int]) -> tuple[Start, ...]:
    reader = LogReader()
    bounds = sorted({0, len(data), *(end % (len(data) + 1) for end in ends)})
    for begin, end in pairwise(bounds):
        reader.feed(data[begin:end])
    reader.finish()
    return reader.starts


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SAMPLES), st.lists(st.integers(0, 10**6), max_size=40))
def test_pieces_of_any_size_give_the_same(data: bytes, ends: list[int]) -> None:
    assert in_pieces(data, ends) == in_pieces(data, [])


@pytest.mark.parametrize("data", SAMPLES)
def test_byte_by_byte(data: bytes) -> None:
    short = data[:4000]
    assert in_pieces(short, list(range(len(short)))) == in_pieces(short, [])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_bytes_never_raise(data: bytes) -> None:
    start_json(read_text(data).last)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=500))
def test_text_never_raises(text: str) -> None:
    parse_lines(text)
    start_json(read_text(text).last)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL_LINES), st.integers(0, 800), st.integers(0, 800), st.text(max_size=12))
def test_damaged_lines_never_raise(line: str, begin: int, end: int, inserted: str) -> None:
    damaged = line[:begin] + inserted + line[end:]
    start_json(read_text(damaged + "\n" + line).last)


@pytest.mark.parametrize(
    "line",
    [
        "{" * 100_000,
        "(" * 100_000 + " pid=",
        '{"log": ' * 5_000,
        "non-default args: " + "{'a': [" * 20_000,
        "non-default args: {'a': " + "9" * 100_000 + "}",
        "Available KV cache memory: " + "9" * 1_000 + " GiB",
        "(Worker pid=" + "9" * 1_000 + ") x",
        "Model loading took " + "1" * 60_000,
        "CUDA out of memory. Tried to allocate " + "1.0 GiB " * 5_000,
        "Memory profiling results total_gpu_memory=1GiB peak_torch_memory=1GiB " * 1_000,
        "Traceback (most recent call last)\n" + 'File "a", line 1, in ' * 3_000,
        "is preempted by SWAP mode " * 2_500,
        "Free memory on device on startup. Desired " * 1_500,
        "(A pid=1, ip=" * 5_000,
        "INFO 01-31 12:00:00 " * 3_000,
        "1," * 30_000 + " KV cache size: " + "1," * 300,
        "Error in memory profiling. Initial free memory 1, " * 1_200,
    ],
)
def test_hostile_lines_neither_raise_nor_stall(line: str) -> None:
    begun = time.process_time()
    start_json(read_text(line).last)
    assert time.process_time() - begun < 1.0


def test_invalid_utf8_and_utf16() -> None:
    damaged = b"\xff\xfe\x80 Available KV cache memory: 1.92 GiB\n"
    assert read_text(damaged).last.kv_cache_bytes_per_rank is not None
    powershell = "Available KV cache memory: 1.92 GiB\r\n".encode("utf-16")
    assert read_text(powershell).last.kv_cache_bytes_per_rank is not None


def test_memory_stays_bounded() -> None:
    endless = b"x" * 65_536
    busy = b"Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%\n" * 200
    request = b'1.2.3.4:1 - "POST /sleep HTTP/1.1" 200 OK\n' * 200
    failing = b"".join(b"RuntimeError: CUDA out of memory. Tried to allocate %d.00 MiB.\n" % n
                       for n in range(200))  # fmt: skip
    reader = LogReader()
    tracemalloc.start()
    for chunk in (endless, busy, request, failing, endless) * 4:
        reader.feed(chunk)
    reader.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
    assert len(reader.last.failures) <= 64
    assert len(reader.last.serving.control_requests) <= 50
