"""What the dashboards show above their details: figures of health, and the three indicators.

A description says what the panel shows, what is good, what is bad and what to do. Three things
are easily misread, and no description may suggest them: that less GPU memory is a goal, that low
KV usage is a fault, and that a preemption is harm by itself.
"""

from __future__ import annotations

from alert_lines import (
    KV_FULL,
    KV_SATURATED,
    KV_UNDERUSED,
    OLD_SECONDS,
    PREEMPTED_PER_FINISHED,
    PREEMPTED_PER_SECOND,
)
from dashboard_parts import (
    ENGINE_NAME,
    GPU,
    SERVER,
    About,
    Query,
    Row,
    figures,
    levels,
    lines,
    metric,
    missing,
    or_why,
    sized,
    why_not,
)


def share_underused(window: str) -> str:
    """Share of the serving time of a window with less than half of the KV cache in use."""
    below = f"increase({metric('kv_cache_underused_seconds_total')}[{window}])"
    serving = f"increase({metric('serving_seconds_total')}[{window}])"
    return f"{below} / ({serving} > 0)"


VLLM = figures(
    About(
        101,
        "vLLM",
        "Whether vLLM's metrics page answered at the last poll. Up is good. Down for a "
        "minute or two is an alert: see whether the process runs; the end of its log says "
        "why it died. No data: the sidecar itself is not scraped, and nothing below is "
        "current.",
        "none",
        4,
        5,
    ),
    Query(metric("source_up", SERVER, source="vllm"), "{{instance}}", instant=True),
    meanings=(("0", "Down", "red"), ("1", "Up", "green")),
)

DATA_AGE = figures(
    About(
        102,
        "Data age",
        "Time since each source was last read. A few seconds are normal; above 30 s what "
        "you see is old, and the alert VllmSidecarDataStale fires. It keeps counting when "
        "the sidecar is gone: check that it runs, then the clocks of the two machines.",
        "s",
        4,
        5,
    ),
    Query(
        "time() - max by (job, instance, source) (last_over_time("
        + metric("source_last_success_timestamp_seconds", SERVER)
        + "[6h]))",
        "{{instance}} {{source}}",
        instant=True,
    ),
    thresholds=levels("green", (OLD_SECONDS, "orange")),
    decimals=0,
)

PREEMPTED = figures(
    About(
        103,
        "Preemptions per finished request",
        "How often a request is thrown out of a full KV cache for each one that finishes, "
        "over 5 minutes. Below 0.1 is fine. From 0.1 on work is done twice: if tokens a "
        "second fall, give the KV cache more memory; if they hold, leave it alone. Not "
        "available while fewer than 5 requests have finished.",
        "none",
        5,
        5,
    ),
    Query(
        or_why(metric("preemptions_per_finished_request"), "preemptions_per_finished_request"),
        ENGINE_NAME + " {{reason}}",
        instant=True,
    ),
    thresholds=levels("green", (PREEMPTED_PER_FINISHED, "orange")),
    decimals=2,
)

KV_USAGE = figures(
    About(
        104,
        "KV usage, now and peak of the last hour",
        "Share of the KV cache that requests use. Blue, below 50 %, is a fact and no "
        "fault; green is in use; yellow, from 95 %, is full, which is good use as long as "
        "no requests wait for it and few are preempted. If they are, more KV cache helps.",
        "percentunit",
        6,
        5,
    ),
    Query(
        or_why(metric("kv_cache_usage_ratio"), "kv_cache_usage_ratio"),
        ENGINE_NAME + " now {{reason}}",
        instant=True,
    ),
    Query(
        metric("kv_cache_usage_peak_ratio", window="1h"),
        ENGINE_NAME + " peak",
        instant=True,
    ),
    thresholds=levels("blue", (KV_UNDERUSED, "green"), (KV_SATURATED, "yellow")),
    decimals=0,
)

HEADROOM = figures(
    About(
        105,
        "GPU headroom",
        "Free memory as a share of the card. vLLM fills the share it was given when it "
        "starts, so a small figure is normal and a large one is no goal. It is bad only "
        "when it shrinks while vLLM serves: see growth and owners under GPU memory. No "
        "data beside a vLLM that is up: no GPU is watched, or NVML does not answer.",
        "percentunit",
        5,
        5,
    ),
    Query(
        or_why(metric("gpu_headroom_ratio", GPU), "gpu_memory_used_bytes", GPU),
        "{{instance}} GPU {{gpu}} {{reason}}",
        instant=True,
    ),
    decimals=1,
)

