"""Two names of one figure added up, and patterns that catch more names than one means."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.metric_table import Metric, table
from sidecar.rule_check.metrics import sample_names
from sidecar.rule_check.shapes import gauge_of, rate_of
from sidecar.rule_check.tree import Aggregate, Binary, Node, Selector, walk

# A group that is repeated can make a pattern take for ever, and no name needs one.
_SIMPLE_PATTERN = re.compile(r"(?!.*[)+*?}][+*?{])[\w:.|()+*?^$\[\]-]{1,300}")


def check_aliases(context: Context) -> Iterator[Fault]:
    for node in walk(context.tree):
        if isinstance(node, Binary) and node.operator == "+":
            yield from _added_alias(context, node)
        if isinstance(node, Selector) and node.name is None:
            yield from _pattern(context, node)


def _added_alias(context: Context, node: Binary) -> Iterator[Fault]:
    sides = []
    for side in (node.left, node.right):
        rate = rate_of(context, side)
        selector = rate.selector if rate is not None else gauge_of(side)[0]
        use = None if selector is None else context.use(selector)
        sides.append(None if use is None else use.metric)
    left, right = sides
    if left is None or right is None:
        return
    if left.successor != right.name and right.successor != left.name:
        return
    newer, side = (right, node.right) if left.successor == right.name else (left, node.left)
    if not newer.exists(context.release):
        side = node.left if side is node.right else node.right
    yield Fault(
        Code.ALIAS_COUNTED_TWICE,
        "error",
        f"vllm:{left.name} and vllm:{right.name} are two names of one figure: where both are "
        "shown it counts twice, and where one is gone the sum is empty.",
        context.mend(node, side),
    )


def _pattern(context: Context, selector: Selector) -> Iterator[Fault]:
    """A selector by a pattern for names: what it catches at once."""
    patterns = [one.value for one in selector.matchers if one.label == "__name__"]
    if len(patterns) != 1 or not _SIMPLE_PATTERN.fullmatch(patterns[0]):
        return
    if "vllm" not in patterns[0]:
        return
    try:
        pattern = re.compile(patterns[0], re.ASCII)
    except re.error:
        return
    caught = [use for name, use in sample_names().items() if pattern.fullmatch(name)]
    metrics = [use.metric for use in caught if use.metric is not None]
    present = [metric for metric in metrics if metric.exists(context.release)]
    if not present and "vllm:" in patterns[0]:
        message = f"No metric of this vLLM has a name like {patterns[0]}."
        yield Fault(Code.UNKNOWN_METRIC, "error", message, None, "name the metric that is meant")
        return
    pair = _alias_pair(metrics)
    if pair is not None and _is_summed(context, selector):
        old, new = pair
        both = old.exists(context.release) and new.exists(context.release)
        message = (
            f"The pattern catches vllm:{old.name} and vllm:{new.name}, two names of one figure; "
            "a release that shows both counts it twice."
        )
        severity: Severity = "error" if both else "warning"
        reason = f"name vllm:{new.name} alone"
        yield Fault(Code.ALIAS_COUNTED_TWICE, severity, message, None, reason)
    created = [use for use in caught if use.part == "_created"]
    if created and len(created) < len(caught):
        message = "The pattern also catches _created, the unix time at which a series began."
        reason = "end the pattern with the suffix that is meant"
        yield Fault(Code.CREATED_TIMESTAMP, "warning", message, None, reason)


def _alias_pair(metrics: list[Metric]) -> tuple[Metric, Metric] | None:
    names = {metric.name for metric in metrics}
    for metric in metrics:
        if metric.successor in names:
            return metric, table()[metric.successor]
    return None


def _is_summed(context: Context, node: Node) -> bool:
    summing = ("sum", "avg", "count")
    return any(
        isinstance(one, Aggregate) and one.operation in summing
        for one, _ in context.ancestors(node)
    )
