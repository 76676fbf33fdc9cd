"""Every kind of failure in its wordings, and what is not a failure."""

from __future__ import annotations

import json

import pytest

from sidecar.startlog import LogFailure, LogReader, start_json
from startlog.sample_logs import gib, start_of

UP = "INFO:     Application startup complete.\n"

CASES: dict[str, tuple[str, LogFailure]] = {
    "free memory, 0.9.1": (
        "ValueError: Free memory on device (10.2/79.1 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization",
        LogFailure(
            "free_memory_below_desired", free_bytes=gib(10.2), total_bytes=gib(79.1),
            utilization=0.9, desired_bytes=gib(71.19),
        ),
    ),
    "free memory, 0.14": (
        "ValueError: Free memory on device cuda:3 (10.2/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.92, 72.77 GiB).",
        LogFailure(
            "free_memory_below_desired", device="cuda:3", free_bytes=gib(10.2),
            total_bytes=gib(79.1), utilization=0.92, desired_bytes=gib(72.77),
        ),
    ),
    "free memory beside weights of another process, 0.32": (
        "ValueError: Free memory on device cuda:0 (10.2/79.1 GiB) on startup is less than the "
        "engine's budget after excluding external process's weights (0.9, 21.19 GiB). Decrease",
        LogFailure(
            "free_memory_below_desired", device="cuda:0", free_bytes=gib(10.2),
            total_bytes=gib(79.1), utilization=0.9, desired_bytes=gib(21.19),
        ),
    ),
    "free memory of the host, CPU backend": (
        "ValueError: Available memory on node 0 (4.85/18.0 GiB) on startup is less than desired "
        "CPU memory utilization (0.92, 16.56 GiB). On the CPU backend, the",
        LogFailure(
            "free_memory_below_desired", device="node 0", free_bytes=gib(4.85),
            total_bytes=gib(18.0), utilization=0.92, desired_bytes=gib(16.56),
        ),
    ),
    "free memory for the cache, CPU backend": (
        "ValueError: Available memory on node 1 (4.85/18.0 GiB) on kv cache allocation is less "
        "than requested memory for kv (8.0 GiB). Decrease --kv-cache-memory-bytes",
        LogFailure(
            "free_memory_below_desired", device="node 1", free_bytes=gib(4.85),
            total_bytes=gib(18.0), desired_bytes=gib(8.0),
        ),
    ),
    "no memory left, 0.2.3": (
        "ValueError: No available memory for the cache blocks. Try increasing",
        LogFailure("no_available_memory"),
    ),
    "nothing fits, auto length": (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
        "a single token. Try increasing `gpu_memory_utilization`.",
        LogFailure("no_available_memory"),
    ),
    "too long, V1 0.8.2": (
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GB "
        "KV cache is needed, which is larger than the available KV cache memory (2.10 GB). Try",
        LogFailure(
            "max_len_too_long", max_model_len=32768, needed_bytes=gib(4.0),
            available_bytes=gib(2.1),
        ),
    ),
    "too long, V1 0.9": (
        "ValueError: To serve at least one request with the models's max seq len (40960), (10.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (1.25 GiB). "
        "Based on the available memory,  Try increasing `gpu_memory_utilization`",
        LogFailure(
            "max_len_too_long", max_model_len=40960, needed_bytes=gib(10.0),
            available_bytes=gib(1.25),
        ),
    ),
    "too long, V1 0.22": (
        "ValueError: To serve at least one request with the model's max seq len (65536), (2.45 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (1.9 GiB). Based "
        "on the available memory, the estimated maximum model length is 50816. Try increasing",
        LogFailure(
            "max_len_too_long", max_model_len=65536, needed_bytes=gib(2.45),
            available_bytes=gib(1.9), estimated_max_model_len=50816,
        ),
    ),
    "a neighbour left while vLLM measured": (
        "AssertionError: Error in memory profiling. Initial free memory 41.19 GiB, current free "
        "memory 41.64 GiB. This happens when other processes sharing the same container release",
        LogFailure("profiling_disturbed", initial_free_bytes=gib(41.19), free_bytes=gib(41.64)),
    ),
    "the same, in bytes": (
        "AssertionError: Error in memory profiling. Initial free memory 4123, current free memory "
        "4164. This happens when the GPU memory was not properly cleaned up",
        LogFailure("profiling_disturbed", initial_free_bytes=4123, free_bytes=4164),
    ),
    "warming up the sampler": (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`",
        LogFailure("sampler_warmup_oom", dummy_requests=1024, moment="sampler_warmup"),
    ),
    "warming up the pooler": (
        "RuntimeError: CUDA out of memory occurred when warming up pooler (task='embed') with 256 "
        "dummy requests. Please try",
        LogFailure("sampler_warmup_oom", dummy_requests=256, moment="sampler_warmup"),
    ),
    "the driver's own words": (
        "RuntimeError: CUDA error: out of memory",
        LogFailure("cuda_oom"),
    ),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        LogFailure("cuda_oom"),
    ),
    "in disguise, on MIG": (
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":838',
        LogFailure("oom_in_disguise"),
    ),
    "host memory": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 8589934592 bytes. Error code 12",
        LogFailure("host_oom", requested_bytes=8589934592),
    ),
    "device assert": (
        "RuntimeError: CUDA error: device-side assert triggered",
        LogFailure("device_error"),
    ),
    "illegal access": (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        LogFailure("device_error"),
    ),
    "driver": (
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        LogFailure("device_error"),
    ),
    "unknown flags": (
        "api_server.py: error: unrecognized arguments: --swap-space 4 --preemption-mode=swap",
        LogFailure("argument_error", arguments=("--swap-space", "--preemption-mode")),
    ),
    "a value that a flag does not take": (
        "vllm serve: error: argument --block-size: invalid choice: 7 (choose from 8, 16, 32)",
        LogFailure("argument_error", arguments=("--block-size",)),
    ),
    "a keyword of the library": (
        "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'swap_space'",
        LogFailure("argument_error", arguments=("--swap-space",)),
    ),
    "a refused configuration": (
        "  Value error, Total number of attention heads (64) must be divisible by tensor parallel "
        "size (3). [type=value_error]",
        LogFailure("config_rejected"),
    ),
    "killed, as a shell says it": (
        "/bin/bash: line 1:    42 Killed                  vllm serve m",
        LogFailure("killed"),
    ),
    "killed, as the API server sees it": (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {'EngineCore_DP0': -9}",
        LogFailure("killed", exit_status=-9),
    ),
    "an engine that crashed": (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {'EngineCore': -11}",
        LogFailure("engine_dead", exit_status=-11),
    ),
    "a worker that died": (
        "ERROR 01-31 12:00:00 [m.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), "
        "shutting down executor.",
        LogFailure("killed", exit_status=-9),
    ),
    "anything else": (
        "Traceback (most recent call last):\nOSError: model/llama is not a local folder",
        LogFailure("exception"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kind_and_figures(name: str) -> None:
    text, expected = CASES[name]
    start = start_of(text)
    assert start.decisive_failure == expected
    assert start.outcome == expected.kind
    failure = start.decisive_failure
    assert failure is not None
    assert failure.message


def test_loading_fails_with_the_figures_of_pytorch() -> None:
    failure = start_of(
        "ERROR 01-31 12:00:00 [m.py:1] Failed to load model - not enough GPU memory. Try lowering "
        "--gpu-memory-utilization to free memory for weights. (original error: CUDA out of memory. "
        "Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.52 GiB of which 1.12 GiB is "
        "free.)\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
        "capacity of 23.52 GiB of which 1.12 GiB is free.\n"
    ).decisive_failure
    assert failure is not None
    assert (failure.kind, failure.moment) == ("load_model_oom", "loading")
    assert failure.out_of_memory is not None
    assert failure.out_of_memory.free_bytes == gib(1.12)


def test_the_sampler_keeps_the_figures_of_the_message_before_it() -> None:
    start = start_of(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
        "capacity of 23.52 GiB of which 1.12 GiB is free.\n"
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests"
    )
    failure = start.decisive_failure
    assert failure is not None
    assert (failure.kind, failure.dummy_requests) == ("sampler_warmup_oom", 1024)
    assert failure.out_of_memory is not None
    assert failure.out_of_memory.tried_bytes == gib(1.5)


def test_the_same_failure_printed_by_many_counts_once() -> None:
    text, _ = CASES["too long, V1 0.22"]
    start = start_of(f"(EngineCore pid=1) ERROR 01-31 12:00:00 [core.py:1] {text}\n{text}\n" * 3)
    assert len(start.failures) == 1


@pytest.mark.parametrize(
    "text",
    [
        "ERROR 01-31 12:00:00 [serving_chat.py:203] ValueError: This model's maximum context "
        "length is 2048 tokens.",
        "WARNING 01-31 12:00:00 [a.py:1] Traceback (most recent call last):\n"
        "WARNING 01-31 12:00:00 [a.py:1] ImportError: cannot import name '_C'",
        "INFO 01-31 12:00:00 [a.py:1] CUDA out of memory. Tried to allocate 2.00 GiB happened once",
        '    raise ValueError("Free memory on device is less than desired GPU memory utilization")',
        "    raise RuntimeError('CUDA out of memory occurred when warming up sampler with '",
        "asyncio.exceptions.CancelledError",
        "# origin: a story in which a process was Killed and ran out of memory",
    ],
)
def test_not_a_failure(text: str) -> None:
    assert start_of(text).failures == ()


def test_a_request_that_fails_does_not_end_the_server() -> None:
    start = start_of(
        UP + "(APIServer pid=1) ERROR:    Exception in ASGI application\n"
        "(APIServer pid=1) Traceback (most recent call last):\n"
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error\n"
        "(APIServer pid=1)   Value error, min_tokens must be less than max_tokens\n"
    )
    assert start.outcome == "started"


def test_a_failure_that_the_server_survives_does_not_decide() -> None:
    failing = UP + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    load = "Avg generation throughput: 5.0 tokens/s, Running: 1 reqs"
    assert start_of(failing).outcome == "cuda_oom"
    assert start_of(failing + load).outcome == "started"
    assert start_of(failing + "EngineDeadError: see above\n" + load).outcome == "cuda_oom"


def test_a_server_that_is_told_to_stop_does_not_die() -> None:
    start = start_of(
        UP + "INFO:     Shutting down\n"
        "ERROR 01-31 12:00:00 [core_client.py:600] Engine core proc EngineCore_DP0 died "
        "unexpectedly, shutting down client.\n"
    )
    assert (start.outcome, start.shut_down) == ("started", True)


@pytest.mark.parametrize("written", ["1e999", "-1e999", "2.5", "True", "1" + "0" * 400])
def test_a_share_that_cannot_be_is_not_said(written: str) -> None:
    reader = LogReader()
    reader.feed(
        "INFO 01-31 12:00:00 [utils.py:1] non-default args: {'model': 'm', "
        f"'gpu_memory_utilization': {written}, 'max_num_seqs': {'9' * 400}}}\n"
    )
    reader.finish()
    assert reader.last.model == "m"
    assert reader.last.gpu_memory_utilization is None
    assert reader.last.max_num_seqs is None
    json.dumps(start_json(reader.last), allow_nan=False)
