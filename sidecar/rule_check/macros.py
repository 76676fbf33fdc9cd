"""Grafana's variables in an expression: put something that parses in their place, and back again.

A variable can stand for a duration, a number, a part of a name or a text. Durations and numbers
become values that nobody writes, so that they can be recognised in a corrected expression.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from sidecar.rule_check.promql import ExpressionError, parse
from sidecar.rule_check.text import render, render_duration, render_number
from sidecar.rule_check.tree import Node, Number

_STRING = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_VARIABLE = r"\$\{\w+(?:\.\w+)?(?::[^}]*)?\}|\[\[\w+(?::\w+)?\]\]|\$\w+"
_TOKEN = re.compile(rf"{_STRING}|{_VARIABLE}")
_INTERVALS = ("$__rate_interval", "$__interval", "$__range", "$interval")
_BEFORE_DURATION = re.compile(r"(?:\[[^\[\]]*|\boffset\s+-?)\s*$", re.IGNORECASE)
# Odd on purpose. Five minutes and an hour are what the two macros commonly stand for.
_FIRST_DURATION = 300_001
_FIRST_NUMBER = 8_642_097.25
_MOST_DOUBTS = 4
STAND_IN = "grafana_variable_"
"""How the stand-in for a name or a part of one begins."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How expressions of one kind of file are written; `window` is what a correction uses.

    In milliseconds; in a dashboard it is the stand-in for `$__rate_interval`.
    """

    has_variables: bool
    window: int


PLAIN = Dialect(False, 300_000)
DASHBOARD = Dialect(True, _FIRST_DURATION)


@dataclass(slots=True)
class Reading:
    """An expression as a tree, and what its stand-ins stand for."""

    tree: Node
    stand_ins: dict[str, str] = field(default_factory=dict)
    numbers: frozenset[float] = frozenset()

    def text(self, tree: Node) -> str:
        """The text of a tree, with its variables."""
        text = render(tree)
        for stand_in, variable in self.stand_ins.items():
            text = text.replace(stand_in, variable)
        return text


def read(text: str, dialect: Dialect) -> Reading:
    """Parse an expression; raises ExpressionError. Of doubtful variables every meaning is tried."""
    if not dialect.has_variables:
        return Reading(parse(text))
    doubtful = [_is_doubtful(text, token) for token in _variables(text)].count(True)
    failure: ExpressionError | None = None
    for guesses in itertools.product("nw", repeat=min(doubtful, _MOST_DOUBTS)):
        filled, reading = _fill(text, list(guesses))
        try:
            reading.tree = parse(filled)
        except ExpressionError as error:
            failure = failure or error
        else:
            return reading
    raise failure or ExpressionError("it is empty")


def _variables(text: str) -> list[re.Match[str]]:
    return [token for token in _TOKEN.finditer(text) if token[0][0] in "$["]


def _is_duration(text: str, token: re.Match[str]) -> bool:
    if token[0] in _INTERVALS and not _is_glued(text, token):
        return True
    return bool(_BEFORE_DURATION.search(text[: token.start()]))


def _is_glued(text: str, token: re.Match[str]) -> bool:
    """Whether a variable is a part of a longer name."""
    around = text[max(token.start() - 1, 0) : token.start()] + text[token.end() : token.end() + 1]
    return bool(re.search(r"[\w:]", around))


def _is_doubtful(text: str, token: re.Match[str]) -> bool:
    return not _is_duration(text, token) and not _is_glued(text, token)


def _fill(text: str, guesses: list[str]) -> tuple[str, Reading]:
    durations = {"$__rate_interval": _FIRST_DURATION}
    stand_ins: dict[str, str] = {}
    numbers: set[float] = set()
    parts: list[str] = []
    end = 0
    for token in _variables(text):
        parts.append(text[end : token.start()])
        end = token.end()
        name = token[0]
        if _is_duration(text, token):
            milliseconds = durations.setdefault(name, _FIRST_DURATION + len(durations))
            stand_in = render_duration(milliseconds)
        elif _is_doubtful(text, token) and (guesses.pop(0) if guesses else "n") == "n":
            value = _FIRST_NUMBER + len(numbers)
            numbers.add(value)
            stand_in = render_number(value)
        else:
            stand_in = f"{STAND_IN}{len(stand_ins)}_"
        stand_ins[stand_in] = name
        parts.append(stand_in)
    stand_ins[render_duration(_FIRST_DURATION)] = "$__rate_interval"
    filled = "".join([*parts, text[end:]])
    return filled, Reading(Number(0), stand_ins, frozenset(numbers))
