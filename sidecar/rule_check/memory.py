"""Alarms on memory that says nothing about vLLM: the card's, which it fills on purpose, and the
host's with the page cache in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.metric_table import table
from sidecar.rule_check.promql import parse
from sidecar.rule_check.shapes import CHANGES, RATES, comparisons
from sidecar.rule_check.tree import Binary, Call, Matcher, Node, Selector, bare, walk

_GPU_MEMORY = re.compile(
    r"dcgm_fi_dev_fb_(?:used|free)\w*|nvidia_(?:smi|gpu)_\w*mem\w*|"
    r"(?:vllm:|\w*_)?(?:gpu|vram|nvml|amd_gpu|rocm|cuda)_?\w*(?:mem(?:ory)?|vram|fb)_?\w*",
    re.IGNORECASE,
)
_NO_AMOUNT = re.compile(r"copy|clock|temp|bandwidth|_bw_|error|total$|total_bytes$", re.IGNORECASE)
_OWN = ("vllm_sidecar_",)
_FULL = 0.95


def check_memory(context: Context) -> Iterator[Fault]:
    if not context.is_alert:
        return
    for found in comparisons(context):
        if any(_moves(node) for node in walk(found.value)):
            continue
        for node in walk(found.value):
            if not isinstance(node, Selector) or not node.name or node.name.startswith(_OWN):
                continue
            if _GPU_MEMORY.fullmatch(node.name) and not _NO_AMOUNT.search(node.name):
                yield _gpu(context, found.node, node.name)
                break
            if node.name == "container_memory_usage_bytes":
                yield from _host(context, node)


def _moves(node: Node) -> bool:
    """Whether growth is looked at, not the level."""
    if isinstance(node, Call):
        return node.function in RATES | CHANGES or node.function == "changes"
    return isinstance(node, Selector) and "offset" in node.tail


def _gpu(context: Context, node: Binary, name: str) -> Fault:
    message = (
        f"{name} is no alarm for vLLM, which takes its whole KV cache from the card when it "
        "starts and keeps it, idle or busy. What can run out is the KV cache inside: full, with "
        "requests that wait for it."
    )
    severity: Severity = "error" if context.is_about_vllm else "warning"
    mended = _kv_cache_is_full(context) if bare(context.tree) is node else None
    reason = "alert on vllm:kv_cache_usage_perc and vllm:num_requests_waiting instead"
    return Fault(Code.GPU_MEMORY_ALARM, severity, message, mended, reason)


def _kv_cache_is_full(context: Context) -> Node | None:
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        if table()[name].exists(context.release):
            return parse(
                f"min_over_time(vllm:{name}[5m]) > {_FULL}"
                " and avg_over_time(vllm:num_requests_waiting[5m]) >= 1"
            )
    return None


def _host(context: Context, node: Selector) -> Iterator[Fault]:
    named = any("vllm" in one.value.lower() for one in node.matchers)
    if not named and not context.is_about_vllm:
        return
    message = (
        "container_memory_usage_bytes has the page cache in it, which loading the weights fills, "
        "and nothing of the GPU's memory."
    )
    matchers = tuple(_without_suffix(one) for one in node.matchers)
    if any(one.label != other.label for one, other in zip(node.matchers, matchers, strict=True)):
        message += " Its label is `container` since Kubernetes 1.16."
    used = replace(node, name="container_memory_rss", matchers=matchers)
    yield Fault(Code.HOST_MEMORY_ALARM, "error", message, context.mend(node, used))


def _without_suffix(matcher: Matcher) -> Matcher:
    if matcher.label in ("container_name", "pod_name"):
        return replace(matcher, label=matcher.label.removesuffix("_name"))
    return matcher
