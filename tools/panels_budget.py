"""The row "Where the memory goes": each card by part, by owner, and as nvidia-smi sees it."""

from __future__ import annotations

from dashboard_parts import GPU, About, Query, Row, for_each_gpu, lines, metric, missing
from panels_gpu_memory import GPU_NAME, OWNERS

PARTS = (
    ("driver_reserved", "driver"),
    ("weights", "weights"),
    ("kv_cache_used", "KV cache in use"),
    ("kv_cache_free", "KV cache not in use"),
    ("cuda_graphs", "CUDA graphs"),
    ("activations", "activations"),
    ("unexplained", "unexplained"),
    ("other_processes", "other processes"),
    ("free", "free"),
)

BUDGET = Row(
    510,
    "Where the memory goes",
    (
        for_each_gpu(
            lines(
                About(
                    511,
                    "GPU $gpu: memory by part",
                    "All memory of the card by what it is for; the parts add up to the whole. Good "
                    "is a picture of flat layers, with the KV cache the largest after the weights. "
                    "Unused KV cache is a reserve, no fault. Bad: other processes that grow, or "
                    "unexplained that climbs while vLLM serves. Without vLLM's log (set "
                    "SIDECAR_VLLM_LOG) weights, cache, graphs and activations are part of "
                    "unexplained.",
                    "bytes",
                    24,
                    10,
                ),
                *(
                    Query(metric("gpu_memory_budget_bytes", GPU, part=part), "{{instance}} " + name)
                    for part, name in PARTS
                ),
                missing("gpu_memory_used_bytes", where=GPU),
                stacked=True,
            )
        ),
        OWNERS,
        lines(
            About(
                512,
                "Memory in use, as nvidia-smi shows it",
                "The one curve that nvidia-smi has, against the size of the card. High and flat is "
                "how a healthy server looks, at any load: vLLM takes its share once, at the start. "
                "So it says little by itself; what it is for is told by the panels above. Falls to "
                "nothing when vLLM ends; if it does not, see the verdict orphan.",
                "bytes",
                24,
            ),
            Query(metric("gpu_memory_used_bytes", GPU), GPU_NAME + ": in use"),
            Query(metric("gpu_memory_total_bytes", GPU), GPU_NAME + ": size"),
            missing("gpu_memory_used_bytes", where=GPU),
        ),
    ),
)
