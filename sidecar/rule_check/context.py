"""One expression under check: its tree, its release, and the questions all checks ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sidecar.rule_check.finding import Code, Severity
from sidecar.rule_check.macros import STAND_IN
from sidecar.rule_check.metrics import Use, use_of
from sidecar.rule_check.source import Source
from sidecar.rule_check.tree import (
    Binary,
    Node,
    Number,
    Paren,
    Selector,
    Unary,
    children,
    exchange,
    walk,
)
from sidecar.sources.releases import Release


@dataclass(frozen=True, slots=True)
class Fault:
    """What a check found. `mended` is the whole tree without this fault; else `reason` says why."""

    code: Code
    severity: Severity
    message: str
    mended: Node | None = None
    reason: str = ""


@dataclass(frozen=True)
class Context:
    """`recorded` are the names that rules of the same files record.

    `unknown_numbers` stand for variables of a dashboard; `is_about_vllm` says whether the file
    speaks of vLLM at all.
    """

    source: Source
    tree: Node
    release: Release
    recorded: frozenset[str] = frozenset()
    unknown_numbers: frozenset[float] = frozenset()
    is_about_vllm: bool = True

    @cached_property
    def uses(self) -> tuple[tuple[Selector, Use], ...]:
        """Every selector of a vLLM metric, in order, with what its name stands for."""
        found = []
        for node in walk(self.tree):
            if isinstance(node, Selector) and node.name and self._is_plain(node.name):
                use = use_of(node.name)
                if use is not None:
                    found.append((node, use))
        return tuple(found)

    def _is_plain(self, name: str) -> bool:
        return name not in self.recorded and STAND_IN not in name

    @cached_property
    def _parents(self) -> dict[int, Node]:
        return {id(child): node for node in walk(self.tree) for child in children(node)}

    @cached_property
    def _uses_by_node(self) -> dict[int, Use]:
        return {id(selector): use for selector, use in self.uses}

    @property
    def window(self) -> int:
        """The window that a correction uses, in milliseconds."""
        return self.source.dialect.window

    @property
    def is_alert(self) -> bool:
        return self.source.role == "alert"

    def use(self, node: Node) -> Use | None:
        return self._uses_by_node.get(id(node))

    def stem(self, node: Node | None) -> str:
        """The name without `vllm:` of a selector of vLLM's; else an empty text."""
        use = None if node is None else self.use(node)
        return "" if use is None else use.stem

    def ancestors(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """From the inside out: each node above, with its child on the way."""
        child = node
        while (parent := self._parents.get(id(child))) is not None:
            yield parent, child
            child = parent

    def mend(self, old: Node, new: Node) -> Node:
        """The tree with one node replaced."""
        return exchange(self.tree, old, new)

    def constant(self, node: Node) -> float | None:
        """The value of an expression of numbers alone, if it is known."""
        match node:
            case Number(value=value):
                return None if value in self.unknown_numbers else value
            case Paren(body=body):
                return self.constant(body)
            case Unary(body=body):
                inner = self.constant(body)
                return None if inner is None else -inner
            case Binary(operator=operator, left=left, right=right):
                first, second = self.constant(left), self.constant(right)
                if first is None or second is None:
                    return None
                return _calculate(operator, first, second)
        return None


def _calculate(operator: str, first: float, second: float) -> float | None:
    try:
        match operator:
            case "+":
                return first + second
            case "-":
                return first - second
            case "*":
                return first * second
            case "/":
                return first / second
            case "^":
                power = first**second
                return power if isinstance(power, float) else None
    except (ArithmeticError, ValueError):
        pass
    return None
