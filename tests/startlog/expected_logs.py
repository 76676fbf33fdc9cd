"""What a person reads in each sample log, as literal numbers.

A row names every memory figure of the log's last start; a figure that is not named must be None.
Sizes are in GiB, as the logs print them. `conc` is the maximum concurrency, `util` the utilisation.
"""

from __future__ import annotations

from typing import Any

# The names used in the rows, and the fields of `Start` that they stand for.
SIZES = {
    "weights": "weights_bytes_per_rank",
    "peak": "activation_bytes_per_rank",
    "other": "non_torch_bytes_per_rank",
    "consumed": "consumed_bytes_per_rank",
    "graphs": "cuda_graph_bytes_per_rank",
    "estimate": "cuda_graph_estimated_bytes_per_rank",
    "kv": "kv_cache_bytes_per_rank",
    "total": "total_bytes",
    "free": "free_bytes",
    "desired": "desired_bytes",
}
FIGURES = {
    "version": "vllm_version",
    "engine": "engine",
    "util": "gpu_memory_utilization",
    "length": "max_model_len",
    "seqs": "max_num_seqs",
    "batched": "max_num_batched_tokens",
    "block": "block_size",
    "tokens": "kv_cache_tokens",
    "gpu_blocks": "gpu_blocks",
    "cpu_blocks": "cpu_blocks",
    "conc": "max_concurrency",
    "equivalent": "equivalent_utilization",
    "suggested": "suggested_utilization",
    "to_fit": "kv_cache_to_fit_bytes",
    "to_fill": "kv_cache_to_fill_bytes",
    "padding": "padding_waste_ratio",
    "seconds": "cuda_graph_capture_seconds",
    "tp": "tensor_parallel_size",
    "eager": "enforce_eager",
    "prefix": "enable_prefix_caching",
}

Row = dict[str, Any]

