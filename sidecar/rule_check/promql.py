"""From text to tree, by promql-parser, the Rust parser of Prometheus' language.

The parser follows nested expressions by recursion without a limit, so that a long enough one would
end the process. What is longer or deeper than any rule that a person writes is refused before.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import promql_parser

from sidecar.rule_check.text import render_duration
from sidecar.rule_check.tree import (
    Aggregate,
    Binary,
    Call,
    Labels,
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

LONGEST = 20_000
"""Characters of the longest expression that is read."""
_MOST_PARTS = 250
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`""", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_BRACES = re.compile(r"\{[^{}]*\}")
_PART = re.compile(r"[(\[{+\-*/%^<>=!]|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
# The parser's values of a kind can be compared, but are no keys.
_OPERATORS = (
    (promql_parser.MatchOp.Equal, "="),
    (promql_parser.MatchOp.NotEqual, "!="),
    (promql_parser.MatchOp.Re, "=~"),
    (promql_parser.MatchOp.NotRe, "!~"),
)
_GROUPS = (
    (promql_parser.VectorMatchCardinality.ManyToOne, "group_left"),
    (promql_parser.VectorMatchCardinality.OneToMany, "group_right"),
)


class ExpressionError(ValueError):
    """An expression that Prometheus would not take."""


class TooLargeError(ExpressionError):
    """An expression that may be right, but is larger than what is read."""


def parse(text: str) -> Node:
    """The tree of an expression; raises ExpressionError."""
    if not text.strip():
        raise ExpressionError("it is empty")
    if len(text) > LONGEST:
        raise TooLargeError(f"it has {len(text)} characters, and no more than {LONGEST} are read")
    outline = _BRACES.sub("", _COMMENT.sub("", _QUOTED.sub("", text)))
    if len(_PART.findall(outline)) > _MOST_PARTS:
        raise TooLargeError(f"it has more than {_MOST_PARTS} brackets and operators")
    try:
        return _convert(promql_parser.parse(text))
    except RecursionError:
        raise TooLargeError("it is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise ExpressionError(" ".join(str(error).split())[:200]) from None
    except BaseException as error:
        # A panic of the Rust side is no Exception; anything that stops the process is not one.
        if type(error).__name__ != "PanicException":
            raise
        raise ExpressionError("the parser gave up on it") from None


def _convert(node: Any) -> Node:  # noqa: ANN401 - the parser's nodes have no common base
    match node:
        case promql_parser.NumberLiteral():
            return Number(float(node.val))
        case promql_parser.StringLiteral():
            return Text(node.val)
        case promql_parser.VectorSelector():
            return _selector(node)
        case promql_parser.MatrixSelector():
            return Range(_selector(node.vector_selector), _milliseconds(node.range))
        case promql_parser.SubqueryExpr():
            step = None if node.step is None else _milliseconds(node.step)
            window = _milliseconds(node.range)
            return Subquery(_convert(node.expr), window, step, _tail(node.offset, node.at))
        case promql_parser.Call():
            return Call(node.func.name, tuple([_convert(one) for one in node.args]))
        case promql_parser.AggregateExpr():
            return _aggregate(node)
        case promql_parser.BinaryExpr():
            matching = Matching() if node.modifier is None else _matching(node.modifier)
            return Binary(str(node.op), _convert(node.lhs), _convert(node.rhs), matching)
        case promql_parser.UnaryExpr():
            return Unary(_convert(node.expr))
        case promql_parser.ParenExpr():
            return Paren(_convert(node.expr))
    raise ExpressionError(f"it holds a {type(node).__name__}, which is not known here")


def _aggregate(node: promql_parser.AggregateExpr) -> Aggregate:
    keyword, labels = "", Labels()
    if node.modifier is not None:
        by = node.modifier.type == promql_parser.AggModifierType.By
        labels = tuple(node.modifier.labels)
        # `by ()` keeps nothing, as no modifier does; `without ()` keeps everything.
        keyword = ("by" if labels else "") if by else "without"
    parameter = None if node.param is None else _convert(node.param)
    return Aggregate(str(node.op), _convert(node.expr), keyword, labels, parameter)


def _selector(node: promql_parser.VectorSelector) -> Selector:
    matchers = _matchers(node.matchers.matchers)
    choices = tuple(_matchers(group) for group in node.matchers.or_matchers)
    name = node.name
    named = [one for one in matchers if one.label == "__name__" and one.operator == "="]
    if name is None and len(named) == 1 and re.fullmatch(r"[a-zA-Z_:][\w:]*", named[0].value):
        name = named[0].value
        matchers = tuple(one for one in matchers if one is not named[0])
    return Selector(name, matchers, choices, _tail(node.offset, node.at))


def _matchers(found: list[promql_parser.Matcher]) -> tuple[Matcher, ...]:
    return tuple(Matcher(one.name, _word(one.op, _OPERATORS), one.value) for one in found)


def _matching(found: promql_parser.BinModifier) -> Matching:
    keyword, labels = "", Labels()
    if found.matching is not None:
        include = found.matching.type == promql_parser.LabelModifierType.Include
        keyword, labels = "on" if include else "ignoring", tuple(found.matching.labels)
    fill = found.fill_values
    fills = (("fill_left", fill.lhs), ("fill_right", fill.rhs))
    return Matching(
        keyword,
        labels,
        _word(found.card, _GROUPS),
        tuple(found.group_labels or ()),
        found.return_bool,
        " ".join(f"{name} ({value:g})" for name, value in fills if value is not None),
    )


def _tail(offset: timedelta | None, at: promql_parser.AtModifier | None) -> str:
    tail = ""
    if at is not None:
        kinds = promql_parser.AtModifierType
        if at.type == kinds.At and at.at is not None:
            tail += f" @ {at.at.timestamp():.3f}"
        elif at.type == kinds.Start:
            tail += " @ start()"
        else:
            tail += " @ end()"
    if offset is not None:
        tail += f" offset {render_duration(_milliseconds(offset))}"
    return tail


def _milliseconds(duration: timedelta | None) -> int:
    return 0 if duration is None else round(duration / timedelta(milliseconds=1))


def _word(value: object, words: tuple[tuple[Any, str], ...]) -> str:
    return next((word for known, word in words if known == value), "")
