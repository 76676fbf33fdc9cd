"""What vLLM says in labels alone: the cache's configuration and the LoRA adapters.

Label values are Python's `str()` of a setting, and which labels there are changes with nearly every
release (0.3.3 to 0.33.0): they are read by name, and all of them are kept as text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from sidecar.model import CacheConfig, LoraAdapters
from sidecar.sources.releases import Release, sums_blocks_over_engines
from sidecar.sources.sample_text import EngineKey, Labels, RawSample, number, whole


def cache_configs(
    configs: Sequence[Labels], keys: Iterable[EngineKey], release: Release | None
) -> Callable[[EngineKey], CacheConfig | None]:
    """The configuration of each engine: its own, or that of its replica, or the page's only one.

    It has no model's name. Block counts are shared out among the engines of one server.
    """
    own = {
        (labels.key[1] if labels.names_engine else None, labels.key[2]): labels
        for labels in configs
    }
    engines: dict[str, set[str]] = defaultdict(set)
    for _, engine, replica in keys:
        engines[replica].add(engine)

    def config_of(key: EngineKey) -> CacheConfig | None:
        _, engine, replica = key
        for which in ((engine, replica), (None, replica), (engine, ""), (None, "")):
            if which in own:
                labels = own[which]
                shared = labels.names_engine and sums_blocks_over_engines(release)
                return _cache_config(labels, len(engines[replica]) if shared else 1)
        return None

    return config_of


def _cache_config(labels: Labels, engines: int) -> CacheConfig:
    values = labels.values
    blocks = whole(values.get("num_gpu_blocks"))
    return CacheConfig(
        block_size=whole(values.get("block_size")),
        num_gpu_blocks=None if blocks is None else blocks // engines,
        kv_cache_size_tokens=whole(values.get("kv_cache_size_tokens")),
        kv_cache_memory_bytes=whole(values.get("kv_cache_memory_bytes")),
        num_gpu_blocks_override=whole(values.get("num_gpu_blocks_override")),
        gpu_memory_utilization=number(values.get("gpu_memory_utilization")),
        labels=values,
    )


def read_lora(samples: Iterable[RawSample]) -> LoraAdapters | None:
    """The newest series counts: vLLM adds one for each set of adapters, its value the unix time."""
    newest = max(samples, key=lambda sample: sample[2], default=None)
    if newest is None:
        return None
    values = newest[1].values
    most = whole(values.get("max_lora"))
    if most is None:
        return None
    running, waiting = (
        tuple(name for name in values.get(label, "").split(",") if name)
        for label in ("running_lora_adapters", "waiting_lora_adapters")
    )
    return LoraAdapters(most, running, waiting)