PUBLIC: dict[str, Row] = {
    "v0.2.7-V0-maxlen-larger-than-kv": {"outcome": "max_len_too_long", "length": 4096},
    "v0.6.3-V0-preempt-swap-then-stuck": {"outcome": "started", "engine": "V0", "usage": 0.861},
    "v0.6.3-jetson-killed-946x": {
        "outcome": "killed", "engine": "V0", "length": 200, "weights": 4.3752,
        "gpu_blocks": 11836, "cpu_blocks": 4681, "conc": 946.88,
    },
    "v0.6.3-priority-preempt-not-kv": {"outcome": "started", "engine": "V0"},
    "v0.6.3.post1-V0": {
        "outcome": "started", "version": "0.6.3.post1", "engine": "V0", "util": 0.9,
        "length": 32768, "seqs": 256, "block": 16, "weights": 15.3916, "gpu_blocks": 2987,
        "cpu_blocks": 4096, "conc": 1.46, "seconds": 28.0, "tp": 4, "eager": False,
        "prefix": False, "usage": 0.0,
    },
    "v0.6.5-V0-16GiB-after-util-0.9": {
        "outcome": "incomplete", "engine": "V0", "util": 0.9, "length": 40000, "weights": 7.51,
        "peak": 2.53, "other": 0.39, "kv": 3.76, "total": 15.77, "desired": 14.20,
        "gpu_blocks": 3852, "cpu_blocks": 4096, "conc": 1.54,
    },
    "v0.7-H100-mllama-36GiB-activations": {
        "outcome": "incomplete", "engine": "V0", "util": 0.9, "weights": 19.86, "peak": 36.63,
        "other": 0.16, "kv": 14.65, "total": 79.22, "desired": 71.29, "gpu_blocks": 6001,
        "cpu_blocks": 1638,
    },
    "v0.7.2-V0-profile": {
        "outcome": "incomplete", "engine": "V0", "util": 0.9, "weights": 9.6884, "peak": 2.95,
        "other": 1.27, "kv": 57.48, "total": 79.33, "desired": 71.39,
    },
    "v0.8.3-tinyllama-graphs4.1GiB": {
        "outcome": "started", "version": "0.8.3", "engine": "V1", "util": 0.5, "length": 512,
        "batched": 2048, "weights": 0.7318, "graphs": 4.10, "seconds": 19.0, "tokens": 127664,
        "conc": 249.34, "tp": 1, "eager": False, "usage": 0.0,
    },
    "v0.8.4-V0-sleep-still-in-use": {
        "outcome": "started", "engine": "V0", "util": 0.25, "weights": 8.64, "peak": 0.25,
        "other": 0.15, "kv": 10.74, "total": 79.14, "desired": 19.78,
    },
    "v0.8.5.post1-14b-concurrency1.0": {
        "outcome": "started", "version": "0.8.5.post1", "engine": "V1", "util": 0.9,
        "length": 32768, "batched": 2048, "weights": 27.5916, "graphs": 0.70, "seconds": 33.0,
        "tokens": 32832, "conc": 1.0, "tp": 1, "eager": False, "usage": 0.0,
    },
    "v0.9.1-freemem-31-of-47": {
        "outcome": "free_memory_below_desired", "util": 0.95, "free": 31.44, "total": 47.38,
        "desired": 45.01,
    },
    "v0.9.2-freemem-59-of-79": {
        "outcome": "free_memory_below_desired", "version": "0.9.2", "engine": "V1", "util": 0.9,
        "length": 131072, "free": 59.32, "total": 79.15, "desired": 71.24,
    },
    "v0.10.0-ok": {
        "outcome": "started", "version": "0.10.0", "engine": "V1", "util": 0.8, "length": 2048,
        "batched": 2048, "weights": 15.6116, "kv": 1.92, "tokens": 20960, "conc": 10.23,
        "graphs": 1.06, "seconds": 4.0, "tp": 1, "prefix": True,
    },
    "v0.10.2-freemem": {
        "outcome": "free_memory_below_desired", "version": "0.10.2", "engine": "V1", "util": 0.8,
        "length": 4096, "batched": 8192, "free": 16.01, "total": 93.0, "desired": 74.4, "tp": 1,
    },
    "v0.10.2-freemem-less-than-desired-by-10MiB": {
        "outcome": "started", "starts": 2, "engine": "V1", "util": 0.85, "length": 4096,
        "weights": 4.2530, "peak": 0.34, "other": 0.02, "graphs": 1.27, "seconds": 4.0,
        "kv": 8.99, "tokens": 18400, "conc": 4.49, "free": 14.66, "total": 15.99,
        "desired": 13.59, "to_fit": 8131478732, "to_fill": 9277388800, "usage": 0.067,
    },
    "v0.10.2-qwen3-30b-ok": {
        "outcome": "started", "version": "0.10.2", "engine": "V1", "util": 0.9, "length": 6144,
        "batched": 8192, "weights": 56.9342, "peak": 5.58, "other": 0.07, "graphs": 0.69,
        "seconds": 7.0, "kv": 8.68, "tokens": 94784, "conc": 15.43, "free": 78.57,
        "total": 79.18, "desired": 71.26, "to_fit": 8417154969, "to_fill": 16270032384,
        "tp": 1, "prefix": True, "usage": 0.133,
    },
    "v0.11.0-L4-concurrency1.22": {
        "outcome": "started", "version": "0.11.0", "engine": "V1", "util": 0.92, "length": 32000,
        "seqs": 128, "batched": 2048, "weights": 14.9889, "kv": 4.75, "tokens": 38944,
        "conc": 1.22, "graphs": 0.38, "seconds": 7.0, "tp": 1, "usage": 0.367,
    },
    "v0.11.0-freemem": {
        "outcome": "free_memory_below_desired", "version": "0.11.0", "engine": "V1", "util": 0.9,
        "length": 40960, "batched": 8192, "free": 5.92, "total": 79.19, "desired": 71.27, "tp": 1,
    },
    "v0.11.0-llama8b-ok": {
        "outcome": "started", "version": "0.11.0", "engine": "V1", "length": 4096,
        "batched": 2048, "weights": 14.9889, "kv": 19.24, "tokens": 157584, "conc": 38.47,
        "graphs": 2.85, "seconds": 5.0, "tp": 1, "usage": 0.027,
    },
    "v0.11.0-pooling-eager-T4": {
        "outcome": "started", "version": "0.11.0+torch271", "engine": "V1", "util": 0.8,
        "length": 2048, "weights": 3.4554, "kv": 8.21, "tokens": 76848, "conc": 37.52, "tp": 1,
        "eager": True, "prefix": False,
    },
    "v0.13.0-awq14b-ok": {
        "outcome": "started", "version": "0.13.0", "engine": "V1", "length": 8192,
        "batched": 2048, "weights": 9.3795, "kv": 10.39, "tokens": 56736, "conc": 6.93,
        "graphs": 1.18, "seconds": 20.0, "tp": 1,
    },
    "v0.13.0nv-gpt-oss-util0.25": {
        "outcome": "started", "version": "0.13.0+faa43dbf.nv26.01", "engine": "V1", "util": 0.25,
        "length": 8192, "batched": 2048, "weights": 13.7193, "kv": 12.94, "tokens": 282624,
        "conc": 54.44, "graphs": 0.86, "seconds": 17.0, "tp": 1, "prefix": True,
    },
    "v0.14.0rc1-kv0.34GiB-slow-capture": {
        "outcome": "started", "version": "0.14.0rc1.dev2+g7d9f6663a.d20260121", "engine": "V1",
        "util": 0.75, "length": 1024, "batched": 8192, "weights": 9.4922, "kv": 0.34,
        "tokens": 1856, "conc": 1.81, "graphs": 4.08, "seconds": 2173.0, "tp": 1,
    },
    "v0.17.0-rocm": {
        "outcome": "started", "version": "0.17.0", "engine": "V1", "length": 4096,
        "batched": 2048, "weights": 14.37, "kv": 41.81, "tokens": 782800, "conc": 191.11,
        "graphs": 3.19, "seconds": 9.0, "tp": 1,
    },
    "v0.17.1-ok": {
        "outcome": "started", "version": "0.17.1", "engine": "V1", "length": 32768,
        "batched": 2048, "weights": 14.99, "kv": 55.79, "tokens": 457024, "conc": 13.95,
        "graphs": 0.50, "seconds": 6.0, "tp": 1,
    },
    "v0.19.1-ok": {
        "outcome": "started", "version": "0.19.1", "engine": "V1", "util": 0.85, "length": 4096,
        "weights": 7.12, "kv": 13.06, "tokens": 35648, "conc": 8.67, "graphs": 0.46,
        "estimate": 0.51, "seconds": 6.0, "suggested": 0.8712, "tp": 1,
    },
    "v0.21+-dflash-padding-60pct": {
        "outcome": "incomplete", "engine": "V1", "util": 0.62, "estimate": 6.24, "kv": 5.16,
        "equivalent": 0.5413, "suggested": 0.6987, "padding": 0.6,
    },
    "v0.22.1-qwen3-30b-fp8-ok": {
        "outcome": "started", "version": "0.22.1", "engine": "V1", "util": 0.92, "length": 8192,
        "seqs": 64, "batched": 8192, "weights": 29.08, "kv": 42.54, "tokens": 464656,
        "conc": 56.72, "graphs": 0.22, "estimate": 0.14, "seconds": 10.0, "equivalent": 0.9182,
        "suggested": 0.9218, "tp": 1, "prefix": True, "usage": 0.055,
    },
    "v0.23.0-freemem": {
        "outcome": "free_memory_below_desired", "version": "0.23.0", "engine": "V1",
        "util": 0.92, "length": 262144, "seqs": 256, "batched": 8192, "free": 53.76,
        "total": 79.18, "desired": 72.84, "tp": 4,
    },
    "v0.25.1-cpu-no-available-memory": {
        "outcome": "no_available_memory", "version": "0.25.1", "engine": "V1", "length": 2048,
        "seqs": 4, "tp": 1, "eager": True,
    },
    "v0.25.1-max-model-len-rejected": {
        "outcome": "config_rejected", "version": "0.25.1", "length": 999999, "eager": True,
    },
    "v0.25.1-spark-dies-while-idle": {
        "outcome": "started", "version": "0.25.1", "engine": "V1", "util": 0.89,
        "length": 65536, "seqs": 32, "weights": 95.63, "kv": 6.97, "tokens": 94135,
        "conc": 1.44, "graphs": 2.08, "estimate": 1.41, "seconds": 11.0, "equivalent": 0.8784,
        "suggested": 0.9016, "usage": 0.009,
    },
    "v0.25.1-spark-gemma4-ok": {
        "outcome": "started", "version": "0.25.1", "engine": "V1", "util": 0.85,
        "length": 262144, "seqs": 32, "batched": 2496, "weights": 16.63, "kv": 83.89,
        "tokens": 3875400, "conc": 14.78, "graphs": 0.38, "estimate": 0.14, "seconds": 4.0,
        "equivalent": 0.8489, "suggested": 0.8511, "tp": 1, "usage": 0.001,
    },
    "v0.25.1-spark-hybrid-block1600-padding": {
        "outcome": "started", "version": "0.25.1", "engine": "V1", "util": 0.85,
        "length": 262144, "seqs": 32, "block": 1600, "weights": 22.13, "kv": 76.4,
        "tokens": 2192477, "conc": 8.36, "graphs": 0.74, "estimate": 0.22, "seconds": 9.0,
        "equivalent": 0.8482, "suggested": 0.8518, "padding": 0.0625, "usage": 0.009,
    },
    "v0.25.1-unrecognized-argument": {"outcome": "argument_error"},
    "v0.2x-hybrid-block-7808-vs-1600": {"outcome": "incomplete", "block": 1600},
    "v0.2x-wsl-freemem-130MiB-short": {
        "outcome": "free_memory_below_desired", "util": 0.95, "free": 30.12, "total": 31.84,
        "desired": 30.25,
    },
}  # fmt: skip

