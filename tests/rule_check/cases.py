"""For each kind of finding: what is wrong, what it should be, and what looks alike but is right."""

from dataclasses import dataclass

from sidecar.rule_check.finding import Code
from sidecar.rule_check.source import Role


@dataclass(frozen=True)
class Case:
    """`good` must not have the finding; `corrected` is None where there is no correction."""

    code: Code
    bad: str
    corrected: str | None
    good: str
    role: Role = "alert"
    version: str = "0.33.0"
    good_version: str | None = None


_PREEMPTIONS_PER_REQUEST = (
    "rate(vllm:num_preemptions_total[5m])"
    " / (sum without (finished_reason) (rate(vllm:request_success_total[5m])) > 0) > 0.1"
)
_KV_CACHE_FULL = (
    "min_over_time(vllm:kv_cache_usage_perc[5m]) > 0.95"
    " and avg_over_time(vllm:num_requests_waiting[5m]) >= 1"
)
_P99 = "histogram_quantile(0.99, {}) > 5"
_TTFT = "vllm:time_to_first_token_seconds_bucket"

CASES: tuple[Case, ...] = (
    Case(
        Code.INVALID_EXPRESSION,
        "sum(rate(vllm:prompt_tokens_total[5m]) > 1",
        None,
        "sum(rate(vllm:prompt_tokens_total[5m])) > 1",
    ),
    Case(
        Code.NOT_CHECKED,
        "topk($n, vllm:num_requests_running{$filter})",
        None,
        'topk($n, vllm:num_requests_running{model_name="$model"})',
        "panel",
    ),
    Case(
        Code.UNKNOWN_METRIC,
        "vllm:gpu_cache_usage_percent > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
    ),
    Case(
        Code.UNKNOWN_METRIC,
        "vllm:request_failure_total > 5",
        None,
        "vllm:request_errors:rate5m > 5",
    ),
    Case(
        Code.UNKNOWN_METRIC,
        'sum(rate({__name__=~"vllm:tokens_per_second.*"}[5m])) > 1',
        None,
        'sum(rate({__name__=~"vllm:(prompt|generation)_tokens_total"}[5m])) > 1',
    ),
    Case(
        Code.WRONG_PREFIX,
        "vllm_kv_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
        "ray_vllm_kv_cache_usage_perc > 0.9",
    ),
    Case(
        Code.WRONG_PREFIX,
        "max(vllm_num_requests_running) > 5",
        "max(vllm:num_requests_running) > 5",
        "max(vllm_sidecar_requests_running) > 5",
    ),
    Case(
        Code.MISSING_TOTAL,
        "rate(vllm:generation_tokens[5m]) > 10",
        "rate(vllm:generation_tokens_total[5m]) > 10",
        "rate(ray_vllm_generation_tokens[5m]) > 10",
    ),
    Case(
        Code.REMOVED_METRIC,
        "vllm:gpu_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9 or vllm:gpu_cache_usage_perc > 0.9",
    ),
    Case(
        Code.REMOVED_METRIC,
        'vllm:gpu_prefix_cache_hit_rate{job="vllm"} < 0.2',
        'rate(vllm:prefix_cache_hits_total{job="vllm"}[5m])'
        ' / (rate(vllm:prefix_cache_queries_total{job="vllm"}[5m]) > 0) < 0.2',
        'vllm:gpu_prefix_cache_hit_rate{job="vllm"} < 0.2',
        good_version="0.6.3",
    ),
    Case(
        Code.REMOVED_METRIC,
        "vllm:num_requests_swapped > 5",
        None,
        "vllm:num_requests_swapped > 5",
        good_version="0.8.5",
    ),
    Case(
        Code.FUTURE_METRIC,
        "vllm:kv_cache_usage_perc > 0.9",
        "vllm:gpu_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
        version="0.8.5",
        good_version="0.9.2",
    ),
    Case(
        Code.HIDDEN_METRIC,
        "rate(vllm:time_per_output_token_seconds_count[5m]) > 1",
        "rate(vllm:inter_token_latency_seconds_count[5m]) > 1",
        "rate(vllm:inter_token_latency_seconds_count[5m]) > 1",
        version="0.12.0",
    ),
    Case(
        Code.DEPRECATED_METRIC,
        "vllm:gpu_cache_usage_perc > 0.9",
        "vllm:kv_cache_usage_perc > 0.9",
        "vllm:gpu_cache_usage_perc > 0.9",
        version="0.10.2",
        good_version="0.9.1",
    ),
    Case(
        Code.CREATED_TIMESTAMP,
        "rate(vllm:generation_tokens_created[5m]) > 10",
        "rate(vllm:generation_tokens_total[5m]) > 10",
        "time() - vllm:generation_tokens_created < 300",
    ),
    Case(
        Code.CREATED_TIMESTAMP,
        'sum({__name__=~"vllm:num_preemptions.*"}) > 10',
        None,
        'sum({__name__=~"vllm:num_preemptions_total"}) > 10',
    ),
    Case(
        Code.HISTOGRAM_AS_COUNTER,
        "rate(vllm:iteration_tokens_total[5m]) > 10",
        "rate(vllm:iteration_tokens_total_sum[5m]) > 10",
        "rate(vllm:iteration_tokens_total_count[5m]) > 10",
    ),
    Case(
        Code.HISTOGRAM_WITHOUT_SUFFIX,
        "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds[5m])) > 5",
        "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[5m])) > 5",
        "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[5m])) > 5",
    ),
    Case(
        Code.PERCENT_AGAINST_RATIO,
        "vllm:kv_cache_usage_perc > 80",
        "vllm:kv_cache_usage_perc > 0.8",
        "vllm:kv_cache_usage_perc * 100 > 80",
    ),
    Case(
        Code.PERCENT_AGAINST_RATIO,
        "90 < avg by (model_name) (avg_over_time(vllm:kv_cache_usage_perc[5m]))",
        "0.9 < avg by (model_name) (avg_over_time(vllm:kv_cache_usage_perc[5m]))",
        "90 < avg by (model_name) (vllm:num_requests_running)",
    ),
    Case(
        Code.PERCENT_AGAINST_RATIO,
        "max(vllm:kv_cache_usage_perc) * 100 > 0.9",
        "max(vllm:kv_cache_usage_perc) * 100 > 90",
        "max(vllm:kv_cache_usage_perc) > 0.9",
    ),
    Case(
        Code.MILLISECONDS_AGAINST_SECONDS,
        _P99.format(f"rate({_TTFT}[5m])").replace("> 5", "> 2000"),
        _P99.format(f"rate({_TTFT}[5m])").replace("> 5", "> 2"),
        _P99.format(f"rate({_TTFT}[5m])").replace("> 5", "* 1000 > 2000"),
    ),
    Case(
        Code.SUMMED_RATIO,
        "sum by (model_name) (vllm:kv_cache_usage_perc) > 0.9",
        "max by (model_name) (vllm:kv_cache_usage_perc) > 0.9",
        "sum(vllm:kv_cache_usage_perc) / count(vllm:kv_cache_usage_perc) > 0.9",
    ),
    Case(
        Code.SUMMED_RATIO,
        "sum(vllm:kv_cache_usage_perc) > 3",
        None,
        "sum(vllm:kv_cache_usage_perc > bool 0.9) > 3",
    ),
    Case(
        Code.GAUGE_UNDER_RATE,
        "increase(vllm:kv_cache_usage_perc[10m]) > 0.5",
        "delta(vllm:kv_cache_usage_perc[10m]) > 0.5",
        "deriv(vllm:kv_cache_usage_perc[10m]) > 0.5",
    ),
    Case(
        Code.COUNTER_WITHOUT_RATE,
        "vllm:corrupted_requests_total > 0",
        "increase(vllm:corrupted_requests_total[5m]) > 0",
        "vllm:corrupted_requests_total - vllm:corrupted_requests_total offset 5m > 0",
    ),
    Case(
        Code.COUNTER_WITHOUT_RATE,
        "sum(vllm:prompt_tokens_total)",
        "sum(rate(vllm:prompt_tokens_total[$__rate_interval]))",
        "count(vllm:prompt_tokens_total)",
        "panel",
    ),
    Case(
        Code.SUM_AS_THROUGHPUT,
        "sum(rate(vllm:request_prompt_tokens_sum[$__rate_interval]))",
        "sum(rate(vllm:prompt_tokens_total[$__rate_interval]))",
        "rate(vllm:request_prompt_tokens_sum[5m]) / rate(vllm:request_prompt_tokens_count[5m])",
        "panel",
    ),
    Case(
        Code.ALIAS_COUNTED_TWICE,
        "sum(rate(vllm:time_per_output_token_seconds_sum[5m]))"
        " + sum(rate(vllm:inter_token_latency_seconds_sum[5m])) > 1",
        "sum(rate(vllm:inter_token_latency_seconds_sum[5m])) > 1",
        "rate(vllm:prompt_tokens_total[5m]) + rate(vllm:generation_tokens_total[5m]) > 1",
        version="0.10.2",
    ),
    Case(
        Code.ALIAS_COUNTED_TWICE,
        'sum({__name__=~"vllm:(gpu|kv)_cache_usage_perc"}) > 0.9',
        None,
        'max({__name__=~"vllm:(gpu|kv)_cache_usage_perc"}) > 0.9',
    ),
    Case(
        Code.LIFETIME_QUANTILE,
        _P99.format(f"sum by (le) ({_TTFT})"),
        _P99.format(f"sum by (le) (rate({_TTFT}[5m]))"),
        _P99.format("sum by (le) (model_name:vllm_ttft_seconds_bucket:rate5m)"),
    ),
    Case(
        Code.BROKEN_HISTOGRAM,
        _P99.format(f"sum(rate({_TTFT}[5m]))"),
        _P99.format(f"sum by (le) (rate({_TTFT}[5m]))"),
        _P99.format(f"sum by (le, model_name) (rate({_TTFT}[5m]))"),
    ),
    Case(
        Code.BROKEN_HISTOGRAM,
        _P99.format(f"max without (replica) (rate({_TTFT}[5m]))"),
        _P99.format(f"sum without (replica) (rate({_TTFT}[5m]))"),
        _P99.format(f"sum without (replica) (rate({_TTFT}[5m]))"),
    ),
    Case(
        Code.AVERAGED_QUANTILE,
        "avg by (model_name) (histogram_quantile(0.9, rate(" + _TTFT + "[5m]))) > 5",
        "histogram_quantile(0.9, sum by (le, model_name) (rate(" + _TTFT + "[5m]))) > 5",
        "max by (model_name) (histogram_quantile(0.9, rate(" + _TTFT + "[5m]))) > 5",
    ),
    Case(
        Code.RATIO_OF_ITSELF,
        'rate(vllm:request_success_total{finished_reason="length"}[5m])'
        " / (rate(vllm:request_success_total[5m]) > 0) > 0.1",
        'sum without (finished_reason) (rate(vllm:request_success_total{finished_reason="length"}'
        "[5m])) / (sum without (finished_reason) (rate(vllm:request_success_total[5m])) > 0) > 0.1",
        'sum(rate(vllm:request_success_total{finished_reason="length"}[5m]))'
        " / (sum(rate(vllm:request_success_total[5m])) > 0) > 0.1",
    ),
    Case(
        Code.RATIO_OF_ITSELF,
        "sum by (finished_reason) (rate(vllm:request_success_total[5m]))"
        " / sum by (finished_reason) (rate(vllm:request_success_total[5m]))",
        "sum by (finished_reason) (rate(vllm:request_success_total[5m]))"
        " / ignoring (finished_reason) group_left () sum(rate(vllm:request_success_total[5m]))",
        "sum by (finished_reason) (rate(vllm:request_success_total[5m]))"
        " / ignoring (finished_reason) group_left () sum(rate(vllm:request_success_total[5m]))",
        "panel",
    ),
    Case(
        Code.LABELS_DO_NOT_MATCH,
        "rate(vllm:num_preemptions_total[5m]) / (rate(vllm:request_success_total[5m]) > 0) > 0.1",
        "rate(vllm:num_preemptions_total[5m])"
        " / (sum without (finished_reason) (rate(vllm:request_success_total[5m])) > 0) > 0.1",
        "rate(vllm:num_preemptions_total[5m]) / (rate(vllm:prompt_tokens_total[5m]) > 0) > 0.1",
    ),
    Case(
        Code.LABELS_DO_NOT_MATCH,
        "vllm:num_requests_running * vllm:cache_config_info > 5",
        "vllm:num_requests_running * on (engine, instance, job) group_left ()"
        " vllm:cache_config_info > 5",
        "vllm:num_requests_running * on (instance, engine) group_left ()"
        " vllm:cache_config_info > 5",
    ),
    Case(
        Code.LABELS_DO_NOT_MATCH,
        "sum by (model_name) (vllm:num_requests_waiting) / sum(vllm:num_requests_running) > 2",
        "sum by (model_name) (vllm:num_requests_waiting)"
        " / on () group_left () sum(vllm:num_requests_running) > 2",
        "sum by (model_name) (vllm:num_requests_waiting)"
        " / sum by (model_name) (vllm:num_requests_running) > 2",
    ),
    Case(
        Code.LABELS_DO_NOT_MATCH,
        "sum(vllm:num_requests_waiting) > 9 and vllm:kv_cache_usage_perc > 0.9",
        "sum(vllm:num_requests_waiting) > 9 and on () vllm:kv_cache_usage_perc > 0.9",
        "vllm:num_requests_waiting > 9 and vllm:kv_cache_usage_perc > 0.9",
    ),
    Case(
        Code.DIVISION_WHEN_IDLE,
        "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])",
        "rate(vllm:prefix_cache_hits_total[5m]) / (rate(vllm:prefix_cache_queries_total[5m]) > 0)",
        "vllm:num_requests_waiting / vllm:num_requests_running",
        "record",
    ),
    Case(
        Code.GPU_MEMORY_ALARM,
        "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95",
        _KV_CACHE_FULL,
        "deriv(DCGM_FI_DEV_FB_USED[1h]) > 1048576",
    ),
    Case(
        Code.GPU_MEMORY_ALARM,
        "nvidia_smi_memory_used_bytes / nvidia_smi_memory_total_bytes > 0.9",
        _KV_CACHE_FULL,
        "nvidia_smi_temperature_gpu > 90",
    ),
    Case(
        Code.HOST_MEMORY_ALARM,
        'container_memory_usage_bytes{container="vllm"} > 30 * 1024 ^ 3',
        'container_memory_rss{container="vllm"} > 30 * 1024 ^ 3',
        'container_memory_working_set_bytes{container="vllm"} > 30 * 1024 ^ 3',
    ),
    Case(
        Code.IDLE_ALARM,
        "sum by (model_name) (rate(vllm:generation_tokens_total[5m])) == 0",
        "sum by (model_name) (rate(vllm:generation_tokens_total[5m])) == 0"
        " and sum by (model_name) (min_over_time(vllm:num_requests_running[5m])) > 0",
        "rate(vllm:generation_tokens_total[5m]) == 0 and vllm:num_requests_running > 0",
    ),
    Case(
        Code.IDLE_ALARM,
        "vllm:num_requests_running == 0",
        "vllm:num_requests_running == 0 and min_over_time(vllm:num_requests_waiting[5m]) > 0",
        "absent(vllm:num_requests_running)",
    ),
    Case(
        Code.IDLE_ALARM,
        "vllm:kv_cache_usage_perc < 0.1",
        "vllm:kv_cache_usage_perc < 0.1 and min_over_time(vllm:num_requests_running[5m]) > 0",
        "vllm:kv_cache_usage_perc > 0.99 unless vllm:num_requests_running == 0",
    ),
    Case(
        Code.PREEMPTION_ALARM,
        "increase(vllm:num_preemptions_total[5m]) > 0",
        _PREEMPTIONS_PER_REQUEST,
        _PREEMPTIONS_PER_REQUEST,
    ),
    Case(
        Code.QUEUE_ALARM,
        "sum by (model_name) (vllm:num_requests_waiting) > 0",
        "histogram_quantile(0.95, sum by (le, model_name)"
        " (rate(vllm:request_queue_time_seconds_bucket[5m]))) > 10",
        "vllm:num_requests_waiting > 0 and vllm:kv_cache_usage_perc > 0.95",
    ),
    Case(
        Code.ABORT_AS_FAILURE,
        'sum(rate(vllm:request_success_total{finished_reason="abort"}[5m])) > 0.05',
        'sum(rate(vllm:request_success_total{finished_reason="error"}[5m]))'
        " / (sum(rate(vllm:request_success_total[5m])) > 0) > 0.05",
        'sum(rate(vllm:request_success_total{finished_reason!="abort"}[5m])) > 0.05',
    ),
    Case(
        Code.ABORT_AS_FAILURE,
        'rate(vllm:request_success_total{finished_reason="abort"}[5m]) > 0.05',
        None,
        'rate(vllm:request_success_total{finished_reason="length"}[5m]) > 0.05',
        version="0.10.2",
    ),
    Case(
        Code.NO_THRESHOLD,
        "max(vllm:kv_cache_usage_perc)",
        None,
        "vllm:num_requests_waiting unless vllm:num_requests_running",
    ),
    Case(
        Code.SHORT_WINDOW,
        "rate(vllm:prompt_tokens_total[30s]) > 5000",
        "rate(vllm:prompt_tokens_total[5m]) > 5000",
        "rate(vllm:prompt_tokens_total[1m]) > 5000",
    ),
)
