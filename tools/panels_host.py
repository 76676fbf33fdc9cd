"""The row "Host memory": what models load through, offload to, or share with the GPU."""

from __future__ import annotations

from alert_lines import HOST_CRITICAL, HOST_LOW
from dashboard_parts import SERVER, About, Query, Row, levels, lines, metric

HOST = Row(
    700,
    "Host memory",
    (
        lines(
            About(
                701,
                "Host memory that is available",
                "Memory that programs on the host may still take, as a share of all of it. Above "
                "10 % is fine; less while a model is being loaded is normal. Below, the alert "
                "VllmHostMemoryLow fires, below 3 % it is critical: the kernel may end vLLM. End "
                "what else runs there; lower --kv-offloading-size. Where CPU and GPU share one "
                "memory the lines are 10 and 6 GiB.",
                "percentunit",
                12,
            ),
            Query(
                f"{metric('host_memory_available_bytes', SERVER)} / "
                f"{metric('host_memory_total_bytes', SERVER)}",
                "{{instance}}",
            ),
            thresholds=levels("red", (HOST_CRITICAL, "orange"), (HOST_LOW, "green")),
        ),
        lines(
            About(
                702,
                "Host memory and swap in use",
                "Memory of the host, what of it is available, and what was moved to disk. Swap "
                "that is used and stays flat is harmless; swap that grows while vLLM serves makes "
                "it wait for the disk. Then see what else runs on the host.",
                "bytes",
                12,
            ),
            Query(metric("host_memory_total_bytes", SERVER), "{{instance}}: total"),
            Query(metric("host_memory_available_bytes", SERVER), "{{instance}}: available"),
            Query(metric("host_swap_used_bytes", SERVER), "{{instance}}: swap in use"),
        ),
    ),
)
