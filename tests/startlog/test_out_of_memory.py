"""PyTorch's message in its wordings, and when a failure happened."""

from __future__ import annotations

import pytest

from sidecar.startlog import Moment, OutOfMemory
from sidecar.startlog.out_of_memory import parse_out_of_memory
from startlog.sample_logs import CAPTURES, gib, read_text, start_of

MIB = 1024**2


def mib(number: float) -> int:
    return round(number * MIB)


# Read from oom-lines-pytorch.log, line by line.
LINES = (
    OutOfMemory(
        gib(1.63), 0, gib(44.56), mib(565.31), None, (), gib(27.91), None, gib(27.93) - gib(27.91)
    ),
    OutOfMemory(
        gib(16), 0, gib(44.53), mib(187.94), None, ((3909982, gib(44.34)),), gib(43.67), None,
        mib(335.07),
    ),
    OutOfMemory(
        mib(524), 0, gib(15.77), mib(137.12), None, ((6513, gib(15.63)),), gib(13.81), mib(106),
        mib(121.43),
    ),
    OutOfMemory(
        mib(138), 0, gib(79.15), mib(2.19), gib(79.12), (), gib(71.57), mib(39.77), mib(611.60)
    ),
    OutOfMemory(gib(1.16), 0, gib(7.75), gib(1.17), gib(5.02), (), gib(4.81), None, mib(18.97)),
    OutOfMemory(
        gib(74.16), 0, gib(44.40), gib(29.89), None, ((2684311, gib(14.51)),), gib(13.44), None,
        mib(738.96),
    ),
)  # fmt: skip


def test_six_messages_of_two_eras() -> None:
    text = (CAPTURES / "logs" / "oom-lines-pytorch.log").read_text()
    start = read_text(text).last
    assert tuple(failure.out_of_memory for failure in start.failures) == LINES
    assert {failure.kind for failure in start.failures} == {"cuda_oom"}


def test_none_of_the_six_is_fragmentation() -> None:
    for line in LINES:
        assert line.reserved_unallocated_bytes is not None
        assert line.total_bytes is not None
        assert line.reserved_unallocated_bytes / line.total_bytes < 0.02


def test_a_spelling_of_its_own_and_bytes() -> None:
    found = parse_out_of_memory(
        "HIP out of memory. Tried to allocate 20.00 KiB. GPU 3 has a total capacty of 23.98 GiB "
        "of which 0 bytes is free."
    )
    assert found == OutOfMemory(20 * 1024, 3, gib(23.98), 0)


def test_a_process_of_minus_one_bytes_is_not_believed() -> None:
    found = parse_out_of_memory(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB "
        "of which 0 bytes is free. Including non-PyTorch memory, this process has "
        "17179869184.00 GiB memory in use. Process 7 has 17179869184.00 GiB memory in use."
    )
    assert found is not None
    assert (found.this_process_bytes, found.processes) == (None, ())


WEIGHTS = "Model loading took 14.99 GiB memory and 3.1 seconds\n"
ENGINE = "Initializing a V1 LLM engine (v0.25.0) with config: model='m', enforce_eager=False, x=1\n"
TOKENS = "GPU KV cache size: 1,024 tokens\n"
FATAL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"


def frames(*names: str) -> str:
    lines = [f'  File "a.py", line {number}, in {name}' for number, name in enumerate(names)]
    return "\n".join(["Traceback (most recent call last):", *lines, ""])


@pytest.mark.parametrize(
    ("before", "moment"),
    [
        ("", None),
        (ENGINE, "loading"),
        (ENGINE + WEIGHTS, "profiling"),
        (ENGINE + WEIGHTS + TOKENS, "graph_capture"),
        (ENGINE.replace("False", "True") + WEIGHTS + TOKENS, "kv_cache"),
        (ENGINE + "Capturing CUDA graphs (decode, FULL):  57%|#####| 20/35\n", "graph_capture"),
        (ENGINE + "INFO:     Application startup complete.\n", "serving"),
        (ENGINE + frames("_initialize_kv_caches", "profile_run", "forward"), "profiling"),
        (ENGINE + WEIGHTS + TOKENS + frames("initialize_from_config", "zeros"), "kv_cache"),
        (ENGINE + WEIGHTS + TOKENS + frames("capture_model", "_dummy_run"), "graph_capture"),
        (ENGINE + WEIGHTS + frames("run_busy_loop", "execute_model"), "serving"),
    ],
)
def test_what_the_server_was_doing(before: str, moment: Moment | None) -> None:
    failure = start_of(before + FATAL).decisive_failure
    assert failure is not None
    assert (failure.kind, failure.moment) == ("cuda_oom", moment)


def test_tracebacks_of_several_workers_do_not_mix() -> None:
    def worker(pid: int, text: str) -> str:
        return f"(Worker pid={pid}) ERROR 01-31 12:00:00 [m.py:1] {text}\n"

    text = (
        worker(1, "Traceback (most recent call last):")
        + worker(2, "Traceback (most recent call last):")
        + worker(1, '  File "a.py", line 1, in load_model')
        + worker(2, '  File "a.py", line 1, in capture_model')
        + worker(1, FATAL.replace("2.00", "1.00"))
        + worker(2, FATAL)
    )
    assert [failure.moment for failure in start_of(text).failures] == ["loading", "graph_capture"]


def test_a_retry_of_the_allocator_is_no_failure() -> None:
    start = start_of(
        "[rank0]:[W1129 16:13:41.534 CUDACachingAllocator.cpp:3933] memory allocation failed with "
        "OOM on device 0 while trying to allocate 2097152 bytes (free: 2031616, total: 23661248512)"
    )
    assert start.failures == ()
    assert start.serving.allocator_retries == 1
    retry = start.serving.last_allocator_retry
    assert retry is not None
    assert (retry.tried_bytes, retry.free_bytes) == (2097152, 2031616)
