"""The row "KV cache": how full the pool is, what a request takes of it, what is left unused."""

from __future__ import annotations

from alert_lines import FRAGMENTED
from dashboard_parts import (
    ENGINE_NAME,
    About,
    Query,
    Row,
    heat,
    levels,
    lines,
    metric,
    missing,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

KV_CACHE = Row(
    300,
    "KV cache",
    (
        heat(
            About(
                301,
                "KV usage of every poll",
                "How often each KV usage was seen while requests ran; a count is one poll of one "
                "engine, so peaks between two scrapes are in it. Dark near the top: the cache is "
                "often full, look at waiting and preemptions. Dark below 50 %: more is allocated "
                "than this load uses, which is a fact and no fault. Empty: nothing ran.",
                "short",
                12,
            ),
            Query(
                "sum by (le) (increase("
                + metric("kv_cache_usage_sample_ratio_bucket")
                + "[$__rate_interval]))",
                "{{le}}",
                format=PromQueryFormat.HEATMAP,
            ),
        ),
        lines(
            About(
                302,
                "KV cache blocks, used and free",
                "The blocks of the KV cache. Their sum is fixed at the start of vLLM; it changes "
                "only with a restart. Free blocks are normal, room for more requests that costs "
                "nothing. No free block left is where preemption begins: if it stays so and tokens "
                "a second fall, more KV cache helps.",
                "short",
                12,
            ),
            Query(metric("kv_cache_blocks", state="used"), ENGINE_NAME + ": used"),
            Query(metric("kv_cache_blocks", state="free"), ENGINE_NAME + ": free"),
            missing("kv_cache_capacity_blocks", "kv_cache_usage_ratio"),
            stacked=True,
        ),
        lines(
            About(
                303,
                "Tokens held per running request",
                "Token slots that a running request holds on average: prompt and answer so far. "
                "There is no good value; divide the capacity by it to see how many such requests "
                "fit. A steady climb at low concurrency is a request that does not stop: limit "
                "max_tokens. Empty while nothing runs.",
                "short",
                8,
            ),
            Query(metric("kv_cache_tokens_per_request"), ENGINE_NAME),
            missing("kv_cache_tokens_per_request"),
            axis="tokens",
        ),
        lines(
            About(
                304,
                "Internal fragmentation, with its bound",
                "Empty share of the blocks in use: the unfilled rest of each request's last block. "
                "Measured where vLLM's counters balance, else estimated; the bound is the most it "
                "can be. A few percent is good. From 15 % on, with short requests, a smaller "
                "--block-size gains room where the backend allows it; for long ones do nothing. "
                "A paged cache has no external fragmentation: any free block serves any request.",
                "percentunit",
                8,
            ),
            Query(metric("kv_cache_internal_fragmentation_ratio"), ENGINE_NAME + ": {{method}}"),
            Query(metric("kv_cache_internal_fragmentation_max_ratio"), ENGINE_NAME + ": bound"),
            missing("kv_cache_internal_fragmentation_max_ratio"),
            thresholds=levels("green", (FRAGMENTED, "orange")),
        ),
        lines(
            About(
                305,
                "Tokens in the KV cache",
                "Tokens of unfinished requests, from the balance of vLLM's own counters, against "
                "all that the cache can hold. Close to the capacity means full; far below is a "
                "fact, no fault. Not available where the balance cannot be trusted: after "
                "preemptions, lost clients or prefix-cache hits, until nothing runs for a moment.",
                "short",
                8,
            ),
            Query(metric("kv_cache_resident_tokens"), ENGINE_NAME + ": resident"),
            Query(metric("kv_cache_capacity_tokens"), ENGINE_NAME + ": capacity"),
            missing("kv_cache_resident_tokens", "kv_cache_capacity_tokens"),
            axis="tokens",
        ),
        lines(
            About(
                306,
                "Time until the KV cache is full",
                "At the slope of the last minute. Long, or not available because usage does not "
                "grow, is good. Under a minute that stays: preemptions are next; send fewer "
                "requests at once or plan for more KV cache. It jumps with every burst, so read "
                "its trend and not one value.",
                "s",
                8,
            ),
            Query(metric("kv_cache_exhaustion_seconds"), ENGINE_NAME),
            missing("kv_cache_exhaustion_seconds"),
        ),
        lines(
            About(
                307,
                "KV cache size, and what was never used",
                "Bytes of the KV cache, and those that no request used at any poll of the last "
                "hour. Unused bytes are fine: a reserve. If they stay large under your full "
                "load and something else wants the memory, the cache can be smaller; else leave "
                "it. Not available: this release of vLLM does not state the size.",
                "bytes",
                8,
            ),
            Query(metric("kv_cache_bytes"), ENGINE_NAME + ": size"),
            Query(metric("kv_cache_reserved_unused_bytes"), ENGINE_NAME + ": unused for an hour"),
            missing("kv_cache_bytes"),
        ),
        lines(
            About(
                308,
                "Held while nothing runs",
                "KV usage with no request running or waiting for 5 s. No curve is good: all blocks "
                "came back. A level that stays for minutes, and steps up with every busy spell, is "
                "a leak of blocks: restart that engine and update vLLM. The total is there for "
                "comparison, so that an empty panel means no data.",
                "percentunit",
                8,
            ),
            Query(metric("kv_cache_held_while_idle_ratio"), ENGINE_NAME + ": held while idle"),
            Query(metric("kv_cache_usage_ratio"), ENGINE_NAME + ": all usage"),
            missing("kv_cache_usage_ratio"),
        ),
    ),
)
