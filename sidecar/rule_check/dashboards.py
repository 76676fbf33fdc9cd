"""Grafana dashboards: every PromQL expression in the JSON, whatever its schema.

Panels, rows, annotations and library elements of all schema versions keep an expression under
`expr`; queries of variables are texts like `label_values(metric, label)`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from sidecar.rule_check.source import MOST_EXPRESSIONS, Role, RuleFileError, Source

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LABEL_VALUES = re.compile(r"\s*label_values\(\s*(?P<inner>.+),\s*[\w$\[\]{}]+\s*\)\s*", re.DOTALL)
_QUERY_RESULT = re.compile(r"\s*query_result\((?P<inner>.*)\)\s*", re.DOTALL)
_PROMETHEUS = re.compile(r"prometheus|mimir|thanos|cortex|victoria|^\$|^-- |^$", re.IGNORECASE)


def read_dashboard(file: str, text: str) -> list[Source]:
    """The expressions of a dashboard, in order; raises RuleFileError."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RuleFileError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise RuleFileError(f"{file}:1: not JSON that can be read: {str(error)[:100]}") from None
    if not isinstance(document, dict):
        raise RuleFileError(f"{file}:1: neither a dashboard nor rules")
    lines = _lines(text)
    found = []
    for role, title, written, expression in _expressions(document):
        where = lines[written]
        line = where.popleft() if len(where) > 1 else where[0] if where else 1
        found.append(Source(file, line, title, role, expression))
        if len(found) > MOST_EXPRESSIONS:
            raise RuleFileError(f"{file}:{line}: more than {MOST_EXPRESSIONS} expressions")
    shape = ("panels", "rows", "spec", "dashboard", "templating", "elements")
    if not found and not any(key in document for key in shape):
        raise RuleFileError(f"{file}:1: neither a dashboard nor rules")
    return found


def _inner(query: str) -> str | None:
    """The expression in the query of a variable."""
    for pattern in (_LABEL_VALUES, _QUERY_RESULT):
        found = pattern.fullmatch(query)
        if found is not None:
            return found["inner"]
    return None


def _lines(text: str) -> dict[str, deque[int]]:
    """The lines on which every string of the JSON stands. Quotes occur nowhere else in JSON."""
    lines: dict[str, deque[int]] = defaultdict(deque)
    line, end = 1, 0
    for found in _STRING.finditer(text):
        line += text.count("\n", end, found.start())
        end = found.start()
        lines[json.loads(found[0], strict=False)].append(line)
    return lines


def _expressions(document: dict[str, Any]) -> Iterator[tuple[Role, str, str, str]]:
    """In the order of the text, without recursion: a dashboard may be nested at will."""
    stack: list[tuple[Any, str, bool]] = [(document, "", True)]
    while stack:
        node, title, is_prometheus = stack.pop()
        if isinstance(node, list):
            stack.extend((item, title, is_prometheus) for item in reversed(node))
        if not isinstance(node, dict):
            continue
        title = _title(node) or title
        is_prometheus = _is_prometheus(node, is_prometheus)
        expression = node.get("expr")
        if isinstance(expression, str) and is_prometheus and expression.strip():
            yield "panel", title, expression, expression
        if is_prometheus and node.get("type") == "query" and isinstance(node.get("name"), str):
            yield from _variable(node)
        stack.extend((value, title, is_prometheus) for value in reversed(list(node.values())))


def _variable(node: dict[str, Any]) -> Iterator[tuple[Role, str, str, str]]:
    query = node.get("query")
    text = query.get("query") if isinstance(query, dict) else query
    if isinstance(text, str) and (expression := _inner(text)) is not None:
        yield "variable", f"${node['name']}", text, expression


def _title(node: dict[str, Any]) -> str | None:
    title = node.get("title")
    return title if isinstance(title, str) and title.strip() else None


def _is_prometheus(node: dict[str, Any], inherited: bool) -> bool:
    """Whether what stands here is PromQL; a data source that says nothing changes nothing."""
    source = node.get("datasource")
    kind = source.get("type") if isinstance(source, dict) else source
    if not isinstance(kind, str):
        return inherited
    if isinstance(source, str):
        return not re.search(r"loki|elastic|tempo|influx", kind, re.IGNORECASE)
    return bool(_PROMETHEUS.search(kind)) or kind in ("grafana", "datasource")
