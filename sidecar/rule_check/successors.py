"""What has taken the place of a metric that is gone."""

from __future__ import annotations

from dataclasses import replace

from sidecar.rule_check.context import Context
from sidecar.rule_check.metric_table import Metric, table
from sidecar.rule_check.metrics import Use, use_of
from sidecar.rule_check.promql import parse
from sidecar.rule_check.text import render, render_duration
from sidecar.rule_check.tree import Node, Selector, walk
from sidecar.sources.releases import Release

# Metrics whose place an expression has taken.
_REPLACED = {
    "gpu_prefix_cache_hit_rate": "rate(vllm:prefix_cache_hits_total{M}[W])"
    " / (rate(vllm:prefix_cache_queries_total{M}[W]) > 0)",
    "avg_prompt_throughput_toks_per_s": "rate(vllm:prompt_tokens_total{M}[W])",
    "avg_generation_throughput_toks_per_s": "rate(vllm:generation_tokens_total{M}[W])",
    "spec_decode_draft_acceptance_rate": "rate(vllm:spec_decode_num_accepted_tokens_total{M}[W])"
    " / (rate(vllm:spec_decode_num_draft_tokens_total{M}[W]) > 0)",
}
_WITHOUT_SUCCESSOR = {
    "num_requests_swapped": "V1 engines do not swap",
    "cpu_cache_usage_perc": "V1 engines have no swap space",
    "cpu_prefix_cache_hit_rate": "V1 engines have no swap space",
    "tokens_total": "it was never counted; add vllm:prompt_tokens_total and "
    "vllm:generation_tokens_total",
}


def successor(
    context: Context, selector: Selector, use: Use, metric: Metric
) -> tuple[Node | None, str]:
    """The tree with what has taken the metric's place, or why nothing has."""
    if metric.successor is not None and table()[metric.successor].exists(context.release):
        name = f"{use.right_prefix}{metric.successor}{use.part}"
        return renamed(context, selector, name), ""
    expression = _REPLACED.get(metric.name)
    if expression is None or not _all_exist(expression, context.release):
        return None, _WITHOUT_SUCCESSOR.get(metric.name, "nothing has taken its place")
    matchers = render(Selector(None, selector.matchers)) if selector.matchers else ""
    window = render_duration(context.window)
    text = expression.replace("{M}", matchers).replace("[W]", f"[{window}]")
    return context.mend(selector, parse(text.replace("vllm:", use.right_prefix))), ""


def _all_exist(expression: str, release: Release) -> bool:
    for node in walk(parse(expression.replace("{M}", "").replace("[W]", "[5m]"))):
        use = use_of(node.name or "") if isinstance(node, Selector) else None
        if use is not None and (use.metric is None or not use.metric.exists(release)):
            return False
    return True


def renamed(context: Context, selector: Selector, name: str) -> Node:
    return context.mend(selector, replace(selector, name=name))
