"""Quantiles of histograms: of rates, by `le`, and never averaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.shapes import RATES
from sidecar.rule_check.tree import (
    Aggregate,
    Call,
    Node,
    Range,
    Selector,
    bare,
    children,
    exchange,
    walk,
)

_CHANGING = RATES | {"delta", "idelta"}


def check_histograms(context: Context) -> Iterator[Fault]:
    for node in walk(context.tree):
        if isinstance(node, Call) and node.function == "histogram_quantile":
            if len(node.arguments) == 2 and _speaks_of_vllm(context, node):
                yield from _lifetime(context, node.arguments[1])
                yield from _aggregated(context, node.arguments[1])
        elif isinstance(node, Aggregate) and node.operation in ("avg", "sum"):
            quantile = bare(node.body)
            if isinstance(quantile, Call) and quantile.function == "histogram_quantile":
                yield from _averaged(context, node, quantile)


def _speaks_of_vllm(context: Context, node: Node) -> bool:
    return any(context.use(one) is not None for one in walk(node))


def _lifetime(context: Context, histogram: Node) -> Iterator[Fault]:
    raw = list(_outside_rates(histogram))
    if not raw:
        return
    tree = context.tree
    for selector in raw:
        tree = exchange(tree, selector, Call("rate", (Range(selector, context.window),)))
    yield Fault(
        Code.LIFETIME_QUANTILE,
        "error",
        "Buckets count since the server started, so without rate() this is the quantile of its "
        "whole life: it hardly moves, and an alert on it never resolves.",
        tree,
    )


def _outside_rates(root: Node) -> Iterator[Selector]:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Selector):
            # A level and several colons: a rule has recorded it, probably a rate.
            if node.name is None or node.name.count(":") < 2:
                yield node
        elif not (isinstance(node, Call) and node.function in _CHANGING):
            stack.extend(children(node))


def _aggregated(context: Context, histogram: Node) -> Iterator[Fault]:
    for node in walk(histogram):
        if not isinstance(node, Aggregate):
            continue
        if not _keeps_le(node):
            mended = context.mend(node, _with_le(node))
            message = (
                f"{node.operation}() drops the label `le`, without which there are no buckets: "
                "the quantile is empty."
            )
            yield Fault(Code.BROKEN_HISTOGRAM, "error", message, mended)
        if node.operation == "sum":
            continue
        message = (
            f"{node.operation}() of each bucket on its own: buckets are cumulative, and only "
            "their sum by `le` is a histogram again."
        )
        summed = replace(node, operation="sum", parameter=None)
        # The average of complete sets of buckets has the shape of their sum; of others, not.
        severity: Severity = "warning" if node.operation == "avg" else "error"
        yield Fault(Code.BROKEN_HISTOGRAM, severity, message, context.mend(node, summed))


def _keeps_le(node: Aggregate) -> bool:
    if node.keyword == "without":
        return "le" not in node.labels
    return node.keyword == "by" and "le" in node.labels


def _with_le(node: Aggregate) -> Aggregate:
    if node.keyword == "without":
        return replace(node, labels=tuple(label for label in node.labels if label != "le"))
    return replace(node, keyword="by", labels=("le", *node.labels))


def _averaged(context: Context, node: Aggregate, quantile: Call) -> Iterator[Fault]:
    if len(quantile.arguments) != 2 or not _speaks_of_vllm(context, quantile):
        return
    share, histogram = quantile.arguments
    inner = bare(histogram)
    if isinstance(inner, Aggregate) and inner.operation == "sum":
        histogram = inner.body
    kept = tuple(label for label in node.labels if label != "le")
    if node.keyword == "without":
        summed = Aggregate("sum", histogram, "without", kept)
    else:
        summed = Aggregate("sum", histogram, "by", ("le", *kept))
    mended = context.mend(node, Call("histogram_quantile", (share, summed)))
    message = (
        f"The {'average' if node.operation == 'avg' else 'sum'} of quantiles is no quantile of "
        "all requests: add the buckets by `le` first."
    )
    severity: Severity = "warning" if node.operation == "avg" else "error"
    yield Fault(Code.AVERAGED_QUANTILE, severity, message, mended)
