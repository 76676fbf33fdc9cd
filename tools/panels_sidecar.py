"""The row "Sidecar": whether what the other rows show can be relied on."""

from __future__ import annotations

from alert_lines import OLD_SECONDS
from dashboard_parts import (
    SERVER,
    About,
    Query,
    Row,
    levels,
    lines,
    metric,
    rows_of,
    states,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SIDECAR = Row(
    600,
    "Sidecar",
    (
        states(
            About(
                601,
                "Sources",
                "Whether vLLM's page and NVML answered at each poll. Up is good. Down: the reason "
                "is in the panel of failed reads. A gap: the sidecar itself was not scraped.",
                "none",
                12,
            ),
            Query(metric("source_up", SERVER), "{{instance}} {{source}}"),
            meanings=(("0", "Down", "red"), ("1", "Up", "green")),
        ),
        lines(
            About(
                602,
                "Failed reads",
                "Reads of a source that failed, in all and by reason. Zero is good; a few while "
                "vLLM starts or stops are normal. Refused: no server at that address; timeout: "
                "vLLM is too busy to answer; closed: it went away; NVML's reasons name the driver.",
                "short",
                12,
            ),
            Query(
                "sum by (instance, source) (increase("
                + metric("source_failures_total", SERVER)
                + "[$__rate_interval]))",
                "{{instance}} {{source}}: all",
            ),
            Query(
                f"increase({metric('source_failures_total', SERVER)}[$__rate_interval]) > 0",
                "{{instance}} {{source}}: {{reason}}",
            ),
        ),
        lines(
            About(
                603,
                "Reading time",
                "How long the last successful read of each source took. Milliseconds are good. A "
                "read of vLLM that comes near its time-out of 5 s means an overloaded server; the "
                "sidecar then asks less often, so as not to add to it.",
                "s",
                8,
            ),
            Query(metric("source_read_seconds", SERVER), "{{instance}} {{source}}"),
        ),
        lines(
            About(
                604,
                "Time between polls, and data age",
                "The period that the sidecar achieves, and the age of the data of each source. "
                "About the setting, 1 s by default, is good. Longer periods mean slow sources. Age "
                "above the line is stale data and an alert: compare clocks, then restart the "
                "sidecar.",
                "s",
                8,
            ),
            Query(metric("poll_period_seconds", SERVER), "{{instance}}: period"),
            Query(
                f"time() - {metric('source_last_success_timestamp_seconds', SERVER)}",
                "{{instance}} {{source}}: age",
            ),
            thresholds=levels("green", (OLD_SECONDS, "orange")),
        ),
        lines(
            About(
                605,
                "Polls skipped, samples unusable",
                "Polls skipped because the one before took too long, and samples of vLLM that made "
                "no sense, by series. Zero is good. Skipped polls: see reading time. Unusable "
                "samples: another exporter or proxy may answer in vLLM's place.",
                "short",
                8,
            ),
            Query(
                f"increase({metric('poll_overruns_total', SERVER)}[$__rate_interval])",
                "{{instance}}: polls skipped",
            ),
            Query(
                f"increase({metric('series_invalid_total', SERVER)}[$__rate_interval])",
                "{{instance}}: {{series}}",
            ),
        ),
        rows_of(
            About(
                606,
                "Series that vLLM should show and does not",
                "Expected for this release of vLLM and not on its page. None missing is good. "
                "Otherwise vLLM was started without its statistics, or the address leads to a "
                "proxy or another exporter: open the page and look. An empty table: vLLM is down.",
                "none",
                8,
            ),
            Query(
                f"{metric('series_missing', SERVER)} or on (job, instance) label_replace("
                f'{metric("target_info", SERVER)}, "series", "none missing", "", "")',
                instant=True,
                format=PromQueryFormat.TABLE,
            ),
            columns=("instance", "series"),
        ),
        rows_of(
            About(
                607,
                "Not available, and why",
                "Indicators that the sidecar could not compute at its last poll, with the reason. "
                "Some are always here and fine, such as a drop of concurrency that did not happen. "
                "If one that you need stays here, its reason says what is missing; "
                "docs/metrics.md explains each indicator. An empty table: no data at all.",
                "none",
                16,
            ),
            Query(
                metric("unavailable_info", SERVER),
                instant=True,
                format=PromQueryFormat.TABLE,
            ),
            columns=("instance", "indicator", "reason", "model_name", "engine", "gpu"),
        ),
        rows_of(
            About(
                608,
                "What is watched",
                "The release of vLLM, the prefix of its metrics, and the series that KV usage is "
                "read from. Good when it is what you deployed. An empty table means that vLLM's "
                "page cannot be read; an empty release that the server does not tell it.",
                "none",
                24,
                4,
            ),
            Query(metric("target_info", SERVER), instant=True, format=PromQueryFormat.TABLE),
            columns=("instance", "vllm_version", "name_prefix", "kv_usage_name"),
        ),
    ),
)
