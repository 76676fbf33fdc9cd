"""The text of an expression, on one line."""

from __future__ import annotations

import math

from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Matcher,
    Matching,
    Node,
    Number,
    Paren,
    Range,
    Selector,
    Subquery,
    Text,
    Unary,
)

_BINDING = {"or": 1, "and": 2, "unless": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "atan2": 5}
_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
_UNARY = 6
_POWER = 7
_ATOM = 9
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def render(node: Node) -> str:
    """The expression as text; parentheses are added where the tree needs them."""
    match node:
        case Number(value=value):
            return render_number(value)
        case Text(value=value):
            return _quoted(value)
        case Selector():
            return _selector(node, "")
        case Range(selector=selector, window=window):
            return _selector(selector, f"[{render_duration(window)}]")
        case Subquery(body=body, window=window, step=step, tail=tail):
            rest = "" if step is None else render_duration(step)
            return f"{_inside(body, _ATOM)}[{render_duration(window)}:{rest}]{tail}"
        case Call(function=function, arguments=arguments):
            return f"{function}({', '.join(render(argument) for argument in arguments)})"
        case Aggregate():
            return _aggregate(node)
        case Binary():
            return _binary(node)
        case Unary(body=body):
            return f"-{_inside(body, _UNARY)}"
        case Paren(body=body):
            return f"({render(body)})"


def binding(node: Node) -> int:
    """How strongly an expression holds together; weaker ones need parentheses in stronger ones."""
    match node:
        case Binary(operator="^"):
            return _POWER
        case Binary(operator=operator):
            return _BINDING.get(operator, 3)
        case Unary():
            return _UNARY
        case Number(value=value) if value < 0:
            return _UNARY
    return _ATOM


def is_comparison(operator: str) -> bool:
    return operator in _COMPARISONS


def render_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def render_duration(milliseconds: int) -> str:
    """Whole units, largest first: `1h30m`; never weeks or years, which nobody can read."""
    sign = "-" if milliseconds < 0 else ""
    rest = abs(milliseconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + ("".join(parts) or "0s")


def _inside(node: Node, at_least: int) -> str:
    return render(node) if binding(node) >= at_least else f"({render(node)})"


def _binary(node: Binary) -> str:
    power = binding(node)
    right_associative = node.operator == "^"
    left = _inside(node.left, power + 1 if right_associative else power)
    right = _inside(node.right, power if right_associative else power + 1)
    return f"{left} {node.operator}{_matching(node.matching)} {right}"


def _matching(matching: Matching) -> str:
    parts = []
    if matching.returns_bool:
        parts.append("bool")
    if matching.keyword:
        parts.append(f"{matching.keyword} ({', '.join(matching.labels)})")
    if matching.group:
        # Without its own parentheses it would take those of the right side for its labels.
        parts.append(f"{matching.group} ({', '.join(matching.include)})")
    if matching.fill:
        parts.append(matching.fill)
    return "".join(f" {part}" for part in parts)


def _aggregate(node: Aggregate) -> str:
    grouping = f" {node.keyword} ({', '.join(node.labels)}) " if node.keyword else ""
    parameter = "" if node.parameter is None else f"{render(node.parameter)}, "
    return f"{node.operation}{grouping}({parameter}{render(node.body)})"


def _selector(node: Selector, window: str) -> str:
    groups = [group for group in (node.matchers, *node.choices) if group]
    matchers = " or ".join(",".join(_matcher(one) for one in group) for group in groups)
    braces = f"{{{matchers}}}" if matchers else ""
    return f"{node.name or ''}{braces}{window}{node.tail}"


def _matcher(matcher: Matcher) -> str:
    return f"{matcher.label}{matcher.operator}{_quoted(matcher.value)}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    for raw, written in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        escaped = escaped.replace(raw, written)
    return f'"{escaped}"'
