"""Figures in wordings that no sample log has."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.startlog import read_log
from sidecar.startlog.arguments import parse_arguments, parse_config
from startlog.sample_logs import gib, public_log, start_of

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "V0 0.6.4 profiling": (
        "Loading model weights took 14.99 GB\nMemory profiling results: total_gpu_memory=79.10GiB "
        "initial_memory_usage=15.50GiB peak_torch_memory=16.19GiB "
        "memory_usage_post_profile=15.60Gib non_torch_memory=0.51GiB "
        "kv_cache_size=54.49GiB gpu_memory_utilization=0.90",
        {
            "weights_bytes_per_rank": gib(14.99), "total_bytes": gib(79.1),
            "activation_bytes_per_rank": gib(16.19) - gib(14.99),
            "non_torch_bytes_per_rank": gib(0.51), "kv_cache_bytes_per_rank": gib(54.49),
            "gpu_memory_utilization": 0.9, "engine": "V0",
        },
    ),
    "V1 profiling at DEBUG, 0.10": (
        "Memory profiling takes 14.40 seconds. Total non KV cache memory: 10.22GiB; torch peak "
        "memory increase: 1.40GiB; non-torch forward increase memory: 0.02GiB; weights memory: "
        "8.80GiB.",
        {
            "activation_bytes_per_rank": gib(1.4), "non_torch_bytes_per_rank": gib(0.02),
            "weights_bytes_per_rank": gib(8.8),
        },
    ),
    "V1 profiling at DEBUG, 0.32": (
        "Memory profiling takes 1 seconds. Total non KV cache memory: 10.22GiB; torch peak memory "
        "increase: 1.4GiB; total consumed (from mem_get_info): 9.0GiB; weights memory: 8.8GiB.",
        {
            "activation_bytes_per_rank": gib(1.4), "consumed_bytes_per_rank": gib(9.0),
            "non_torch_bytes_per_rank": gib(9.0) - gib(8.8),
        },
    ),
    "V1 summary, 0.27": (
        "Model loading took 0.93 GiB memory and 2.0 seconds\nFree memory on device (22.45/23.99 "
        "GiB) on startup. Desired GPU memory utilization is (0.85, 20.39 GiB). Actual usage is "
        "1.49 GiB for consumed memory (weights + non-torch), 0.25 GiB for peak activation, and "
        "0.37 GiB "
        "for CUDAGraph memory. Replace gpu_memory_utilization config with "
        "`--kv-cache-memory=19468210074` (18.13 GiB) to fit into requested memory, or "
        "`--kv-cache-memory=21679683072` (20.19 GiB) to fully utilize gpu memory. Current kv cache "
        "memory in use is 18.65 GiB.",
        {
            "free_bytes": gib(22.45), "total_bytes": gib(23.99), "desired_bytes": gib(20.39),
            "consumed_bytes_per_rank": gib(1.49), "activation_bytes_per_rank": gib(0.25),
            "non_torch_bytes_per_rank": gib(1.49) - gib(0.93),
            "cuda_graph_bytes_per_rank": gib(0.37), "kv_cache_bytes_per_rank": gib(18.65),
            "kv_cache_to_fit_bytes": 19468210074, "kv_cache_to_fill_bytes": 21679683072,
        },
    ),
    "V1 summary, 0.10.2, to the byte": (
        "Available KV cache memory: 8.60 GiB\nFree memory on device (23.08/23.52 GiB) on startup. "
        "Desired GPU memory utilization is (0.8, 18.82 GiB). Actual usage is 8.8 GiB for weight, "
        "1.4 GiB for peak activation, 0.02 GiB for non-torch memory, and 0.59 GiB for CUDAGraph "
        "memory. Current kv cache memory in use is 9232221491 bytes.",
        {"kv_cache_bytes_per_rank": 9232221491, "weights_bytes_per_rank": gib(8.8)},
    ),
    "capacity in one line, 0.28": (
        "GPU KV cache size: 439,728 tokens, Maximum concurrency for 8,192 tokens per request: "
        "53.68x",
        {"kv_cache_tokens": 439728, "max_concurrency": 53.68, "max_model_len": 8192},
    ),
    "capacity on the CPU, 0.30": (
        "Auto set (5.37/32.72) GiB for KV cache on node 1, with 11.11 GiB requested memory for the "
        "worker.\nCPU KV cache size: 576 tokens, Maximum concurrency for 512 tokens per request: "
        "1.12x",
        {"kv_cache_tokens": 576, "kv_cache_bytes_per_rank": gib(5.37), "engine": "V1"},
    ),
    "bytes given by the user": (
        "Initial free memory 10.04 GiB, reserved 0.49 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.",
        {"kv_cache_bytes_per_rank": gib(0.49)},
    ),
    "blocks given by the user": (
        "Overriding num_gpu_blocks=16384 with num_gpu_blocks_override=18",
        {"gpu_blocks": 18, "num_gpu_blocks_override": 18},
    ),
    "blocks of V1, 0.7": ("# GPU blocks: 27483", {"gpu_blocks": 27483, "cpu_blocks": None}),
    "blocks, 0.7 V0": (
        "INFO 01-31 12:00:00 executor_base.py:110] # cuda blocks: 27483, # CPU blocks: 2048",
        {"gpu_blocks": 27483, "cpu_blocks": 2048, "engine": "V0"},
    ),
    "block size by the backend": (
        "Setting kv cache block size to 64 for FLASHMLA backend.", {"block_size": 64},
    ),
    "block size by the backend, 0.11": (
        "Forcing kv cache block size to 64 for FlashMLA backend.", {"block_size": 64},
    ),
    "graphs without a size, 0.6.3": (
        "Graph capturing finished in 21 secs.",
        {"cuda_graph_capture_seconds": 21.0, "cuda_graph_bytes_per_rank": None},
    ),
    "graphs below zero, unified memory": (
        "Graph capturing finished in 3 secs, took -0.73 GiB",
        {"cuda_graph_bytes_per_rank": gib(-0.73)},
    ),
    "length fitted to the memory": (
        "Auto-fit max_model_len: reduced from 131072 to 91520 to fit in available KV cache memory",
        {"max_model_len": 91520},
    ),
    "the tightest rank decides": (
        "Available KV cache memory: 5.0 GiB\nAvailable KV cache memory: 4.0 GiB\n"
        "Model loading took 7.0 GiB memory and 1 s\nModel loading took 6.0 GiB memory and 1 s",
        {"kv_cache_bytes_per_rank": gib(4.0), "weights_bytes_per_rank": gib(7.0)},
    ),
    "V1 before it said so, 0.7": (
        "INFO 01-31 12:00:00 core.py:49] Initializing an LLM engine (v0.7.2) with config: "
        "model='m'",
        {"engine": "V1", "vllm_version": "0.7.2"},
    ),
    "no version yet, 0.2": (
        "INFO 01-31 12:00:00 llm_engine.py:70] Initializing an LLM engine with config: model='m', "
        "dtype=torch.float16, max_seq_len=4096, load_format=auto",
        {"engine": "V0", "vllm_version": None, "dtype": "float16", "max_model_len": 4096},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_figures(name: str) -> None:
    text, expected = CASES[name]
    start = start_of(text)
    assert {field: getattr(start, field) for field in expected} == expected


LOADS = {
    "V0": (
        "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 18.5 tokens/s, Running: 1 "
        "reqs, Swapped: 2 reqs, Pending: 3 reqs, GPU KV cache usage: 20.0%, CPU KV cache "
        "usage: 7.0%.",
        (1, 3, 2, 0.2),
    ),
    "V1 0.7.1, without a comma": (
        "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 18.5 tokens/s, Running: 5 "
        "reqs, Waiting: 0 reqs GPU KV cache usage: 3.4%.",
        (5, 0, None, 0.034),
    ),
    "V1 on the CPU, with deferred requests": (
        "Engine 001: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 18.5 "
        "tokens/s, Running: 5 reqs, Waiting: 4 reqs, Deferred: 2 reqs, CPU KV cache usage: 100.0%",
        (5, 4, None, 1.0),
    ),
}


@pytest.mark.parametrize("name", LOADS)
def test_load_lines(name: str) -> None:
    text, expected = LOADS[name]
    load = start_of(text).serving.last_load
    assert load is not None
    assert (
        load.running_requests,
        load.waiting_requests,
        load.swapped_requests,
        load.kv_usage_ratio,
    ) == expected
    assert load.generation_tokens_per_second == 18.5


def test_counters_that_would_fall() -> None:
    text = "ValueError: Counters can only be incremented by non-negative amounts.\n"
    assert start_of(text * 3).serving.counter_errors == 3


def test_a_pause_that_was_refused_is_none() -> None:
    refused = '127.0.0.1:1 - "POST /pause HTTP/1.1" 404 Not Found\n'
    assert start_of(refused).serving.paused is None
    assert start_of(refused.replace("404 Not Found", "200 OK")).serving.paused is True


def test_arguments_with_objects_and_secrets() -> None:
    arguments = read_log(public_log("v0.10.2-freemem")).last.arguments
    assert arguments["max_lora_rank"] == 64
    assert arguments["lora_modules"] == (
        "[LoRAModulePath(name='adapter1', path='/models/lora', base_model_name=None)]"
    )
    hidden = parse_arguments("{'api_key': ['abc'], 'hf_token': 'abc', 'max_num_seqs': 8}")
    assert hidden == {"api_key": "***", "hf_token": "***", "max_num_seqs": 8}


def test_arguments_that_are_cut_off() -> None:
    assert parse_arguments("{'model': 'm', 'max_num_seqs': 12") == {"model": "m"}
    assert parse_arguments("{'model': 'it''s, {odd}', 'tp': 2}") == {
        "model": "its, {odd}",
        "tp": 2,
    }
    assert parse_arguments("Namespace(..., model='m', quantization=None, seed=0)") == {
        "model": "m",
        "seed": 0,
    }


def test_the_configuration_uses_the_names_of_the_flags() -> None:
    config = parse_config(
        "model='m', speculative_config=SpeculativeConfig(model='d', max_seq_len=1), "
        "dtype=torch.bfloat16, max_seq_len=4096, enforce_eager=True, x=<A.B: 0>, tail=1"
    )
    assert config == {
        "model": "m",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "enforce_eager": True,
    }
    assert parse_config("model='m', max_seq_len=131072")["max_model_len"] == 131072
    assert "max_model_len" not in parse_config("model='m', max_seq_len=1310")