_H200: Row = {
    "version": "0.25.0", "engine": "V1", "length": 4096, "batched": 8192, "weights": 13.06,
    "tp": 1, "eager": True, "prefix": True, "outcome": "started",
}  # fmt: skip

RECORDED: dict[str, Row] = {
    "graphs-32-4-0": {
        **_H200, "eager": False, "util": 0.9, "seqs": 32, "kv": 111.61, "tokens": 914272,
        "conc": 223.21, "graphs": 0.16, "seconds": 2.0, "usage": 0.041,
    },
    "eager-32-4-0": {
        **_H200, "util": 0.9, "seqs": 32, "kv": 111.67, "tokens": 914752, "conc": 223.33,
        "usage": 0.04,
    },
    "preempt-storm": {
        **_H200, "util": 0.17, "seqs": 128, "prefix": False, "kv": 9.61, "tokens": 78720,
        "conc": 19.22, "usage": 0.999,
    },
    "block16-short": {
        **_H200, "util": 0.17, "seqs": 256, "prefix": False, "block": 16, "kv": 9.61,
        "tokens": 78720, "conc": 19.22, "usage": 0.261,
    },
    "lowuse-c2": {
        **_H200, "util": 0.9, "seqs": 32, "kv": 111.67, "tokens": 914752, "conc": 223.33,
        "usage": 0.001,
    },
    "neighbour-grows": {
        **_H200, "util": 0.5, "seqs": 32, "kv": 55.75, "tokens": 456656, "conc": 111.49,
        "usage": 0.043,
    },
    "sleep-wake": {
        **_H200, "util": 0.6, "kv": 69.73, "tokens": 571184, "conc": 139.45, "usage": 0.035,
    },
    "kill-restart": {
        **_H200, "starts": 2, "util": 0.3, "seqs": 64, "kv": 27.79, "tokens": 227616,
        "conc": 55.57, "usage": 0.0,
    },
    "tp2-32-4-0": {
        **_H200, "util": 0.6, "seqs": 32, "tp": 2, "weights": 6.56, "kv": 76.24,
        "tokens": 1249024, "conc": 304.94, "usage": 0.03,
    },
    "runtime-oom": {
        **_H200, "outcome": "cuda_oom", "util": 0.6, "seqs": 256, "batched": 16384, "kv": 68.88,
        "tokens": 564272, "conc": 137.76,
    },
    "pause-keep": {
        **_H200, "util": 0.3, "seqs": 64, "kv": 27.79, "tokens": 227616, "conc": 55.57,
        "usage": 0.103,
    },
    "fail-neighbour": {
        **_H200, "outcome": "free_memory_below_desired", "util": 0.92, "weights": None,
        "free": 98.69, "total": 139.8, "desired": 128.62,
    },
    "fail-no-kv": {**_H200, "outcome": "no_available_memory", "util": 0.1, "kv": -0.17},
}  # fmt: skip
