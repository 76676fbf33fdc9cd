"""vLLM's metrics by release: the file `metric_table.tsv`, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

from sidecar.sources.releases import Release

Kind = Literal["counter", "gauge", "histogram"]
Span = tuple[Release, Release]

NEWEST: Release = (0, 33, 0)
"""The newest release in the table; what is asked about later ones is answered for this one."""
_V0_GONE: Release = (0, 11, 0)
_V0_DEFAULT: Release = (0, 8, 0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, by its name without `vllm:`."""

    name: str
    kind: Kind
    unit: str
    v0: Span | None
    v1: Span | None
    deprecated: Release | None
    hidden: Release | None
    successor: str | None
    extra_labels: frozenset[str]
    missing_labels: frozenset[str]
    has_open_labels: bool

    def exists(self, release: Release) -> bool:
        """Whether a server of that release can show it."""
        if self.v0 is not None and release < _V0_GONE and _within(release, self.v0):
            return True
        return self.v1 is not None and _within(release, self.v1)

    def is_of_other_engine(self, release: Release) -> bool:
        """Whether it only exists if somebody chose V0, the engine that is not the default."""
        shown_by_v1 = self.v1 is not None and _within(release, self.v1)
        return release >= _V0_DEFAULT and not shown_by_v1 and self.exists(release)

    def is_hidden(self, release: Release) -> bool:
        return self.hidden is not None and release >= self.hidden

    def is_deprecated(self, release: Release) -> bool:
        return self.deprecated is not None and release >= self.deprecated

    @property
    def first(self) -> Release:
        return min(span[0] for span in (self.v0, self.v1) if span is not None)

    @property
    def last(self) -> Release:
        return max(span[1] for span in (self.v0, self.v1) if span is not None)

    @property
    def labels(self) -> frozenset[str]:
        """The labels that vLLM gives it."""
        return (frozenset({"model_name", "engine"}) | self.extra_labels) - self.missing_labels


@cache
def table() -> dict[str, Metric]:
    """Every metric by its name without `vllm:`."""
    text = files("sidecar.rule_check").joinpath("metric_table.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0]: _metric(row) for row in rows[1:]}


def _within(release: Release, span: Span) -> bool:
    """A range that ends with the newest release of the table has not ended."""
    return span[0] <= release and (release <= span[1] or span[1] == NEWEST)


def _metric(row: list[str]) -> Metric:
    name, kind, unit, v0, v1, deprecated, hidden, successor, labels = row
    words = [] if labels == "-" else labels.split()
    return Metric(
        name,
        cast(Kind, kind),
        unit,
        _span(v0),
        _span(v1),
        None if deprecated == "-" else _release(deprecated),
        None if hidden == "-" else _release(hidden),
        None if successor == "-" else successor,
        frozenset(word for word in words if word[0] not in "-+"),
        frozenset(word[1:] for word in words if word[0] == "-"),
        "+" in words,
    )


def _span(text: str) -> Span | None:
    if text == "-":
        return None
    first, last = text.split("-")
    return _release(first), _release(last)


def _release(text: str) -> Release:
    major, minor, patch = text.split(".")
    return int(major), int(minor), int(patch)
