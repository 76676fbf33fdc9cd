"""Shapes that many checks look for: comparisons with a number, plain gauges, rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.rule_check.context import Context
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

RATES = frozenset({"rate", "irate", "increase"})
CHANGES = frozenset({"delta", "idelta", "deriv", "predict_linear", "double_exponential_smoothing"})
PRESERVING = frozenset(
    {
        *(f"{word}_over_time" for word in ("max", "min", "avg", "last", "first", "quantile")),
        *("abs", "clamp", "clamp_max", "clamp_min", "round", "ceil", "floor"),
        *("sort", "sort_desc", "label_replace", "label_join"),
    }
)
_MIRRORED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "==": "==", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of something with a known number, the number on the right in thought."""

    node: Binary
    value: Node
    number_node: Node
    operator: str
    number: float


@dataclass(frozen=True, slots=True)
class Rate:
    """A counter's rate, perhaps aggregated: `outer` is the aggregation next to it."""

    function: str
    selector: Selector
    window: int
    outer: Aggregate | None


def comparisons(context: Context) -> Iterator[Comparison]:
    for node in walk(context.tree):
        if isinstance(node, Binary) and is_comparison(node.operator):
            found = comparison(context, node)
            if found is not None:
                yield found


def comparison(context: Context, node: Binary) -> Comparison | None:
    left, right = context.constant(node.left), context.constant(node.right)
    if right is not None and left is None:
        return Comparison(node, bare(node.left), node.right, node.operator, right)
    if left is not None and right is None:
        operator = _MIRRORED[node.operator]
        return Comparison(node, bare(node.right), node.left, operator, left)
    return None


def gauge_of(node: Node) -> tuple[Selector | None, Aggregate | None]:
    """The one selector whose values these are, through aggregations, and the outermost of them."""
    outer: Aggregate | None = None
    while True:
        match node:
            case Selector():
                return node, outer
            case Aggregate(operation="sum" | "max" | "min" | "avg" | "quantile", body=body):
                outer, node = outer or node, body
            case Call(function=function, arguments=arguments) if function in PRESERVING:
                node = carried(function, arguments)
            case Range(selector=selector):
                node = selector
            case Subquery(body=body):
                node = body
            case _:
                inner = bare(node)
                if inner is node:
                    return None, None
                node = inner


def rate_of(context: Context, node: Node) -> Rate | None:
    """The rate that an expression is, through aggregations and filters by a number."""
    outer: Aggregate | None = None
    while True:
        node = bare(node)
        match node:
            case Call(function=function, arguments=(Range(selector=selector, window=window),)) if (
                function in RATES or function == "changes"
            ):
                return Rate(function, selector, window, outer)
            case Aggregate(operation="sum" | "max" | "min" | "avg", body=body):
                outer, node = outer or node, body
            case Binary(operator=operator) if is_comparison(operator):
                filtered = comparison(context, node)
                if filtered is None or node.matching.returns_bool:
                    return None
                node = filtered.value
            case _:
                return None


def carried(function: str, arguments: tuple[Node, ...]) -> Node:
    """The argument whose values a function passes on."""
    return arguments[1] if function == "quantile_over_time" else arguments[0]
