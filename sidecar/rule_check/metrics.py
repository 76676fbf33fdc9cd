"""What a name in an expression stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sidecar.rule_check.metric_table import Metric, table

Part = Literal["", "_bucket", "_sum", "_count", "_created"]
_PARTS: tuple[Part, ...] = ("_bucket", "_sum", "_count", "_created")
_PREFIX = re.compile(r"ray_vllm[:_]|vllm[:_]")
# Series of other programs whose names begin like vLLM's: this sidecar, routers and their kin.
_FOREIGN = re.compile(
    r"vllm_sidecar_|vllm[:_](?:router|omni|semantic_router)_|vllm:(?:current_qps|healthy_pods_total|"
    r"avg_decoding_length|num_(?:prefill|decoding)_requests|avg_(?:latency|itl))$"
)
# Series of connectors and plug-ins, which come and go faster than a table of releases.
_OPEN_FAMILIES = (
    "kv_offload_",
    "simple_kv_offload_",
    "nixl_",
    "mooncake_",
    "hf3fs_",
    "hisparse_",
    "umbp_",
    "rl_",
    "websocket_",
    "sleep_mode_",
)


@dataclass(frozen=True, slots=True)
class Use:
    """A name in an expression, taken apart.

    `stem` is the name without its prefix. `metric` is None where vLLM has never had such a name;
    then `meant` may say which one was probably meant, as a stem.
    """

    prefix: str
    stem: str
    metric: Metric | None
    part: Part
    meant: str | None = None

    @property
    def right_prefix(self) -> str:
        """The prefix that the server or Ray really has."""
        return "vllm:" if self.prefix == "vllm_" else self.prefix

    @property
    def is_counter(self) -> bool:
        """Whether the values only grow: a counter, or a part of a histogram."""
        if self.metric is None or self.part == "_created":
            return False
        return self.metric.kind == "counter" or self.part in ("_bucket", "_sum", "_count")

    @property
    def is_gauge(self) -> bool:
        return self.metric is not None and self.metric.kind == "gauge"


def use_of(name: str) -> Use | None:
    """What a name stands for; None if it is not one of vLLM's."""
    prefix = _PREFIX.match(name)
    if prefix is None or _FOREIGN.match(name):
        return None
    stem = name[prefix.end() :]
    # More colons: a rule has recorded it, under a name that its author chose.
    if ":" in stem or (stem.startswith(_OPEN_FAMILIES) and _find(stem) is None):
        return None
    found = _find(stem)
    if found is not None:
        return Use(prefix[0], stem, *found)
    return Use(prefix[0], stem, None, "", meant(stem))


def sample_names() -> dict[str, Use]:
    """Every sample that vLLM can show, with its prefix."""
    shown = {}
    for metric in table().values():
        base = f"vllm:{metric.name}"
        names = [base]
        if metric.kind == "histogram":
            names = [base + part for part in _PARTS]
        elif metric.kind == "counter":
            names.append(f"{base.removesuffix('_total')}_created")
        for name in names:
            use = use_of(name)
            if use is not None:
                shown[name] = use
    return shown


def meant(stem: str) -> str | None:
    """Which stem somebody meant who wrote this one, if that is beyond doubt."""
    if re.fullmatch(r"(?:(?:kv|gpu|gpu_kv)_)?cache_(?:usage|utilization)(?:_\w+)?", stem):
        return "kv_cache_usage_perc"
    plain = stem.removesuffix("_total")
    for candidate in (f"{plain}_total", plain, f"{plain}_seconds", f"num_{plain}_total"):
        if candidate in table():
            return candidate
    for part in _PARTS[:3]:
        base = plain.removesuffix(part)
        if base != plain and f"{base}_seconds" in table():
            return f"{base}_seconds{part}"
    return None


def _find(stem: str) -> tuple[Metric, Part] | None:
    metrics = table()
    if stem in metrics:
        return metrics[stem], ""
    for part in _PARTS:
        base = stem.removesuffix(part)
        if base == stem:
            continue
        metric = metrics.get(base)
        if metric is not None and metric.kind == "histogram":
            return metric, part
        counter = metrics.get(f"{base}_total")
        if part == "_created" and counter is not None and counter.kind == "counter":
            return counter, part
    return None
