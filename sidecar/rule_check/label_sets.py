"""Which labels the result of an expression has, as far as that is beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sidecar.rule_check.context import Context
from sidecar.rule_check.shapes import CHANGES, RATES
from sidecar.rule_check.text import is_comparison
from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Matching,
    Node,
    Range,
    Selector,
    Subquery,
    bare,
)

TARGET = frozenset({"job", "instance"})
"""What Prometheus adds to every series; a configuration may add more."""


@dataclass(frozen=True, slots=True)
class LabelSet:
    """The labels of a result; if `is_open`, also whatever else its target has."""

    labels: frozenset[str]
    is_open: bool


def labels_of(context: Context, node: Node) -> LabelSet | None:
    """The labels of an expression; None where they are not known or where it has no series."""
    match node:
        case Selector():
            return _of_selector(context, node)
        case Range(selector=selector):
            return _of_selector(context, selector)
        case Subquery(body=body):
            return labels_of(context, body)
        case Aggregate():
            return _of_aggregate(context, node)
        case Call():
            return _of_call(context, node)
        case Binary():
            return _of_operation(context, node)
    inner = bare(node)
    return None if inner is node else labels_of(context, inner)


def _of_selector(context: Context, selector: Selector) -> LabelSet | None:
    use = context.use(selector)
    if use is None or use.metric is None:
        return None
    bucket = frozenset({"le"}) if use.part == "_bucket" else frozenset()
    return LabelSet(use.metric.labels | TARGET | bucket, True)


def _of_aggregate(context: Context, node: Aggregate) -> LabelSet | None:
    if node.operation in ("topk", "bottomk", "limitk", "limit_ratio"):
        return labels_of(context, node.body)
    if node.operation == "count_values":
        return None
    if node.keyword != "without":
        return LabelSet(frozenset(node.labels), False)
    inner = labels_of(context, node.body)
    return None if inner is None else replace(inner, labels=inner.labels - set(node.labels))


def _of_call(context: Context, node: Call) -> LabelSet | None:
    name = node.function
    if name == "histogram_quantile" and len(node.arguments) == 2:
        inner = labels_of(context, node.arguments[1])
        return None if inner is None else replace(inner, labels=inner.labels - {"le"})
    if name.startswith("absent") or not node.arguments:
        return None
    if name in ("quantile_over_time",):
        return labels_of(context, node.arguments[1])
    keeps = name in RATES | CHANGES or name.endswith("_over_time")
    if keeps or name in ("abs", "clamp", "clamp_min", "clamp_max", "ceil", "floor", "round"):
        return labels_of(context, node.arguments[0])
    return None


def _of_operation(context: Context, node: Binary) -> LabelSet | None:
    left_number = context.constant(node.left) is not None
    right_number = context.constant(node.right) is not None
    if left_number or right_number:
        return labels_of(context, node.right if left_number else node.left)
    left, right = labels_of(context, node.left), labels_of(context, node.right)
    if node.operator in ("and", "unless") or node.matching.group == "group_left":
        return _with(left, node.matching)
    if node.operator == "or":
        return left if left == right else None
    if node.matching.group == "group_right":
        return _with(right, node.matching)
    if node.matching.keyword == "on":
        return LabelSet(frozenset(node.matching.labels), False)
    if is_comparison(node.operator) or left is None:
        return left
    ignored = node.matching.labels if node.matching.keyword == "ignoring" else ()
    return replace(left, labels=left.labels - set(ignored))


def _with(found: LabelSet | None, matching: Matching) -> LabelSet | None:
    return None if found is None else replace(found, labels=found.labels | set(matching.include))
