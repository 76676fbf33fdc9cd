"""What the checks report: a closed set of codes, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Code(StrEnum):
    """Every kind of finding. The values are a contract: they stand in the JSON."""

    INVALID_EXPRESSION = "invalid_expression"
    NOT_CHECKED = "not_checked"
    UNKNOWN_METRIC = "unknown_metric"
    WRONG_PREFIX = "wrong_prefix"
    MISSING_TOTAL = "missing_total"
    REMOVED_METRIC = "removed_metric"
    FUTURE_METRIC = "future_metric"
    HIDDEN_METRIC = "hidden_metric"
    DEPRECATED_METRIC = "deprecated_metric"
    SHADOWED_METRIC = "shadowed_metric"
    CREATED_TIMESTAMP = "created_timestamp"
    HISTOGRAM_AS_COUNTER = "histogram_as_counter"
    HISTOGRAM_WITHOUT_SUFFIX = "histogram_without_suffix"
    PERCENT_AGAINST_RATIO = "percent_against_ratio"
    MILLISECONDS_AGAINST_SECONDS = "milliseconds_against_seconds"
    SUMMED_RATIO = "summed_ratio"
    GAUGE_UNDER_RATE = "gauge_under_rate"
    COUNTER_WITHOUT_RATE = "counter_without_rate"
    SUM_AS_THROUGHPUT = "sum_as_throughput"
    ALIAS_COUNTED_TWICE = "alias_counted_twice"
    LIFETIME_QUANTILE = "lifetime_quantile"
    BROKEN_HISTOGRAM = "broken_histogram"
    AVERAGED_QUANTILE = "averaged_quantile"
    RATIO_OF_ITSELF = "ratio_of_itself"
    LABELS_DO_NOT_MATCH = "labels_do_not_match"
    DIVISION_WHEN_IDLE = "division_when_idle"
    GPU_MEMORY_ALARM = "gpu_memory_alarm"
    HOST_MEMORY_ALARM = "host_memory_alarm"
    IDLE_ALARM = "idle_alarm"
    PREEMPTION_ALARM = "preemption_alarm"
    QUEUE_ALARM = "queue_alarm"
    ABORT_AS_FAILURE = "abort_as_failure"
    NO_THRESHOLD = "no_threshold"
    SHORT_WINDOW = "short_window"
    NO_HYSTERESIS = "no_hysteresis"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one expression, and the expression as it should be.

    `corrected` is the whole expression with every fault of it mended that can be mended, the same
    for all findings of one expression. It is None where there is no such expression; `reason`
    then says why.
    """

    file: str
    line: int
    rule: str
    code: Code
    severity: Severity
    message: str
    expression: str
    corrected: str | None
    reason: str | None
