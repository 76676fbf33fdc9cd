"""From the samples of a page to its engines, each under one key.

`engine` stays what vLLM gave. Only where several servers share the page (replicas on Ray's
exporter, servers behind a router) and two of them have an engine of the same model and number,
the engine is called `NUMBER/REPLICA`, so that neither is added to the other or lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.model import CacheConfig, EngineReading, Histogram
from sidecar.sources.info_labels import cache_configs
from sidecar.sources.releases import Release, counts_prefix_in_blocks
from sidecar.sources.sample_text import EngineKey, RawSample
from sidecar.sources.series import SERIES, Series

_Samples = Mapping[str, Mapping[int, Sequence[RawSample]]]

_FIELDS = (
    "kv_usage_ratio",
    "running",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
    "first_tokens_total",
    "finished_prompt_tokens_total",
    "finished_generation_tokens_total",
)
"""Single values that go from page to reading as they are."""


@dataclass(slots=True)
class _Engine:
    """What was found of one engine."""

    values: dict[str, float] = field(default_factory=dict)
    by_reason: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    sleeping: bool | None = None


def build_engines(
    samples: _Samples, invalid: dict[str, int], release: Release | None
) -> tuple[EngineReading, ...]:
    """All engines, sorted. `samples` are by stable name and alias; of several aliases the first,
    which is the newest name, counts alone. What contradicts itself is added to `invalid`."""
    found: dict[EngineKey, _Engine] = defaultdict(_Engine)
    engine_label = False
    for series in SERIES:
        aliases = samples.get(series.stable)
        if not aliases or series.kind == "info":
            continue
        own = aliases[min(aliases)]
        engine_label = engine_label or any(labels.names_engine for _, labels, _ in own)
        if series.kind == "histogram":
            for key, histogram in _histograms(own).items():
                found[key].histograms[series.stable] = histogram
        elif series.stable == "waiting_by_reason":
            for _, labels, value in own:
                found[labels.key].by_reason[labels.values.get("reason", "")] = value
        elif series.stable == "sleep_state":
            for _, labels, value in own:
                if labels.values.get("sleep_state") == "awake":
                    found[labels.key].sleeping = value == 0.0
        else:
            for key, value in _combined(series, own, invalid).items():
                found[key].values[series.stable] = value
    configs = [labels for _, labels, _ in samples.get("cache_config", {}).get(0, ())]
    config_of = cache_configs(configs, found, release)
    in_blocks = _is_older_prefix_name(samples) and counts_prefix_in_blocks(
        release, config_names_engine=any(labels.names_engine for labels in configs)
    )
    names = _names(found)
    return tuple(
        _reading(names[key], found[key], config_of(key), engine_label, in_blocks, invalid)
        for key in sorted(found, key=names.__getitem__)
    )


def _is_older_prefix_name(samples: _Samples) -> bool:
    """Whether prefix-cache figures come from `gpu_prefix_cache_*`, the second of the names."""
    aliases = samples.get("prefix_queries_total") or samples.get("prefix_hits_total")
    return aliases is not None and min(aliases) == 1


def _names(keys: Iterable[EngineKey]) -> dict[EngineKey, tuple[str, str]]:
    """Model and engine as they are published."""
    replicas: dict[tuple[str, str], set[str]] = defaultdict(set)
    for model, engine, replica in keys:
        replicas[model, engine].add(replica)
    return {
        (model, engine, replica): (
            model,
            f"{engine}/{replica}" if replica and len(replicas[model, engine]) > 1 else engine,
        )
        for model, engine, replica in keys
    }


def _combined(
    series: Series, samples: Iterable[RawSample], invalid: dict[str, int]
) -> dict[EngineKey, float]:
    """One value an engine.

    Outcomes of finished requests are summed. vLLM 0.9.2 to 0.11.0 shows a gauge once for each
    API-server process under a `pid` label, all but one of them stale: the largest is taken.
    Otherwise two series of one engine that disagree are invalid and neither is believed.
    """
    grouped: dict[EngineKey, dict[str, set[float]]] = defaultdict(dict)
    sums = series.stable == "finished_total"
    for _, labels, value in samples:
        part = labels.values.get("finished_reason", "") if sums else ""
        if "pid" in labels.values:
            part = "pid"
        grouped[labels.key].setdefault(part, set()).add(value)
    combined: dict[EngineKey, float] = {}
    for key, parts in grouped.items():
        if any(len(found) > 1 for part, found in parts.items() if part != "pid"):
            invalid[series.stable] = invalid.get(series.stable, 0) + 1
            continue
        combined[key] = sum(max(found) for found in parts.values())
    return combined


def _histograms(samples: Iterable[RawSample]) -> dict[EngineKey, Histogram]:
    buckets: dict[EngineKey, dict[float, float]] = defaultdict(dict)
    sums: dict[EngineKey, float] = {}
    counts: dict[EngineKey, float] = {}
    for suffix, labels, value in samples:
        key = labels.key
        if suffix == "_sum":
            sums[key] = value
        elif suffix == "_count":
            counts[key] = value
        else:
            try:
                bound = float(labels.values.get("le", ""))
            except ValueError:
                continue
            if bound == bound:  # a bound of NaN is none, and cannot be sorted
                buckets[key][bound] = value
    return {
        key: Histogram(tuple(sorted(buckets[key].items())), sums[key], counts[key])
        for key in counts
        if key in sums
    }


def _reading(
    name: tuple[str, str],
    found: _Engine,
    cache: CacheConfig | None,
    engine_label: bool,
    in_blocks: bool,
    invalid: Mapping[str, int],
) -> EngineReading:
    values = found.values
    waiting = values.get("waiting")
    if waiting is None and found.by_reason and "waiting_by_reason" not in invalid:
        waiting = sum(found.by_reason.values())
    if waiting is not None:
        waiting += values.get("swapped", 0.0)
    unit = cache.block_size if in_blocks and cache is not None and cache.block_size else 1
    queries, hits = (values.get(f"prefix_{what}_total") for what in ("queries", "hits"))
    return EngineReading(
        model_name=name[0],
        engine=name[1],
        engine_label=engine_label,
        waiting=waiting,
        waiting_by_reason=found.by_reason,
        prefix_queries_total=None if queries is None else queries * unit,
        prefix_hits_total=None if hits is None else hits * unit,
        iteration_tokens=found.histograms.get("iteration_tokens"),
        queue_seconds=found.histograms.get("queue_seconds"),
        sleeping=found.sleeping,
        cache=cache,
        **{name: values.get(name) for name in _FIELDS},
    )
