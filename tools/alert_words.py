"""What the description of each alert has to say, in this order, and what none of them may.

A sentence may be bettered at will; the remedies and their order are the point of it, and agree
with the advice of the verdicts. `check_monitoring.py` holds every alert to this table.
"""

from __future__ import annotations

from collections.abc import Mapping

_MORE_KV_CACHE = ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--kv-cache-dtype fp8")

LOAD_BEARING_WORDS: Mapping[str, tuple[str, ...]] = {
    "VllmPreemptionSpike (warning)": (
        *_MORE_KV_CACHE, "0.24", "--watermark 0.3", "--max-num-seqs", "cost throughput",
        "change nothing",
    ),
    "VllmPreemptionSpike (critical)": (
        *_MORE_KV_CACHE, "0.24", "--watermark 0.3", "--max-num-seqs",
        "vllm_sidecar_tokens_per_second_plateau_running", "costs throughput",
    ),
    "VllmKvCacheSaturated (warning)": (
        "good use", "change nothing unless", *_MORE_KV_CACHE, "--watermark 0.3", "0.24",
        "--max-num-seqs", "throughput", "replica",
    ),
    "VllmSequencesCapped (warning)": (
        "no memory flag helps", "--max-num-seqs", "one step at a time", "change nothing",
    ),
    "VllmTokenBudgetCapped (warning)": (
        "--max-num-batched-tokens", "activation memory", "GPU itself is the limit",
    ),
    "VllmLoraCapped (warning)": ("--max-loras", "costs memory"),
    "VllmKvLeaked (warning)": ("Restart this engine", "abort time-out", "would be held as well"),
    "VllmKvFragmented (warning)": ("--block-size", "backend", "change nothing"),
    "VllmStalled (critical)": (
        "before changing anything", "/pause", "log", "restart the engine", "leave the launch flags",
    ),
    "VllmCoTenant (warning)": ("nvidia-smi", "--kv-cache-memory-bytes", "first load", "steady"),
    "VllmCoTenant (critical)": ("prefill", "End or move", "nvidia-smi", "next start"),
    "VllmOrphan (warning)": ("pids", "no others", "No launch flag helps"),
    "VllmGpuMemoryGrowth (warning)": (
        "vllm_sidecar_gpu_memory_exhaustion_seconds", "--gpu-memory-utilization by 0.02",
        "--kv-cache-memory-bytes", "--max-num-seqs does not help",
    ),
    "VllmHeadroomLow (warning)": (
        "--gpu-memory-utilization", "--kv-cache-memory-bytes", "costs that much KV cache",
    ),
    "VllmHostMemoryLow (warning)": ("kernel ends", "--kv-cache-memory-bytes", "no ceiling"),
    "VllmHostMemoryLow (critical)": ("without a line", "on the host now"),
    "VllmStartFailed (critical)": ("vllm-sidecar explain", "flag and value", "not_memory"),
    "VllmStartFailed (warning)": ("start it again", "capture sizes", "vllm-sidecar explain"),
    "VllmOutOfMemory (critical)": (
        "vllm-sidecar explain", "--gpu-memory-utilization", "host_oom", "no KV setting",
        "expandable_segments",
    ),
    "VllmSidecarSourceDown (critical)": ("log", "/health", "reason"),
    "VllmSidecarSourceDown (warning)": ("reason", "reboot", "recreated"),
    "VllmBlind (warning)": ("may serve well", "certificate", "proxy", "no key", "reason"),
    "VllmMetricsMissing (warning)": (
        "vllm_sidecar_series_missing", "--disable-log-stats", "--show-hidden-metrics-for-version",
        "zero",
    ),
    "VllmMetricsInvalid (warning)": ("left out", "vllm_sidecar_series_invalid_total", "proxy"),
    "VllmGpuUnreadable (warning)": ("absent, not zero", "Xid"),
    "VllmSidecarDown (critical)": ("/-/healthy", "disturbs nothing"),
    "VllmSidecarDataStale (warning)": ("clocks", "restart the sidecar"),
    "VllmSidecarWatchdog (none)": ("always fires", "watchdog receiver"),
}  # fmt: skip

NEVER_SAID = ("block-size", "block size", "eager", "leak", "fragment", "expandable_segments")
"""Wrong advice nearly everywhere: smaller blocks without fragmentation, eager mode, the allocator's
setting without slack, and the word for memory that vLLM holds on purpose."""

MAY_SAY: Mapping[str, frozenset[str]] = {
    "VllmKvFragmented": frozenset({"block-size"}),
    "VllmOutOfMemory": frozenset({"expandable_segments"}),
}
"""Where one of those words is the truth."""
