"""Reads the text of vLLM's `/metrics`: pure, cheap, and never surprised by what it gets.

A busy server's page has 50 to 500 kB of which some twenty series matter here, so a line is
looked at only when its exact name is wanted. Four states stay apart: absent, declared without
samples, invalid, and a value, zero included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sidecar.model import EngineReading, ServerReading
from sidecar.sources.awaited import Moment
from sidecar.sources.engine_readings import build_engines
from sidecar.sources.info_labels import read_lora
from sidecar.sources.page_reason import find_reason
from sidecar.sources.release_table import engine_kind, expected, sample_names
from sidecar.sources.releases import Release
from sidecar.sources.sample_text import MAX_LABEL_CHARACTERS, EngineKey, RawSample, parse_sample
from sidecar.sources.series import PREFIXES, SERIES, V0_MARKS, Series

__all__ = ["MAX_LABEL_CHARACTERS", "MOST_ENGINES", "read_page"]

MOST_ENGINES = 1_024
"""Samples of engines beyond this many are refused as invalid, whatever a page claims."""

_BY_STABLE = {series.stable: series for series in SERIES}
_BLANK = (" ", "\t", "")
_START_TIME = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A sample name that is looked for. `series` is None for a name that only tells the kind of
    engine."""

    prefix: str
    name: str
    series: Series | None = None
    alias: int = 0
    suffix: str = ""


def _wanted_samples() -> dict[str, _Wanted]:
    """Ray before 2.10 exports a counter as a gauge without suffix, and later both, for those who
    still look for it. That name comes after all others, so it never counts beside its twin."""
    wanted = {}
    for prefix in PREFIXES:
        for mark in V0_MARKS:
            wanted[prefix + mark] = _Wanted(prefix, mark)
        for series in SERIES:
            for definition in series.definitions:
                alias = series.names.index(definition.name)
                for name in sample_names(series, definition):
                    suffix = name.removeprefix(definition.name)
                    wanted[prefix + name] = _Wanted(prefix, name, series, alias, suffix)
            if prefix.startswith("ray_") and series.kind == "counter":
                for alias, name in enumerate(series.names, len(series.names)):
                    twin = prefix + name.removesuffix("_total")
                    wanted.setdefault(twin, _Wanted(prefix, name, series, alias))
    return wanted


def _wanted_families() -> dict[str, tuple[str, str]]:
    """Prefix and stable name by the name in a `# TYPE` line: that of a histogram for its parts,
    and in OpenMetrics that of a counter without `_total`."""
    families: dict[str, tuple[str, str]] = {}
    for prefix in PREFIXES:
        for series in SERIES:
            for name in series.names:
                family = name.removesuffix("_count").removesuffix("_sum")
                families[prefix + family] = (prefix, series.stable)
                if series.kind == "counter":
                    families.setdefault(
                        prefix + family.removesuffix("_total"), (prefix, series.stable)
                    )
    return families


_WANTED = _wanted_samples()
_FAMILIES = _wanted_families()


