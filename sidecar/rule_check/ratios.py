"""Units: ratios against percent, seconds against milliseconds, and sums of ratios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code
from sidecar.rule_check.shapes import Comparison, comparisons
from sidecar.rule_check.text import is_comparison, render_number
from sidecar.rule_check.tree import Aggregate, Binary, Call, Node, Number, Selector, bare, walk
from sidecar.rule_check.units import unit_of

_MOST_REPLICAS = 20
_LIMITS = (
    ("inter_token_latency", 10),
    ("time_per_output_token", 10),
    ("time_to_first_token", 100),
    ("", 1000),
)


def check_ratios(context: Context) -> Iterator[Fault]:
    for found in comparisons(context):
        unit = unit_of(context, found.value)
        if unit == "ratio" or (unit == "ratios" and found.number > _MOST_REPLICAS):
            yield from _ratio(context, found)
        elif unit == "percent":
            yield from _percent(context, found)
        elif unit == "seconds":
            yield from _seconds(context, found)
    for node in walk(context.tree):
        if isinstance(node, Aggregate) and node.operation == "sum":
            yield from _summed(context, node)


def _ratio(context: Context, found: Comparison) -> Iterator[Fault]:
    beyond = found.number == 1 and found.operator == ">"
    if found.number <= 1 and not beyond:
        return
    message = (
        f"The value is a share from 0 to 1, so that {render_number(found.number)} is never "
        f"{'passed' if found.operator in ('>', '>=', '==') else 'reached'}."
    )
    if 2 <= found.number <= 100:
        message += f" {render_number(found.number)} % is {render_number(found.number / 100)}."
        mended = _with_number(context, found, found.number / 100)
        yield Fault(Code.PERCENT_AGAINST_RATIO, "error", message, mended)
    else:
        reason = "the number is no percentage either"
        yield Fault(Code.PERCENT_AGAINST_RATIO, "error", message, None, reason)


def _percent(context: Context, found: Comparison) -> Iterator[Fault]:
    if 0.3 <= found.number < 1 and found.operator in (">", ">="):
        message = (
            f"The value is a percentage from 0 to 100, so that {render_number(found.number)} is "
            "less than one percent."
        )
        mended = _with_number(context, found, found.number * 100)
        yield Fault(Code.PERCENT_AGAINST_RATIO, "error", message, mended)


def _seconds(context: Context, found: Comparison) -> Iterator[Fault]:
    stems = [context.stem(node) for node in walk(found.value)]
    limit = next(limit for word, limit in _LIMITS if any(word in stem for stem in stems))
    if found.number < limit:
        return
    message = (
        f"The value is in seconds: {render_number(found.number)} of them are "
        f"{render_number(round(found.number / 60, 1))} minutes. Milliseconds seem to be meant."
    )
    mended = _with_number(context, found, found.number / 1000)
    yield Fault(Code.MILLISECONDS_AGAINST_SECONDS, "error", message, mended)


def _summed(context: Context, node: Aggregate) -> Iterator[Fault]:
    if unit_of(context, node.body) != "ratio" or not _has_series(context, node.body):
        return
    for parent, child in context.ancestors(node):
        if isinstance(parent, Binary) and parent.operator == "/" and child is parent.left:
            below = bare(parent.right)
            if isinstance(below, Aggregate) and below.operation == "count":
                return
        if isinstance(parent, Binary) and is_comparison(parent.operator):
            break
    message = (
        "A sum of shares means nothing: two servers at 40 % are not one at 80 %. The maximum says "
        "whether any is full, the average how full they are together."
    )
    numbers = [found.number for found in comparisons(context) if _contains(found.value, node)]
    if any(1 < number <= _MOST_REPLICAS for number in numbers):
        reason = "its threshold was made for a number of servers; set one between 0 and 1"
        yield Fault(Code.SUMMED_RATIO, "error", message, None, reason)
        return
    # One series a group: the sum is the value itself, as long as that stays so.
    alone = node.keyword == "by" and {"engine"} < set(node.labels)
    alone = alone and bool({"instance", "pod"} & set(node.labels))
    mended = context.mend(node, replace(node, operation="max"))
    yield Fault(Code.SUMMED_RATIO, "warning" if alone else "error", message, mended)


def _has_series(context: Context, node: Node) -> bool:
    """Whether it is a gauge that is summed, and not a quotient or a quantile."""
    calls = [one.function for one in walk(node) if isinstance(one, Call)]
    named = any(isinstance(one, Selector) for one in walk(node))
    return named and "histogram_quantile" not in calls


def _contains(root: Node, node: Node) -> bool:
    return any(one is node for one in walk(root))


def _with_number(context: Context, found: Comparison, number: float) -> Node:
    return context.mend(found.number_node, Number(round(number, 6)))
