"""The unit of an expression: a share, a percentage, seconds or milliseconds."""

from __future__ import annotations

from typing import Literal

from sidecar.rule_check.context import Context
from sidecar.rule_check.shapes import PRESERVING, carried, rate_of
from sidecar.rule_check.text import is_comparison
from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Node,
    Range,
    Selector,
    Subquery,
    bare,
    walk,
)

_AGGREGATES = frozenset({"max", "min", "avg", "quantile", "topk", "bottomk", "limitk"})
_PARTS_OF = {
    "prefix_cache_hits_total": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total": "gpu_prefix_cache_queries_total",
    "external_prefix_cache_hits_total": "external_prefix_cache_queries_total",
    "mm_cache_hits_total": "mm_cache_queries_total",
    "spec_decode_num_accepted_tokens_total": "spec_decode_num_draft_tokens_total",
}

Unit = Literal["ratio", "ratios", "percent", "seconds", "milliseconds"]


def unit_of(context: Context, node: Node) -> Unit | None:
    """The unit of an expression, as far as it is beyond doubt; `ratios` is a sum of ratios."""
    match node:
        case Selector():
            return _unit_of_gauge(context, node)
        case Range(selector=selector):
            return unit_of(context, selector)
        case Call(function="histogram_quantile", arguments=(_, histogram)):
            uses = [context.use(one) for one in walk(histogram)]
            units = {use.metric.unit for use in uses if use is not None and use.metric is not None}
            return _known(units.pop()) if len(units) == 1 else None
        case Call(function=function, arguments=arguments) if function in PRESERVING:
            return unit_of(context, carried(function, arguments))
        case Aggregate(operation=operation, body=body):
            unit = unit_of(context, body)
            if operation == "sum" and unit is not None:
                return "ratios" if unit == "ratio" else None
            return unit if operation in _AGGREGATES else None
        case Subquery(body=body):
            return unit_of(context, body)
        case Binary():
            return _unit_of_operation(context, node)
    inner = bare(node)
    return None if inner is node else unit_of(context, inner)


def _unit_of_gauge(context: Context, node: Selector) -> Unit | None:
    use = context.use(node)
    if use is not None:
        return _known(use.metric.unit) if use.metric is not None and use.is_gauge else None
    name = node.name or ""
    bounded = ("usage_ratio", "usage_peak_ratio", "headroom_ratio", "utilization_ratio")
    return "ratio" if name.startswith("vllm_sidecar_") and name.endswith(bounded) else None


def _unit_of_operation(context: Context, node: Binary) -> Unit | None:
    left, right = unit_of(context, node.left), unit_of(context, node.right)
    first, second = context.constant(node.left), context.constant(node.right)
    match node.operator:
        case "*":
            return _scaled(left or right, second if first is None else first)
        case "/" if second:
            return _scaled(left, 1 / second)
        case "/":
            return _unit_of_quotient(context, node)
        case "-" if (first, right) in ((1, "ratio"), (100, "percent")):
            return right
        case "and" | "unless":
            return left
        case "or":
            return left if left == right else None
    if is_comparison(node.operator) and not node.matching.returns_bool:
        return right if first is not None else left
    return None


def _unit_of_quotient(context: Context, node: Binary) -> Unit | None:
    left, right = rate_of(context, node.left), rate_of(context, node.right)
    if left is None or right is None:
        return None
    above, below = context.use(left.selector), context.use(right.selector)
    if above is None or below is None or above.metric is None:
        return None
    if _PARTS_OF.get(above.stem) == below.stem:
        return "ratio"
    if above.metric is below.metric and (above.part, below.part) == ("_sum", "_count"):
        return _known(above.metric.unit)
    return None


def _scaled(unit: Unit | None, factor: float | None) -> Unit | None:
    for small, large, times in (("ratio", "percent", 100), ("seconds", "milliseconds", 1000)):
        if unit == small and factor == times:
            return _known(large)
        if unit == large and factor is not None and abs(factor * times - 1) < 1e-9:
            return _known(small)
    return None


def _known(unit: str) -> Unit | None:
    match unit:
        case "ratio" | "ratios" | "percent" | "seconds" | "milliseconds":
            return unit
    return None