@dataclass(slots=True)
class _Collected:
    """What stands under one prefix, before engines are told apart."""

    prefix: str
    samples: dict[str, dict[int, list[RawSample]]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    invalid: dict[str, int] = field(default_factory=dict)
    engines: set[EngineKey] = field(default_factory=set)

    @property
    def seen(self) -> set[str]:
        """Stable names of which there is a sample, usable or not."""
        return self.samples.keys() | self.invalid.keys()

    def take(self, wanted: _Wanted, line: str) -> None:
        """Add the sample of a line, or count it as invalid."""
        series = wanted.series
        if series is None:
            self.names.add(wanted.name)
            return
        sample = parse_sample(line)
        if sample is not None:
            labels, value = sample
            key = labels.key
            if key not in self.engines and len(self.engines) < MOST_ENGINES:
                self.engines.add(key)
            if 0.0 <= value <= series.upper and not math.isinf(value) and key in self.engines:
                self.names.add(wanted.name)
                by_alias = self.samples.setdefault(series.stable, {})
                by_alias.setdefault(wanted.alias, []).append((wanted.suffix, labels, value))
                return
        self.invalid[series.stable] = self.invalid.get(series.stable, 0) + 1


def read_page(text: str, release: Release | None = None) -> ServerReading:
    """Understand a page. Never raises: what cannot be used is counted in `invalid`.

    `release` sharpens what is expected and how block counts are divided among engines. Where
    series stand under several prefixes, those of the prefix with most of them are read.
    """
    by_prefix, process_start = _collect(text)
    found = max(by_prefix.values(), key=_weight, default=_Collected(""))
    engines = build_engines(found.samples, found.invalid, release)
    missing, pending, empty = _without_samples(found, engines, process_start is not None, release)
    usage = found.samples.get("kv_usage_ratio")
    return ServerReading(
        engines=engines,
        process_start_seconds=process_start,
        name_prefix=found.prefix if found.samples else None,
        kv_usage_name=_BY_STABLE["kv_usage_ratio"].names[min(usage)] if usage else None,
        missing=missing,
        pending=pending,
        empty=empty,
        invalid=found.invalid,
        lora=read_lora(found.samples.get("lora", {}).get(0, ())),
        reason=find_reason(
            text,
            has_engines=bool(engines),
            missing=missing,
            pending=pending,
            empty=empty,
            release=release,
        ),
    )


def _without_samples(
    found: _Collected,
    engines: tuple[EngineReading, ...],
    single_process: bool,
    release: Release | None,
) -> tuple[tuple[str, ...], ...]:
    """What the page should show and lacks, what is still to come, and what it only declares."""
    kind = engine_kind(
        found.names,
        engine_label=any(engine.engine_label for engine in engines),
        release=release,
    )
    on_ray = found.prefix.startswith("ray_")
    moment = Moment(kind, on_ray, single_process, engines, found.samples.keys())
    seen = found.seen | ({"waiting"} if any(e.waiting is not None for e in engines) else set())
    wanted = expected(release, kind, on_ray=on_ray)
    missing: list[str] = []
    pending: list[str] = []
    empty: list[str] = []
    for stable, series in _BY_STABLE.items():
        if stable in seen:
            continue
        if stable in found.declared:
            (pending if moment.awaits_samples(series) else empty).append(stable)
        elif stable in wanted:
            awaited = bool(found.prefix) and moment.awaits(series, wanted[stable])
            (pending if awaited else missing).append(stable)
    return tuple(missing), tuple(pending), tuple(empty)


def _weight(found: _Collected) -> tuple[int, int, int, int]:
    """The prefix with most series, then most refused and declared ones, then the usual one."""
    order = -PREFIXES.index(found.prefix)
    return (len(found.samples), len(found.invalid), len(found.declared), order)


def _collect(text: str) -> tuple[dict[str, _Collected], float | None]:
    """Raw samples by prefix, and when the process started."""
    by_prefix: dict[str, _Collected] = {}
    start: float | None = None
    for line in text.split("\n"):
        first = line[:1]
        if first == "#":
            if "TYPE" in line[:16]:
                declared = _declared(line)
                if declared is not None:
                    prefix, stable = declared
                    by_prefix.setdefault(prefix, _Collected(prefix)).declared.add(stable)
            continue
        brace = line.find("{")
        head = line[:brace] if brace >= 0 else line
        wanted = _WANTED.get(head)
        if wanted is None and (brace < 0 or head[-1:] in _BLANK or first in _BLANK):
            name = head.split(None, 1)[:1]
            wanted = _WANTED.get(name[0]) if name else None
            if name == [_START_TIME]:
                sample = parse_sample(line)
                start = sample[1] if sample is not None and math.isfinite(sample[1]) else start
        if wanted is not None:
            by_prefix.setdefault(wanted.prefix, _Collected(wanted.prefix)).take(wanted, line)
    return by_prefix, start


def _declared(line: str) -> tuple[str, str] | None:
    """Prefix and stable name of a `# TYPE` line's family, if it is one that is read."""
    words = line.split(None, 3)
    return _FAMILIES.get(words[2]) if words[:2] == ["#", "TYPE"] and len(words) > 2 else None
