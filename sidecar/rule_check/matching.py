"""Two sides of an operator that never meet, or that meet only themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.finding import Code
from sidecar.rule_check.label_sets import TARGET, LabelSet, labels_of
from sidecar.rule_check.shapes import rate_of
from sidecar.rule_check.text import render
from sidecar.rule_check.tree import Aggregate, Binary, Matching, Node, Number, Paren, bare, walk

_SET_OPERATORS = ("and", "unless")


def check_matching(context: Context) -> Iterator[Fault]:
    for node in walk(context.tree):
        if not isinstance(node, Binary) or node.operator == "or":
            continue
        if context.constant(node.left) is not None or context.constant(node.right) is not None:
            continue
        if not any(context.use(one) is not None for one in walk(node)):
            continue
        own = list(_ratio_of_itself(context, node)) if node.operator == "/" else []
        yield from own
        if not own and not node.matching.keyword:
            yield from _mismatch(context, node)
        if node.matching.keyword and not node.matching.group:
            yield from _without_group(context, node)
        if node.operator == "/":
            yield from _idle_division(context, node)


def _ratio_of_itself(context: Context, node: Binary) -> Iterator[Fault]:
    left, right = rate_of(context, node.left), rate_of(context, node.right)
    same = render(bare(node.left)) == render(bare(node.right))
    if not same and (left is None or right is None or node.matching.keyword):
        return
    message = "Both sides are the same, so that the quotient is always 1."
    mended = None
    if left is not None and right is not None:
        use = context.use(left.selector)
        extra = frozenset() if use is None or use.metric is None else use.metric.extra_labels
        if left.selector.name != right.selector.name:
            return
        chosen = {one.label for one in left.selector.matchers} & extra
        every = {one.label for one in right.selector.matchers}
        kept = labels_of(context, node.right)
        if not same and (not chosen - every or kept is None or not chosen & kept.labels):
            return
        if not same:
            message = (
                f"Each series on the left meets the very same series on the right, since "
                f"{_list(chosen)} takes part in the matching: the quotient is always 1."
            )
            sides = [_without(side, chosen) for side in (node.left, node.right)]
            mended = context.mend(node, replace(node, left=sides[0], right=sides[1]))
        elif kept is not None and (spare := extra & kept.labels):
            mended = _share(context, node, spare)
    reason = "it does not say what the share is taken of"
    yield Fault(Code.RATIO_OF_ITSELF, "error", message, mended, reason)


def _share(context: Context, node: Binary, labels: frozenset[str]) -> Node:
    """Each series as a share of all that differ only in some labels."""
    matching = Matching("ignoring", tuple(sorted(labels)), "group_left")
    below = _without(node.right, labels)
    return context.mend(node, replace(node, right=below, matching=matching))


def _without(node: Node, labels: set[str] | frozenset[str]) -> Node:
    """The sum over some labels, in the aggregation that is there or in a new one."""
    inner = bare(node)
    if isinstance(inner, Binary) and isinstance(inner.right, Number):
        # A filter stays a filter, of the sum.
        return Paren(replace(inner, left=_without(inner.left, labels)))
    if isinstance(inner, Aggregate) and inner.operation == "sum":
        if inner.keyword == "by":
            kept = tuple(label for label in inner.labels if label not in labels)
            return replace(inner, keyword="by" if kept else "", labels=kept)
        if inner.keyword == "without":
            return replace(inner, labels=(*inner.labels, *sorted(labels - set(inner.labels))))
        return inner
    return Aggregate("sum", inner, "without", tuple(sorted(labels)))


def _mismatch(context: Context, node: Binary) -> Iterator[Fault]:
    left, right = labels_of(context, node.left), labels_of(context, node.right)
    if left is None or right is None or not _never_meet(left, right):
        return
    effect = "nothing is ever taken away" if node.operator == "unless" else "the result is empty"
    only_left, only_right = left.labels - right.labels, right.labels - left.labels
    parts = []
    if only_left or (left.is_open and not right.is_open):
        parts.append(f"only the left side has {_list(only_left) or 'the labels of the target'}")
    if only_right or (right.is_open and not left.is_open):
        parts.append(f"only the right side has {_list(only_right) or 'the labels of the target'}")
    message = f"The two sides never have the same labels, so that {effect}: {', '.join(parts)}."
    mended = _met(context, node, left, right)
    reason = "neither side has all labels of the other; aggregate both by the labels they share"
    yield Fault(Code.LABELS_DO_NOT_MATCH, "error", message, mended, reason)


def _never_meet(left: LabelSet, right: LabelSet) -> bool:
    if left.is_open == right.is_open:
        return left.labels != right.labels
    opened, closed = (left, right) if left.is_open else (right, left)
    # A closed side may name further labels of the target, which are not known here.
    return not opened.labels <= closed.labels


def _met(context: Context, node: Binary, left: LabelSet, right: LabelSet) -> Node | None:
    common = tuple(sorted(left.labels & right.labels))
    if node.operator in _SET_OPERATORS:
        return context.mend(node, replace(node, matching=Matching("on", common)))
    bool_kept = node.matching.returns_bool
    if left.is_open and right.is_open:
        spare_left, spare_right = left.labels - right.labels, right.labels - left.labels
        if not spare_left:
            return context.mend(node, replace(node, right=_without(node.right, spare_right)))
        if spare_right:
            # What only describes a server goes with each of its series.
            described = bare(node.right)
            use = context.use(described)
            if use is None or use.metric is None or not use.metric.has_open_labels:
                return None
            matching = Matching("on", common, "group_left", (), bool_kept)
            return context.mend(node, replace(node, matching=matching))
        matching = Matching("ignoring", tuple(sorted(spare_left)), "group_left", (), bool_kept)
        return context.mend(node, replace(node, matching=matching))
    if not right.is_open and right.labels <= left.labels | (TARGET if left.is_open else set()):
        group, labels = "group_left", right.labels
    elif not left.is_open and left.labels <= right.labels | (TARGET if right.is_open else set()):
        group, labels = "group_right", left.labels
    else:
        return None
    matching = Matching("on", tuple(sorted(labels)), group, (), bool_kept)
    return context.mend(node, replace(node, matching=matching))


def _without_group(context: Context, node: Binary) -> Iterator[Fault]:
    """One side has one series where the other can have several."""
    left, right = labels_of(context, node.left), labels_of(context, node.right)
    if left is None or right is None or node.operator in _SET_OPERATORS:
        return
    named = set(node.matching.labels)
    on = node.matching.keyword == "on"
    several = [
        bool(side.labels - named - TARGET if on else side.labels & named) for side in (left, right)
    ]
    single = [not side.is_open and (side.labels <= named if on else True) for side in (left, right)]
    for many, one, group in ((0, 1, "group_left"), (1, 0, "group_right")):
        if several[many] and single[one] and not several[one]:
            message = (
                f"Where the {('left', 'right')[many]} side has several series for one of the "
                f"other, Prometheus refuses the query unless it says {group}."
            )
            matching = replace(node.matching, group=group)
            mended = context.mend(node, replace(node, matching=matching))
            yield Fault(Code.LABELS_DO_NOT_MATCH, "warning", message, mended)


def _idle_division(context: Context, node: Binary) -> Iterator[Fault]:
    below = bare(node.right)
    if context.source.role not in ("alert", "record") or isinstance(below, Binary):
        return
    rate = rate_of(context, node.right)
    if rate is None or context.use(rate.selector) is None:
        return
    message = "While the server is idle this divides by 0; a filter leaves a gap instead."
    filtered = Binary(">", node.right, Number(0))
    mended = context.mend(node, replace(node, right=filtered))
    yield Fault(Code.DIVISION_WHEN_IDLE, "info", message, mended)


def _list(labels: set[str] | frozenset[str]) -> str:
    return ", ".join(f"`{label}`" for label in sorted(labels))
