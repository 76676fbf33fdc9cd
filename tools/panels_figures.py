"""The figures at the top of the dashboards on KV cache, GPU memory and the sidecar itself."""

from __future__ import annotations

from alert_lines import THROUGHPUT_LEFT
from dashboard_parts import (
    ENGINE_NAME,
    GPU,
    SERVER,
    About,
    Query,
    figures,
    levels,
    metric,
    or_why,
)
from panels_verdicts import ENGINE_CODES, MEASURING_CODES, MEMORY_CODES, worst

GPU_FIGURE = "{{instance}} GPU {{gpu}} {{reason}}"

WAITING = figures(
    About(
        120,
        "Waiting now",
        "Requests in the queue. None is good, and a queue is normal for a batch job. With a full "
        "cache it waits for memory; with room in the cache a cap holds it back: see the verdict.",
        "short",
        4,
        5,
    ),
    Query(
        or_why(metric("requests_waiting"), "requests_waiting"),
        ENGINE_NAME + " {{reason}}",
        instant=True,
    ),
    decimals=0,
)

RATE = figures(
    About(
        121,
        "Tokens a second, share of the best",
        "Prompt and generated tokens a second against the best ten seconds of the last hour. Near "
        "100 % is good and makes preemptions harmless. Below 75 % with preemptions and as many "
        "requests, throughput has collapsed: more KV cache. With fewer requests it is normal.",
        "percentunit",
        5,
        5,
    ),
    Query(
        or_why(
            f"({metric('generation_tokens_per_second')} + {metric('prompt_tokens_per_second')}) / "
            f"({metric('tokens_per_second_plateau')} > 0)",
            "generation_tokens_per_second",
        ),
        ENGINE_NAME + " {{reason}}",
        instant=True,
    ),
    thresholds=levels("blue", (THROUGHPUT_LEFT, "green")),
    decimals=0,
)

KV_VERDICT = worst(
    122,
    "Verdict on the KV cache",
    "The gravest verdict about the cache, its blocks, and caps on what may run. Nothing wrong is "
    "good, however full the cache is. Else the dashboard Memory health names it and says what to "
    "do. No data: the sidecar is not scraped.",
    4,
    ENGINE_CODES,
)

OTHERS = figures(
    About(
        130,
        "Memory of other processes",
        "What is not vLLM's on each card. Zero, or a steady neighbour that was there first, is "
        "fine. If it grows while vLLM serves, vLLM counted on that room: find the process with "
        "nvidia-smi, end or move it.",
        "bytes",
        5,
        5,
    ),
    Query(
        or_why(metric("gpu_memory_owner_bytes", GPU, owner="other"), "gpu_memory_owner_bytes", GPU),
        GPU_FIGURE,
        instant=True,
    ),
)

GROWTH = figures(
    About(
        131,
        "Growth since warm-up",
        "vLLM's memory now less its most during the first minute of serving. Around zero is good. "
        "Growth that goes on for half an hour is not: see the row on growth. Not available until "
        "a minute has been served.",
        "bytes",
        5,
        5,
    ),
    Query(
        or_why(metric("gpu_memory_growth_bytes", GPU), "gpu_memory_growth_bytes", GPU),
        GPU_FIGURE,
        instant=True,
    ),
)

READABLE = figures(
    About(
        132,
        "GPUs that can be read",
        "Whether each card's memory was read at the last poll. Readable is good. Not readable: "
        "its figures are absent, not zero; the sidecar's log has NVML's words. No data beside a "
        "vLLM that is up: no GPU is watched.",
        "none",
        4,
        5,
    ),
    Query(metric("gpu_up", GPU), "{{instance}} GPU {{gpu}}", instant=True),
    meanings=(("0", "Not readable", "red"), ("1", "Readable", "green")),
)

MEMORY_VERDICT = worst(
    133,
    "Verdict on memory",
    "The gravest verdict about neighbours, growth, headroom, orphans and the host. Nothing wrong "
    "is good, however full the card is. Else the dashboard Memory health names it and says what to "
    "do. No data: the sidecar is not scraped.",
    4,
    MEMORY_CODES,
)

SCRAPED = figures(
    About(
        140,
        "Sidecar",
        "Whether Prometheus reached the sidecar at its last scrape. Scraped is good. Not reached: "
        "nobody watches vLLM, which itself may be fine; see whether the sidecar runs and restart "
        "it. No data: Prometheus has no target for it.",
        "none",
        4,
        5,
    ),
    Query(f"up{{{SERVER}}}", "{{instance}}", instant=True),
    meanings=(("0", "Not reached", "red"), ("1", "Scraped", "green")),
)

PERIOD = figures(
    About(
        141,
        "Time between polls",
        "The period that the sidecar achieves. About the setting, one second by default, is good. "
        "Longer means that a source is slow and the sidecar asks less often, so as not to add to "
        "it: see reading time.",
        "s",
        4,
        5,
    ),
    Query(metric("poll_period_seconds", SERVER), "{{instance}}", instant=True),
    decimals=1,
)

MEASURING_VERDICT = worst(
    142,
    "Verdict on measuring",
    "The gravest verdict about what cannot be read, is missing or cannot be true. Nothing wrong is "
    "good: the figures can be relied on. Else see the tables of missing series and of what is not "
    "available. No data: the sidecar is not scraped.",
    4,
    MEASURING_CODES,
)