RATE = lines(
    About(
        201,
        "1. Preemption rate",
        "Running requests thrown out of the KV cache a second, over 10 s and 60 s; each is "
        "computed again. None, or a few on a busy server, is fine. It is bad when it stays "
        "above the line with the cache at 90 % or more and tokens a second fall: then more "
        "KV cache helps, see the row Preemptions. While tokens a second hold, it is "
        "harmless. After a pause vLLM counts all that ran as preempted, at any KV usage.",
        "reqps",
        8,
        10,
    ),
    Query(metric("preemptions_per_second", window="10s"), ENGINE_NAME + ": 10 s"),
    Query(metric("preemptions_per_second", window="60s"), ENGINE_NAME + ": 60 s"),
    missing("preemptions_per_second", "preemptions_total"),
    thresholds=levels("green", (PREEMPTED_PER_SECOND, "orange")),
)

USAGE = lines(
    About(
        202,
        "2. KV usage against 50 %",
        "KV usage now, its peak over 60 s, and the share of serving time of the last 5 "
        "minutes spent below 50 %. Low use is a fact, no fault: nobody goes short. If it "
        "stays low under your full load, the memory could serve more or longer requests, "
        "or another process. Above 90 % preemptions begin to count, above 95 % the cache "
        "is full; act when requests also wait or tokens a second fall.",
        "percentunit",
        8,
        10,
    ),
    Query(metric("kv_cache_usage_ratio"), ENGINE_NAME + ": now"),
    Query(metric("kv_cache_usage_peak_ratio", window="60s"), ENGINE_NAME + ": peak 60 s"),
    Query(share_underused("5m"), ENGINE_NAME + ": share of time below 50 %"),
    missing("kv_cache_usage_ratio"),
    thresholds=levels(
        "green", (KV_UNDERUSED, "blue"), (KV_FULL, "orange"), (KV_SATURATED, "orange")
    ),
)

DROP = lines(
    About(
        203,
        "3. What came back when concurrency fell",
        "After running requests fell by 75 % or more within 15 minutes: how far they fell, "
        "and how far KV usage and GPU memory did. Good: KV usage falls about as far as "
        "concurrency. GPU memory stays near 0 on a healthy server, since vLLM allocates "
        "its cache once; that is no leak. If KV usage does not fall with concurrency, look "
        "for few very long requests. A negative figure in the legend means growth.",
        "percentunit",
        8,
        10,
    ),
    Query(metric("concurrency_drop_ratio"), ENGINE_NAME + ": concurrency"),
    Query(metric("kv_cache_drop_ratio"), ENGINE_NAME + ": KV usage"),
    Query(metric("gpu_memory_drop_ratio"), ENGINE_NAME + ": GPU memory"),
    missing("concurrency_drop_ratio", "kv_cache_drop_ratio", "gpu_memory_drop_ratio"),
)

COUNTED = figures(
    About(
        211,
        "Preemptions in this time range",
        "Preemptions as vLLM counts them. Zero is good; a number alone is not bad: compare "
        "it with finished requests and with tokens a second in the row Preemptions. vLLM "
        "counts late and never those whose client left. Not available: this server does "
        "not show the counter.",
        "short",
        8,
        4,
    ),
    Query(
        or_why(f"increase({metric('preemptions_total')}[$__range])", "preemptions_total"),
        ENGINE_NAME + " {{reason}}",
        instant=True,
    ),
    decimals=0,
)

UNDERUSED = figures(
    About(
        212,
        "Serving time below 50 % KV usage",
        "Of the time in this range in which requests ran, the share with less than half of "
        "the KV cache in use. A fact, no fault, and no alert hangs on it. If it is near "
        "100 % over a day of your real load, the cache is larger than that load needs: "
        "serve more at once, allow longer contexts, or leave it. Not available: nothing "
        "ran.",
        "percentunit",
        8,
        4,
    ),
    Query(
        f"({share_underused('$__range')}) or {metric('requests_running')} * NaN",
        ENGINE_NAME,
        instant=True,
    ),
    decimals=0,
)

HELD = figures(
    About(
        213,
        "GPU memory after the drop",
        "Whether GPU memory stayed (fell by less than 10 %) when concurrency fell by 75 % "
        "or more. Held is what a healthy vLLM does: it allocates its KV cache once. Do "
        "nothing about it; whether blocks came back is told by KV usage in the panel "
        "above. Not available: concurrency has not fallen that far in 15 minutes.",
        "none",
        8,
        4,
    ),
    Query(
        f"{metric('gpu_memory_held')} or "
        + why_not(["concurrency_drop_ratio", "gpu_memory_drop_ratio"]),
        ENGINE_NAME + " {{reason}}",
        instant=True,
    ),
    meanings=(("0", "Came down", "blue"), ("1", "Held, as it should be", "blue")),
)

INDICATORS = Row(200, "The three indicators", (RATE, USAGE, DROP, COUNTED, UNDERUSED, HELD))
FALL = Row(250, "When concurrency falls", (sized(DROP, 16, 9), sized(HELD, 8, 9)))
