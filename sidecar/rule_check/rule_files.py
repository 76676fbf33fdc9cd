"""Prometheus rule files: plain ones, PrometheusRule objects of Kubernetes, and lists of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from sidecar.rule_check.source import MOST_EXPRESSIONS, RuleFileError, Source

_SPACE = re.compile(r"\s+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def read_rules(file: str, text: str) -> list[Source]:
    """The expressions of a rule file, in order; raises RuleFileError.

    The text is composed to nodes, which know their lines, and never constructed to objects.
    """
    try:
        documents = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise RuleFileError(f"{file}:{line}: not YAML: {_clean(error.problem)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise RuleFileError(f"{file}:{line}: not YAML: a character that it forbids") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RuleFileError(f"{file}:1: not YAML that can be read: {_clean(error)}") from None
    found: list[Source] = []
    groups = 0
    for group in _groups(documents):
        groups += 1
        for rule in _items(_get(group, "rules")):
            found.append(_rule(file, rule))
            if len(found) > MOST_EXPRESSIONS:
                line = rule.start_mark.line + 1
                raise RuleFileError(f"{file}:{line}: more than {MOST_EXPRESSIONS} rules")
        if groups > MOST_EXPRESSIONS:
            line = group.start_mark.line + 1
            raise RuleFileError(f"{file}:{line}: more than {MOST_EXPRESSIONS} groups")
    if groups == 0:
        raise RuleFileError(f"{file}:1: neither Prometheus rules (`groups:`) nor a dashboard")
    return found


def _groups(documents: list[yaml.Node]) -> Iterator[yaml.Node]:
    for document in documents:
        for item in (document, *_items(_get(document, "items"))):
            yield from _items(_get(item, "groups"))
            yield from _items(_get(_get(item, "spec"), "groups"))


def _rule(file: str, rule: yaml.Node) -> Source:
    line = rule.start_mark.line + 1
    alert, record = _get(rule, "alert"), _get(rule, "record")
    expression = _get(rule, "expr")
    if not isinstance(rule, yaml.MappingNode):
        raise RuleFileError(f"{file}:{line}: a rule is not a mapping")
    if expression is None or not isinstance(expression, yaml.ScalarNode):
        raise RuleFileError(f"{file}:{line}: a rule without a text as its `expr`")
    return Source(
        file,
        expression.start_mark.line + 1,
        _scalar(alert) or _scalar(record) or "",
        "alert" if alert is not None else "record",
        expression.value,
        waits=_is_time(_scalar(_get(rule, "for"))),
        keeps_firing=_is_time(_scalar(_get(rule, "keep_firing_for"))),
        about=" ".join(_texts(rule)),
    )


def _texts(rule: yaml.Node) -> Iterator[str]:
    """Name, labels and annotations of a rule."""
    yield _scalar(_get(rule, "alert")) or ""
    for part in ("labels", "annotations"):
        node = _get(rule, part)
        if isinstance(node, yaml.MappingNode):
            for _, value in node.value[:100]:
                yield (_scalar(value) or "")[:2000]


def _get(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if isinstance(name, yaml.ScalarNode) and name.value == key:
            return value if isinstance(value, yaml.Node) else None
    return None


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _scalar(node: yaml.Node | None) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _is_time(text: str | None) -> bool:
    return text is not None and bool(re.search(r"[1-9]", text))


def _clean(message: object) -> str:
    return _UNPRINTABLE.sub("?", _SPACE.sub(" ", str(message)))[:200]
