"""Questions about the release table of `series.py`: what a release shows, and what must be there.

Where V0 and V1 engines can both be had (0.7.1 to 0.10.2) the page tells which one runs: V1 names
its engines from 0.8.3 on, and each kind has names that the other never had. Where that stays open,
only what both show is expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from sidecar.sources.releases import Release
from sidecar.sources.series import (
    HISTOGRAM_SUFFIXES,
    NEWEST,
    SERIES,
    V0_MARKS,
    Definition,
    EngineKind,
    Series,
)

FIRST: dict[EngineKind, Release] = {"V0": (0, 2, 3), "V1": (0, 7, 1)}
"""The first release with a metrics page, by kind of engine."""
_V0_GONE: Release = (0, 11, 0)
_ENGINE_LABEL: Release = (0, 8, 3)


def engine_kinds(release: Release | None) -> tuple[EngineKind, ...]:
    """The kinds of engine that can run in a release."""
    if release is None:
        return ("V0", "V1")
    if release < FIRST["V1"]:
        return ("V0",)
    return ("V1",) if release >= _V0_GONE else ("V0", "V1")


def engine_kind(
    names: Iterable[str], *, engine_label: bool, release: Release | None
) -> EngineKind | None:
    """The kind of engine behind a page that shows these sample names; None where it stays open."""
    if engine_label:
        return "V1"
    shown = set(names)
    if shown & set(V0_MARKS):
        return "V0"
    if shown & _v1_names():
        return "V1"
    kinds = engine_kinds(release)
    if len(kinds) == 1:
        return kinds[0]
    return "V0" if release is not None and release >= _ENGINE_LABEL else None


@cache
def _v1_names() -> frozenset[str]:
    """Sample names that V0 engines never had."""
    names: dict[EngineKind, set[str]] = {"V0": set(), "V1": set()}
    for series in SERIES:
        for definition in series.definitions:
            names[definition.kind].update(sample_names(series, definition))
    return frozenset(names["V1"] - names["V0"])


def sample_names(series: Series, definition: Definition) -> tuple[str, ...]:
    """The exact names of its samples, without prefix."""
    suffixes = HISTOGRAM_SUFFIXES if series.kind == "histogram" else ("",)
    return tuple(definition.name + suffix for suffix in suffixes)


def is_defined(definition: Definition, release: Release) -> bool:
    """Whether the release has it, shown or hidden."""
    return definition.first <= release and (definition.gone is None or release < definition.gone)


def is_shown(definition: Definition, release: Release) -> bool:
    """Whether the release shows it without being asked to."""
    hidden = definition.hidden is not None and release >= definition.hidden
    return is_defined(definition, release) and not hidden and definition.appears != "asked"


def shown_by(series: Series, release: Release, kind: EngineKind) -> tuple[Definition, ...]:
    """Under which names this kind of engine shows the quantity in this release, newest first."""
    return tuple(d for d in series.definitions if d.kind == kind and is_shown(d, release))


@cache
def expected(
    release: Release | None, kind: EngineKind | None, *, on_ray: bool = False
) -> dict[str, Definition]:
    """By stable name, what a page must show, sooner or later, and as what.

    Of an unknown release it is what every release shows, of an unknown kind what both do.
    """
    kinds = engine_kinds(release)
    if kind is not None and kind in kinds:
        kinds = (kind,)
    if release is None:
        kinds = ("V0", "V1")
    asked = {each: _releases(release, each) for each in kinds}
    found: dict[str, Definition] = {}
    for series in SERIES:
        if not series.needed:
            continue
        shown = [shown_by(series, at, each) for each, releases in asked.items() for at in releases]
        if all(any(d.on_ray or not on_ray for d in each) for each in shown):
            found[series.stable] = shown[-1][0]
    return found


def _releases(release: Release | None, kind: EngineKind) -> list[Release]:
    """The release itself; of an unknown one all at which something changed."""
    return [release] if release is not None else turning_points(kind)


def turning_points(kind: EngineKind) -> list[Release]:
    """The releases at which what this kind of engine shows changed, in order."""
    changes = {
        change
        for series in SERIES
        for definition in series.definitions
        if definition.kind == kind
        for change in (definition.first, definition.gone, definition.hidden)
        if change is not None
    }
    first, last = FIRST[kind], NEWEST if kind == "V1" else _V0_GONE
    return sorted(change for change in changes if first <= change < last)
