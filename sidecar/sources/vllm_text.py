"""Reads the text of vLLM's `/metrics`: pure, cheap, and never surprised by what it gets.

A busy server's page has 50 to 500 kB of which some twenty series matter here, so a line is
looked at only when its exact name is wanted. Label text goes through prometheus-client's own
parser; because it repeats from poll to poll, results are kept in a bounded memo.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from prometheus_client.parser import parse_labels

from sidecar.model import CacheConfig, EngineReading, Histogram, LoraAdapters, ServerReading
from sidecar.sources.releases import Release, sums_blocks_over_engines
from sidecar.sources.series import HISTOGRAM_SUFFIXES, PREFIXES, SERIES, Series

Labels = Mapping[str, str]
EngineKey = tuple[str, str]

MAX_LABEL_CHARACTERS = 65_536
"""Longer label text is refused as invalid: real pages stay below 4,000."""
_MEMO_CHARACTERS = 4_096
"""Label text beyond this is parsed each time, so the memo never exceeds entries x characters."""

_SAMPLE = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    r'(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"[ \t]+([^\s#]+)(?:[ \t]+-?\d+)?[ \t]*(?:#.*)?$",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    series: Series
    prefix: str
    name: str
    alias: int
    suffix: str


def _wanted_samples() -> dict[str, _Wanted]:
    return {
        prefix + name + suffix: _Wanted(series, prefix, name, alias, suffix)
        for series in SERIES
        for alias, name in enumerate(series.names)
        for prefix in PREFIXES
        for suffix in (HISTOGRAM_SUFFIXES if series.kind == "histogram" else ("",))
    }


def _wanted_families() -> dict[str, Series]:
    """Names as they stand in `# TYPE` lines, where a histogram part is named by its family."""
    families: dict[str, Series] = {}
    for series in SERIES:
        for name in series.names:
            family = re.sub(r"_(count|sum)$", "", name)
            for prefix in PREFIXES:
                families[prefix + family] = series
    return families


_WANTED = _wanted_samples()
_FAMILIES = _wanted_families()


@dataclass(slots=True)
class _Collected:
    """Raw samples by series and alias, before engines are told apart."""

    samples: dict[str, dict[int, list[tuple[str, Labels, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    declared: set[str] = field(default_factory=set)
    invalid: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    prefixes: set[str] = field(default_factory=set)
    process_start_seconds: float | None = None


def read_page(text: str, release: Release | None = None) -> ServerReading:
    """Understand a page. Never raises: what cannot be used is counted in `invalid`.

    `release` sharpens what is expected and how block counts are divided among engines.
    """
    collected = _collect(text)
    engines, kv_usage_alias = _engines(collected, release)
    absent = [
        series
        for series in SERIES
        if series.since is not None
        and series.stable not in collected.samples
        and series.stable not in collected.invalid
        and _is_expected(series, release)
    ]
    stepping = any(engine.prompt_tokens_total for engine in engines)
    # Several API servers share a folder of gauges that exist only once a step has set them
    # (vLLM 0.9.1 and later); such pages carry no process_* series.
    may_be_pending = bool(engines or collected.declared) and (
        collected.process_start_seconds is None and not stepping
    )
    pending = [
        series.stable
        for series in absent
        if may_be_pending and series.kind == "gauge" and series.stable not in collected.declared
    ]
    return ServerReading(
        engines=engines,
        process_start_seconds=collected.process_start_seconds,
        name_prefix=next((p for p in PREFIXES if p in collected.prefixes), None),
        kv_usage_name=kv_usage_alias,
        missing=tuple(
            series.stable
            for series in absent
            if series.stable not in pending and series.stable not in collected.declared
        ),
        pending=tuple(pending),
        empty=tuple(
            series.stable
            for series in SERIES
            if series.stable in collected.declared and series.stable not in collected.samples
        ),
        invalid=dict(collected.invalid),
        lora=_lora(collected.samples.get("lora", {}).get(0, [])),
    )


def _is_expected(series: Series, release: Release | None) -> bool:
    assert series.since is not None  # noqa: S101 - the caller has checked
    return series.since <= (release if release is not None else (0, 2, 3))


def _collect(text: str) -> _Collected:
    collected = _Collected()
    for line in text.split("\n"):
        if line.startswith("#"):
            if line.startswith("# TYPE "):
                series = _FAMILIES.get(line[7:].partition(" ")[0])
                if series is not None:
                    collected.declared.add(series.stable)
            continue
        brace = line.find("{")
        name = (line if brace < 0 else line[:brace]).split(None, 1)[:1]
        wanted = _WANTED.get(name[0]) if name else None
        if wanted is not None:
            _take(collected, wanted, line)
        elif name and name[0] == "process_start_time_seconds":
            sample = _sample(line)
            if sample is not None and math.isfinite(sample[1]):
                collected.process_start_seconds = sample[1]
    return collected


def _take(collected: _Collected, wanted: _Wanted, line: str) -> None:
    series = wanted.series
    sample = _sample(line)
    if sample is None or not 0.0 <= sample[1] <= series.upper or math.isinf(sample[1]):
        collected.invalid[series.stable] += 1
        return
    labels, value = sample
    collected.prefixes.add(wanted.prefix)
    collected.samples[series.stable][wanted.alias].append((wanted.suffix, labels, value))


def _sample(line: str) -> tuple[Labels, float] | None:
    found = _SAMPLE.match(line.rstrip("\r"))
    if found is None:
        return None
    raw, number = found.groups(default="")
    if "_" in number or len(raw) > MAX_LABEL_CHARACTERS:  # float() would accept 1_000
        return None
    try:
        value = float(number)
        labels = _remembered_labels(raw) if len(raw) <= _MEMO_CHARACTERS else _labels(raw)
    except ValueError:
        return None
    return labels, value


def _labels(raw: str) -> Labels:
    return MappingProxyType(parse_labels(raw))


_remembered_labels = lru_cache(maxsize=4_096)(_labels)


def _engine_key(labels: Labels) -> EngineKey:
    """Releases without an `engine` label have one engine, which is number 0."""
    return (labels.get("model_name", ""), labels.get("engine", "0"))


def _engines(
    collected: _Collected, release: Release | None
) -> tuple[tuple[EngineReading, ...], str | None]:
    values: dict[EngineKey, dict[str, float]] = defaultdict(dict)
    by_reason: dict[EngineKey, dict[str, float]] = defaultdict(dict)
    histograms: dict[EngineKey, dict[str, Histogram]] = defaultdict(dict)
    sleeping: dict[EngineKey, bool] = {}
    engine_label = False
    kv_usage_name: str | None = None
    for series in SERIES:
        aliases = collected.samples.get(series.stable)
        if not aliases or series.kind == "info":
            continue
        alias = min(aliases)
        samples = aliases[alias]
        engine_label = engine_label or any("engine" in labels for _, labels, _ in samples)
        if series.stable == "kv_usage_ratio":
            kv_usage_name = series.names[alias]
        if series.kind == "histogram":
            for key, histogram in _histograms(samples).items():
                histograms[key][series.stable] = histogram
        elif series.stable == "waiting_by_reason":
            for _, labels, value in samples:
                by_reason[_engine_key(labels)][labels.get("reason", "")] = value
        elif series.stable == "sleep_state":
            for _, labels, value in samples:
                if labels.get("sleep_state") == "awake":
                    sleeping[_engine_key(labels)] = value == 0.0
        else:
            for key, number in _combined(series, samples, collected.invalid).items():
                values[key][series.stable] = number
    keys = sorted({*values, *by_reason, *histograms, *sleeping})
    configs = collected.samples.get("cache_config", {}).get(0, [])
    readings = tuple(
        _engine(
            key,
            values[key],
            by_reason[key],
            histograms[key],
            sleeping.get(key),
            _cache_config(key, configs, len(keys), release),
            engine_label,
        )
        for key in keys
    )
    return readings, kv_usage_name


def _combined(
    series: Series, samples: Iterable[tuple[str, Labels, float]], invalid: dict[str, int]
) -> dict[EngineKey, float]:
    """One value an engine.

    Outcomes of finished requests are summed. vLLM 0.9.2 to 0.11.0 shows a gauge once for each
    API-server process under a `pid` label, all but one of them stale: the largest is taken.
    Otherwise two series of one engine that disagree are invalid and neither is believed.
    """
    grouped: dict[EngineKey, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, labels, value in samples:
        part = labels.get("finished_reason", "") if series.stable == "finished_total" else ""
        if "pid" in labels:
            part = "pid"
        grouped[_engine_key(labels)][part].append(value)
    combined: dict[EngineKey, float] = {}
    for key, parts in grouped.items():
        if any(len(set(found)) > 1 for part, found in parts.items() if part != "pid"):
            invalid[series.stable] += 1
            continue
        combined[key] = sum(max(found) for found in parts.values())
    return combined


def _histograms(samples: Iterable[tuple[str, Labels, float]]) -> dict[EngineKey, Histogram]:
    buckets: dict[EngineKey, dict[float, float]] = defaultdict(dict)
    sums: dict[EngineKey, float] = {}
    counts: dict[EngineKey, float] = {}
    for suffix, labels, value in samples:
        key = _engine_key(labels)
        if suffix == "_sum":
            sums[key] = value
        elif suffix == "_count":
            counts[key] = value
        else:
            try:
                buckets[key][float(labels.get("le", ""))] = value
            except ValueError:
                continue
    return {
        key: Histogram(tuple(sorted(buckets[key].items())), sums[key], counts[key])
        for key in counts
        if key in sums
    }


def _engine(
    key: EngineKey,
    values: Mapping[str, float],
    by_reason: Mapping[str, float],
    histograms: Mapping[str, Histogram],
    sleeping: bool | None,
    cache: CacheConfig | None,
    engine_label: bool,
) -> EngineReading:
    waiting = values.get("waiting")
    if waiting is not None:
        waiting += values.get("swapped", 0.0)
    return EngineReading(
        model_name=key[0],
        engine=key[1],
        engine_label=engine_label,
        kv_usage_ratio=values.get("kv_usage_ratio"),
        running=values.get("running"),
        waiting=waiting,
        waiting_by_reason=dict(by_reason),
        preemptions_total=values.get("preemptions_total"),
        prompt_tokens_total=values.get("prompt_tokens_total"),
        generation_tokens_total=values.get("generation_tokens_total"),
        finished_total=values.get("finished_total"),
        first_tokens_total=values.get("first_tokens_total"),
        finished_prompt_tokens_total=values.get("finished_prompt_tokens_total"),
        finished_generation_tokens_total=values.get("finished_generation_tokens_total"),
        prefix_queries_total=values.get("prefix_queries_total"),
        prefix_hits_total=values.get("prefix_hits_total"),
        iteration_tokens=histograms.get("iteration_tokens"),
        queue_seconds=histograms.get("queue_seconds"),
        sleeping=sleeping,
        cache=cache,
    )


def _cache_config(
    key: EngineKey,
    samples: Iterable[tuple[str, Labels, float]],
    engine_count: int,
    release: Release | None,
) -> CacheConfig | None:
    configs = {labels.get("engine"): labels for _, labels, _ in samples}
    labels = configs.get(key[1], configs.get(None))
    if labels is None:
        return None
    blocks = _whole(labels.get("num_gpu_blocks"))
    if blocks is not None and "engine" in labels and sums_blocks_over_engines(release):
        blocks //= engine_count
    return CacheConfig(
        block_size=_whole(labels.get("block_size")),
        num_gpu_blocks=blocks,
        kv_cache_size_tokens=_whole(labels.get("kv_cache_size_tokens")),
        kv_cache_memory_bytes=_whole(labels.get("kv_cache_memory_bytes")),
        num_gpu_blocks_override=_whole(labels.get("num_gpu_blocks_override")),
        gpu_memory_utilization=_number(labels.get("gpu_memory_utilization")),
        labels=labels,
    )


def _lora(samples: Iterable[tuple[str, Labels, float]]) -> LoraAdapters | None:
    """The newest series counts: vLLM adds one for each set of adapters, its value the unix time."""
    newest = max(samples, key=lambda sample: sample[2], default=None)
    if newest is None:
        return None
    labels = newest[1]
    most = _whole(labels.get("max_lora"))
    if most is None:
        return None
    running, waiting = (
        tuple(name for name in labels.get(label, "").split(",") if name)
        for label in ("running_lora_adapters", "waiting_lora_adapters")
    )
    return LoraAdapters(most, running, waiting)


def _number(text: str | None) -> float | None:
    """Label values are Python's `str()` of a setting: numbers, "None", "auto", "True"."""
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return int(value) if value is not None and value > 0 else None
