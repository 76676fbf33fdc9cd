"""Counters and gauges in each other's place, and sums of finished requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.metrics import Use
from sidecar.rule_check.shapes import CHANGES, RATES, comparison, gauge_of
from sidecar.rule_check.text import is_comparison
from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Range,
    Selector,
    walk,
)

_SHORTEST_WINDOW = 60_000
_FOR_GAUGES = {"rate": "deriv", "irate": "idelta", "increase": "delta"}
_FOR_COUNTERS = {"deriv": "rate", "idelta": "irate", "delta": "increase"}
_HARMLESS = frozenset(
    {*RATES, "resets", "changes", "absent", "absent_over_time", "present_over_time", "timestamp"}
    | {"count_over_time"}
)
_COUNTING = frozenset({"count", "group", "count_values"})
_THROUGHPUT = {
    "request_prompt_tokens_sum": "prompt_tokens_total",
    "request_generation_tokens_sum": "generation_tokens_total",
}


def check_counters(context: Context) -> Iterator[Fault]:
    for selector, use in context.uses:
        if use.is_counter:
            yield from _raw_counter(context, selector)
            yield from _throughput(context, selector, use)
    for node in walk(context.tree):
        if isinstance(node, Call) and node.function in RATES:
            yield from _gauge_under_rate(context, node)
            yield from _short_window(context, node)


def _raw_counter(context: Context, selector: Selector) -> Iterator[Fault]:
    direct = True
    for node, child in context.ancestors(selector):
        if isinstance(node, Call):
            if node.function in _HARMLESS or node.function == "histogram_quantile":
                return
            if node.function in CHANGES:
                yield _wrong_function(context, node, selector)
                return
        if isinstance(node, Aggregate) and node.operation in _COUNTING:
            return
        if isinstance(node, Binary):
            other = node.right if child is node.left else node.left
            names = [one.name for one in walk(other) if isinstance(one, Selector)]
            if node.operator == "-" and selector.name in names:
                return
            if not is_comparison(node.operator):
                direct = False
    compared = any(
        isinstance(node, Binary) and comparison(context, node) is not None
        for node, _ in context.ancestors(selector)
        if isinstance(node, Binary) and is_comparison(node.operator)
    )
    function = "increase" if context.is_alert and compared and direct else "rate"
    message = (
        f"{selector.name} counts since the server started: without {function}() its value says how "
        "long the server has run, and a restart changes it."
    )
    mended = context.mend(selector, Call(function, (Range(selector, context.window),)))
    severity: Severity = "error" if context.is_alert else "warning"
    yield Fault(Code.COUNTER_WITHOUT_RATE, severity, message, mended)


def _wrong_function(context: Context, node: Call, selector: Selector) -> Fault:
    message = f"{node.function}() does not know that {selector.name} begins at 0 after a restart."
    right = _FOR_COUNTERS.get(node.function)
    mended = None if right is None else context.mend(node, replace(node, function=right))
    reason = f"there is no {node.function}() for counters; take it of a recorded rate"
    return Fault(Code.COUNTER_WITHOUT_RATE, "error", message, mended, reason)


def _gauge_under_rate(context: Context, node: Call) -> Iterator[Fault]:
    if len(node.arguments) != 1:
        return
    selector, _ = gauge_of(node.arguments[0])
    use = None if selector is None else context.use(selector)
    if selector is None or use is None or not use.is_gauge:
        return
    message = (
        f"{selector.name} is a gauge: {node.function}() takes every fall of it for a restart of "
        "the server and adds what it rose."
    )
    if use.stem.startswith("num_requests"):
        message += " Requests a second are rate(vllm:request_success_total[5m])."
    mended = context.mend(node, replace(node, function=_FOR_GAUGES[node.function]))
    yield Fault(Code.GAUGE_UNDER_RATE, "error", message, mended)


def _short_window(context: Context, node: Call) -> Iterator[Fault]:
    for one in node.arguments:
        if isinstance(one, Range) and one.window < _SHORTEST_WINDOW:
            message = (
                "The window is shorter than four scrapes at the usual 15 s, so that a missed "
                "scrape leaves no rate at all."
            )
            mended = context.mend(one, replace(one, window=context.window))
            if context.stem(one.selector):
                yield Fault(Code.SHORT_WINDOW, "warning", message, mended)


def _throughput(context: Context, selector: Selector, use: Use) -> Iterator[Fault]:
    counter = _THROUGHPUT.get(use.stem)
    if counter is None:
        return
    for node, child in context.ancestors(selector):
        if isinstance(node, Binary) and node.operator == "/":
            other = node.right if child is node.left else node.left
            if any(context.use(one) is not None for one in walk(other)):
                return
    message = (
        f"{selector.name} moves only when a request ends, by all its tokens at once: as a "
        "throughput it shows bursts that never were."
    )
    mended = context.mend(selector, replace(selector, name=f"{use.right_prefix}{counter}"))
    yield Fault(Code.SUM_AS_THROUGHPUT, "error", message, mended)
