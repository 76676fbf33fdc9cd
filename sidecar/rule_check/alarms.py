"""Alerts on how a healthy server looks: idle, busy, or preempting now and then."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code
from sidecar.rule_check.promql import parse
from sidecar.rule_check.request_alarms import aborts, braces_of, preemptions, prefix_of, queue
from sidecar.rule_check.shapes import Comparison, Rate, comparisons, gauge_of, rate_of
from sidecar.rule_check.text import is_comparison, render_duration
from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Matching,
    Node,
    Range,
    Selector,
    Subquery,
    children,
    walk,
)

_WORK = ("generation_tokens", "prompt_tokens", "request_success", "iteration_tokens")
_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "num_requests_running")
_DEMAND = re.compile(
    r"vllm[:_]num_requests_\w+|vllm[:_](?:prompt_tokens|request_success|e2e_request)\w*|http_request\w*|"
    r"vllm_sidecar_(?:requests|prompt_tokens|generation_tokens|serving)\w*"
)
_WANTED = re.compile(
    r"idle|unused|under-?_?us|under-?_?util|over-?_?prov|scale|cost", re.IGNORECASE
)


def check_alarms(context: Context) -> Iterator[Fault]:
    if not context.is_alert or not context.uses:
        return
    for found in comparisons(context):
        if _is_exception(context, found.node):
            continue
        rate = rate_of(context, found.value)
        if rate is not None:
            yield from _of_rate(context, found, rate)
        selector, outer = gauge_of(found.value)
        if selector is not None:
            yield from _of_gauge(context, found, selector, outer)
    yield from aborts(context)
    yield from _no_threshold(context)


def _of_rate(context: Context, found: Comparison, rate: Rate) -> Iterator[Fault]:
    stem = context.stem(rate.selector)
    if found.operator in ("==", "<", "<=") and stem.startswith(_WORK):
        yield from _idle(context, found, rate.selector, rate.outer, rate.window)
    if found.operator in (">", ">=") and stem.startswith("num_preemptions"):
        yield from preemptions(context, found, rate)


def _of_gauge(
    context: Context, found: Comparison, selector: Selector, outer: Aggregate | None
) -> Iterator[Fault]:
    stem = context.stem(selector)
    if found.operator in ("==", "<", "<=") and stem in _USAGE:
        window = next((one.window for one in walk(found.value) if isinstance(one, Range)), 300_000)
        yield from _idle(context, found, selector, outer, window)
    if stem == "num_requests_waiting" and (found.operator, found.number) in (
        (">", 0),
        ("!=", 0),
        (">=", 1),
        (">", 1),
    ):
        yield from queue(context, found, selector, outer)


def _idle(
    context: Context, found: Comparison, selector: Selector, outer: Aggregate | None, window: int
) -> Iterator[Fault]:
    if _WANTED.search(context.source.rule) or _is_guarded(context, found.node):
        return
    message = "This also fires when nobody asks for anything: it needs a sign that there is work."
    running = context.stem(selector) == "num_requests_running"
    asked = "num_requests_waiting" if running else "num_requests_running"
    kept = [one for one in selector.matchers if one.label != "finished_reason"]
    series = f"{prefix_of(context, selector)}{asked}{braces_of(kept)}"
    demand = f"min_over_time({series}[{render_duration(window)}])"
    if outer is not None:
        grouping = f" {outer.keyword} ({', '.join(outer.labels)}) " if outer.keyword else ""
        demand = f"sum{grouping}({demand})"
    use = context.use(selector)
    extra = frozenset() if use is None or use.metric is None else use.metric.extra_labels
    matching = Matching("ignoring", tuple(sorted(extra))) if extra and outer is None else Matching()
    guarded = Binary("and", found.node, parse(f"{demand} > 0"), matching)
    yield Fault(Code.IDLE_ALARM, "error", message, context.mend(found.node, guarded))


def _no_threshold(context: Context) -> Iterator[Fault]:
    for node in walk(context.tree):
        if isinstance(node, Binary) and (is_comparison(node.operator) or node.operator == "unless"):
            return
        if isinstance(node, Call) and node.function.startswith("absent"):
            return
    message = "Nothing is compared: the alert fires as long as there is any data."
    reason = "it does not say from which value on it should fire"
    yield Fault(Code.NO_THRESHOLD, "warning", message, None, reason)


def check_hysteresis(context: Context) -> Iterator[Fault]:
    if not context.is_alert or not context.uses:
        return
    reason = "the expression may stay; the rule lacks a line"
    if not context.source.waits:
        message = "Without `for` a single bad moment, or one late scrape, is an alert."
        if not context.source.keeps_firing:
            message += " Add `for: 5m` and `keep_firing_for: 5m`."
        yield Fault(Code.NO_HYSTERESIS, "warning", message, None, reason)
    elif not context.source.keeps_firing:
        message = (
            "Without `keep_firing_for` a value that hovers at its threshold, or a gap in the "
            "data, ends the alert and begins it anew. Add `keep_firing_for: 5m`."
        )
        yield Fault(Code.NO_HYSTERESIS, "info", message, None, reason)


def _is_exception(context: Context, node: Node) -> bool:
    """Whether a comparison says when not to alert, or only filters what is divided by."""
    for parent, child in context.ancestors(node):
        excepted = isinstance(parent, Binary) and parent.operator in ("unless", "/")
        if excepted and child is children(parent)[-1]:
            return True
        if isinstance(parent, Subquery | Call):
            return True
    return False


def _is_guarded(context: Context, node: Node) -> bool:
    """Whether an `and` or `unless` next to it looks at the demand."""
    for parent, child in context.ancestors(node):
        if isinstance(parent, Binary) and parent.operator in ("and", "unless", "*"):
            other = parent.right if child is parent.left else parent.left
            for one in walk(other):
                if isinstance(one, Selector) and _DEMAND.fullmatch(one.name or ""):
                    return True
    return False
