"""GPU memory: whose it is, how it grows and what is left, device by device."""

from __future__ import annotations

from alert_lines import HEADROOM_LOW
from dashboard_parts import (
    GPU,
    About,
    Query,
    Row,
    for_each_gpu,
    levels,
    lines,
    metric,
    missing,
)

GPU_NAME = "{{instance}} GPU {{gpu}}"
WHY_NO_GROWTH = missing(
    "gpu_memory_used_bytes",
    "gpu_memory_owner_bytes",
    "gpu_memory_growth_bytes",
    "gpu_memory_growth_bytes_per_hour",
    where=GPU,
)

OWNERS = for_each_gpu(
    lines(
        About(
            501,
            "GPU $gpu: whose memory it is",
            "All memory of the card: this vLLM server, other processes, unknown owners, "
            "free, and what the driver reserves. vLLM as one flat block is good, however "
            "large; less is no goal. Bad: other processes that grow, since vLLM counted on "
            "that room. Find them with nvidia-smi and start them before vLLM. Select one "
            "instance where several have a GPU of this number.",
            "bytes",
            24,
            9,
        ),
        Query(metric("gpu_memory_owner_bytes", GPU, owner="vllm"), "{{instance}} vLLM"),
        Query(metric("gpu_memory_owner_bytes", GPU, owner="other"), "{{instance}} others"),
        Query(metric("gpu_memory_owner_bytes", GPU, owner="unknown"), "{{instance}} unknown"),
        Query(metric("gpu_memory_free_bytes", GPU), "{{instance}} free"),
        Query(metric("gpu_memory_reserved_bytes", GPU), "{{instance}} driver"),
        missing(
            "gpu_memory_used_bytes",
            "gpu_memory_owner_bytes",
            "gpu_memory_reserved_bytes",
            where=GPU,
        ),
        stacked=True,
    )
)

GROWTH_AND_HEADROOM = Row(
    500,
    "Growth, headroom and peaks",
    (
        lines(
            About(
                502,
                "Growth of vLLM since it warmed up",
                "vLLM's memory now less its most during the first minute of serving. Near 0 is "
                "good; a GiB in the very first load is normal and already taken off. If it climbs "
                "for half an hour without a plateau, lower --gpu-memory-utilization by 0.02 and "
                "report it to vLLM.",
                "bytes",
                8,
            ),
            Query(metric("gpu_memory_growth_bytes", GPU), GPU_NAME),
            WHY_NO_GROWTH,
        ),
        lines(
            About(
                503,
                "Growth of vLLM per hour",
                "Slope of vLLM's memory over the last half hour, in bytes an hour. Around 0 is "
                "good, small swings either way are noise. A slope that stays positive while KV "
                "usage is flat is bad: see how long the card will last, beside.",
                "bytes",
                8,
            ),
            Query(metric("gpu_memory_growth_bytes_per_hour", GPU), GPU_NAME),
            WHY_NO_GROWTH,
            axis="an hour",
        ),
        lines(
            About(
                504,
                "Time until the GPU is full",
                "At that slope. No curve while memory does not grow, which is good and said in the "
                "legend. Hours that shrink steadily are bad: find what grows in the panel of "
                "owners before the card is full and vLLM dies.",
                "s",
                8,
            ),
            Query(metric("gpu_memory_exhaustion_seconds", GPU), GPU_NAME),
            Query(
                f"({metric('gpu_memory_growth_bytes_per_hour', GPU)} <= 0) * NaN",
                GPU_NAME + " does not grow",
                instant=True,
            ),
            WHY_NO_GROWTH,
        ),
        lines(
            About(
                505,
                "Headroom",
                "Free memory as a share of the card. A small, steady share is good: vLLM was told "
                "to fill the rest. Below 1 % while it serves the alert VllmHeadroomLow fires: the "
                "next large prefill needs room, too. A share that shrinks is bad as well: see "
                "owners and growth.",
                "percentunit",
                8,
            ),
            Query(metric("gpu_headroom_ratio", GPU), GPU_NAME),
            missing("gpu_memory_used_bytes", where=GPU),
            thresholds=levels("orange", (HEADROOM_LOW, "green")),
        ),
        lines(
            About(
                506,
                "Peak use",
                "Most memory in use at any poll of 60 s and of an hour, against the card. A peak "
                "close to the total is normal, vLLM is meant to run so. A 60 s peak that jumps "
                "towards the total and back is somebody's short allocation: that one may fail next "
                "time, so leave more room or find the process.",
                "bytes",
                8,
            ),
            Query(metric("gpu_memory_peak_used_bytes", GPU, window="60s"), GPU_NAME + ": 60 s"),
            Query(metric("gpu_memory_peak_used_bytes", GPU, window="1h"), GPU_NAME + ": 1 h"),
            Query(metric("gpu_memory_total_bytes", GPU), GPU_NAME + ": total"),
            missing("gpu_memory_used_bytes", where=GPU),
        ),
        lines(
            About(
                507,
                "GPU busy",
                "Share of time in which a kernel ran. It says that the GPU works, not how well. "
                "High while serving is normal; low with a queue means that something else holds "
                "requests back, on the host or in a limit. Not available on MIG devices.",
                "percentunit",
                8,
            ),
            Query(metric("gpu_utilization_ratio", GPU), GPU_NAME),
            missing("gpu_utilization_ratio", where=GPU),
        ),
    ),
)
