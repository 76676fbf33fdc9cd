"""One line of Prometheus text as a sample: labels and value, or nothing.

The usual line is taken apart by position; whatever does not fit goes through a strict pattern
once more. Both cost time in proportion to the line, and the line has a bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

MAX_LABEL_CHARACTERS = 65_536
"""Longer label text is refused as invalid: real pages stay below 4,000."""
_MAX_LINE_CHARACTERS = MAX_LABEL_CHARACTERS + 4_096
_MEMO_CHARACTERS = 4_096
"""Label text beyond this is parsed each time, so the memo never exceeds entries x characters."""

EngineKey = tuple[str, str, str]
"""Model, number of the engine, replica."""

REPLICA_LABELS = ("ReplicaId", "replica", "WorkerId", "server", "instance", "pod")
"""What tells apart servers that share a page, the first that is there: replicas and workers of
Ray, servers behind a router, targets of a federation."""

_SAMPLE = re.compile(
    r"[ \t]*[a-zA-Z_:][a-zA-Z0-9_:]*"
    r'(?:[ \t]*\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"[ \t]+([^\s#]+)(?:[ \t]+-?\d+)?[ \t]*(?:#.*)?$",
    re.ASCII,
)
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(,|\Z)', re.ASCII
)
_ESCAPED = re.compile(r'\\([\\"n])')
_MEANT = {"\\": "\\", '"': '"', "n": "\n"}


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a sample, and whose it is.

    Releases without an `engine` label have one engine, which is number 0 in the key. The replica
    there is empty where the page is that of a single server.
    """

    values: Mapping[str, str]
    key: EngineKey
    names_engine: bool


RawSample = tuple[str, Labels, float]
"""A sample that was taken: the suffix of its name, its labels and its value."""


def parse_sample(line: str) -> tuple[Labels, float] | None:
    """The labels and the value of a sample's line, whose name the caller knows. None where it
    is none; never raises."""
    if len(line) > _MAX_LINE_CHARACTERS:
        return None
    start, end = line.find("{"), line.rfind("}")
    if 0 <= start < end <= _MEMO_CHARACTERS and line[end + 1 : end + 2] == " ":
        try:
            return _remembered_labels(line[start + 1 : end]), _value(line[end + 2 :])
        except ValueError:
            pass  # a timestamp or an exemplar may follow the value
    found = _SAMPLE.match(line.rstrip("\r"))
    if found is None:
        return None
    raw, number = found.groups(default="")
    if len(raw) > MAX_LABEL_CHARACTERS:
        return None
    try:
        value = _value(number)
        labels = _remembered_labels(raw) if len(raw) <= _MEMO_CHARACTERS else _parse_labels(raw)
    except ValueError:
        return None
    return labels, value


def _value(text: str) -> float:
    if "_" in text or not text.isascii():  # float() would accept 1_000 and other scripts' digits
        raise ValueError(text)
    return float(text)


def _parse_labels(raw: str) -> Labels:
    values: dict[str, str] = {}
    at = 0
    while at < len(raw):
        found = _LABEL.match(raw, at)
        if found is None:
            if raw[at:].strip(" \t"):
                raise ValueError("not a label")
            break
        name, text, _ = found.groups()
        if name in values:
            raise ValueError("a label twice")
        values[name] = _ESCAPED.sub(lambda escaped: _MEANT[escaped[1]], text)
        at = found.end()
    replica = next((values[name] for name in REPLICA_LABELS if values.get(name)), "")
    key = (values.get("model_name", ""), values.get("engine") or "0", replica)
    return Labels(MappingProxyType(values), key, "engine" in values)


_remembered_labels = lru_cache(maxsize=4_096)(_parse_labels)


def number(text: str | None) -> float | None:
    """Label values are Python's `str()` of a setting: numbers, "None", "auto", "True"."""
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def whole(text: str | None) -> int | None:
    """A number of things: None unless it is above zero."""
    value = number(text)
    return int(value) if value is not None and value >= 1 else None
