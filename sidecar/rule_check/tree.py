"""PromQL expressions as a tree of frozen values, and their text.

Two nodes are the same only if they are one object, so that a place in an expression can be named
by its node. Whether two expressions say the same is a question about their text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matcher:
    """A label, one of `=`, `!=`, `=~`, `!~`, and a value."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """A metric; `tail` is its offset and `@`. `choices` are matchers joined by `or`."""

    name: str | None
    matchers: tuple[Matcher, ...] = ()
    choices: tuple[tuple[Matcher, ...], ...] = ()
    tail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """A metric over a time; `window` in milliseconds."""

    selector: Selector
    window: int


@dataclass(frozen=True, slots=True, eq=False)
class Subquery:
    body: Node
    window: int
    step: int | None = None
    tail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    function: str
    arguments: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """`keyword` is `by`, `without` or, where nothing is kept, empty."""

    operation: str
    body: Node
    keyword: str = ""
    labels: Labels = ()
    parameter: Node | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """What stands between a binary operator and its right side."""

    keyword: str = ""
    labels: Labels = ()
    group: str = ""
    include: Labels = ()
    returns_bool: bool = False
    fill: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    operator: str
    left: Node
    right: Node
    matching: Matching = field(default_factory=Matching)


@dataclass(frozen=True, slots=True, eq=False)
class Unary:
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Paren:
    body: Node


Node = (
    Number | Text | Selector | Range | Subquery | Call | Aggregate | Binary | Unary | Paren
)  # fmt: skip


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Range(selector=selector):
            return (selector,)
        case Call(arguments=arguments):
            return arguments
        case Aggregate(body=body, parameter=parameter):
            return (body,) if parameter is None else (parameter, body)
        case Binary(left=left, right=right):
            return (left, right)
        case Subquery(body=body) | Unary(body=body) | Paren(body=body):
            return (body,)
    return ()


def walk(root: Node) -> Iterator[Node]:
    """Every node, a parent before its children, from left to right."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def bare(node: Node) -> Node:
    """The node without the parentheses around it."""
    while isinstance(node, Paren):
        node = node.body
    return node


def exchange(root: Node, old: Node, new: Node) -> Node:
    """The tree with one node replaced by another."""
    if root is old:
        return new
    match root:
        case Range(selector=selector):
            changed = exchange(selector, old, new)
            if changed is selector:
                return root
            # Only a metric can have a window; anything else is asked again and again instead.
            if isinstance(changed, Selector):
                return replace(root, selector=changed)
            return Subquery(changed, root.window)
        case Call(arguments=arguments):
            replaced = tuple(exchange(argument, old, new) for argument in arguments)
            same = all(one is other for one, other in zip(arguments, replaced, strict=True))
            return root if same else replace(root, arguments=replaced)
        case Aggregate(body=body, parameter=parameter):
            changed = exchange(body, old, new)
            other = None if parameter is None else exchange(parameter, old, new)
            if changed is body and other is parameter:
                return root
            return replace(root, body=changed, parameter=other)
        case Binary(left=left, right=right):
            first, second = exchange(left, old, new), exchange(right, old, new)
            if first is left and second is right:
                return root
            return replace(root, left=first, right=second)
        case Subquery(body=body) | Unary(body=body) | Paren(body=body):
            changed = exchange(body, old, new)
            return root if changed is body else replace(root, body=changed)
    return root
