"""The nouns of the sidecar: what a poll saw, what was read from it, what is published.

Everything here is frozen and free of I/O. `None` means "not measured" and is the only value
that does: zero, NaN or -1 never stand for it. Sizes are bytes, times are unix seconds,
usage figures are ratios from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]
Severity = Literal["info", "warning", "critical"]
Confidence = Literal["low", "medium", "high"]

# ---------------------------------------------------------------------------------------------
# What a poll saw, before anything is interpreted. A recording stores exactly this.


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that did not answer: a short reason from a closed set, and a line for people.

    `reason` becomes a metric label, so it must come from the closed set of its source;
    `detail` goes to logs and to the page and may name addresses, never secrets.
    """

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The text of vLLM's `/metrics`, and how many seconds the request took."""

    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Device memory as NVML's v2 call gives it: total = used + free + reserved, to the byte.

    With the older v1 call `reserved_bytes` is None and `used_bytes` includes the reserved part.
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a device. `used_bytes` is None where the driver does not say.

    `title` is what the process is, in a few words of a closed kind (see `process_titles.py`):
    None where that could not be found out, as in a container that sees other pids than the host.
    """

    pid: int
    used_bytes: int | None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device. Each field that could not be read is None; `error` says why, for people.

    `processes` is None when the list could not be had and empty when no process is visible,
    which inside a container may mean the same. `unified` marks a device without memory of its
    own: `memory` is then the host's, which every program on it shares. `mig_instance` is set for
    a part of a partitioned GPU ("gi 3"): `uuid` is the part's and `index` the whole GPU's.
    """

    index: int
    uuid: str
    name: str
    memory: GpuMemory | None = None
    utilization_ratio: float | None = None
    memory_bandwidth_ratio: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    error: str | None = None
    unified: bool = False
    mig_instance: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReport:
    """All devices that the sidecar was asked to watch, and how long reading them took."""

    gpus: tuple[GpuReading, ...]
    seconds: float
    driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The host's memory. `memory_available_bytes` is what programs may still take, caches given
    back included; a limit of the sidecar's own container is no part of it."""

    memory_total_bytes: int
    memory_available_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


@dataclass(frozen=True, slots=True)
class Poll:
    """One tick: what each source said. `vllm` is None while a slow answer is still awaited.

    `gpus` is None when no GPU source is configured, and a `Failure` when there should be one.
    `host` is None where the system does not tell. `health` is what `/health` answered after a
    failed page, `paused` what `/is_paused` answered while nothing moved; None where not asked.
    """

    at: float
    vllm: Page | Failure | None
    gpus: GpuReport | Failure | None
    vllm_version: str | None = None
    max_model_len: int | None = None
    phase: str | None = None
    host: HostReading | None = None
    health: bool | None = None
    paused: bool | None = None


# ---------------------------------------------------------------------------------------------
# What was read from it.


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram: `(upper bound, count)` in ascending order, with sum and count."""

    buckets: tuple[tuple[float, float], ...]
    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The labels of `vllm:cache_config_info` that matter, parsed; None where absent or "None".

    `num_gpu_blocks` is the engine's own share: vLLM 0.9.0 and later report the sum over all
    data-parallel engines on each of them, which the parser divides.
    `labels` keeps all of them as text, for people and for the page.
    """

    block_size: int | None
    num_gpu_blocks: int | None
    kv_cache_size_tokens: int | None
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    gpu_memory_utilization: float | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine of the server, under stable names, whatever the release calls them.

    `waiting` includes requests swapped out (V0 engines) and is the sum of `waiting_by_reason`
    where the page has only that. Totals are vLLM's own counters and fall back to zero at a
    restart. `prompt_tokens_total` counts a prompt at its first token and never counts recomputed
    work (vLLM 0.7.1 and later). Prefix-cache figures are tokens; V1 engines before 0.9.0 count
    blocks, which are tokens here if the page tells the size of one. `engine_label` tells whether
    the page names engines at all: V0 engines and V1 before 0.8.3 do not. Where several servers
    share a page, `engine` is `NUMBER/REPLICA` if the number alone is not unique.
    """

    model_name: str
    engine: str
    engine_label: bool = True
    kv_usage_ratio: float | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    finished_total: float | None = None
    first_tokens_total: float | None = None
    finished_prompt_tokens_total: float | None = None
    finished_generation_tokens_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    iteration_tokens: Histogram | None = None
    queue_seconds: Histogram | None = None
    sleeping: bool | None = None
    cache: CacheConfig | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What tells engines apart: `(model_name, engine)`."""
        return (self.model_name, self.engine)


@dataclass(frozen=True, slots=True)
class LoraAdapters:
    """The newest `vllm:lora_requests_info`: how many adapters fit, which run, which wait."""

    max_lora: int
    running: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerReading:
    """A whole page of vLLM, understood.

    `missing` are series that this release should have and the page does not, `pending` those
    that have no sample yet, for want of a first step or of data, `empty` those declared by HELP
    and TYPE that should have a sample and have none, `invalid` the number of samples per series
    that were present and unusable.
    `reason` says why a page is not whole, from the closed set in `sources/page_reason.py`.
    """

    engines: tuple[EngineReading, ...]
    process_start_seconds: float | None
    name_prefix: str | None
    kv_usage_name: str | None
    missing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    invalid: Mapping[str, int] = field(default_factory=dict)
    lora: LoraAdapters | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One poll, understood. `server` is None when this poll brought no page (see `failure`)."""

    at: float
    server: ServerReading | None
    failure: Failure | None
    gpus: GpuReport | Failure | None
    vllm_version: str | None = None
    max_model_len: int | None = None
    vllm_seconds: float | None = None
    phase: str | None = None
    host: HostReading | None = None
    health: bool | None = None
    paused: bool | None = None


# ---------------------------------------------------------------------------------------------
# What is concluded and published.


@dataclass(frozen=True, slots=True)
class Declaration:
    """A published quantity: its name without the `vllm_sidecar_` prefix, help, kind, labels.

    Names are a public contract: base units, `_ratio` for 0-1, `_total` only on counters.
    """

    name: str
    help: str
    kind: MetricKind = "gauge"
    labels: tuple[str, ...] = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a declaration; a histogram's value is a `Histogram`."""

    declaration: Declaration
    labels: tuple[str, ...]
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A declared quantity that could not be computed, and why (a short reason, a label)."""

    declaration: Declaration
    labels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure that a verdict rests on. `threshold` is what it was held against, if anything."""

    name: str
    value: float | str
    unit: str = ""
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One change to make: a launch flag (or what else to do), from which value to which.

    `expect` says what it should do to which figure, `why` the arithmetic, its cost and when to
    step back. `current` and `to` are text because flags are.
    """

    flag: str
    to: str | None
    expect: str
    why: str
    current: str | None = None


@dataclass(frozen=True, slots=True)
class Avoid:
    """A tempting lever that would not help here, and why."""

    flag: str
    why: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verdict is about; an empty text is "not one in particular"."""

    model_name: str = ""
    engine: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A conclusion with its evidence. `missing` names signals that would have told more.

    `since` and `until` are the unix seconds it held; None while that is not known or not over.
    """

    code: str
    severity: Severity
    confidence: Confidence
    summary: str
    scope: Scope = Scope()
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    avoid: tuple[Avoid, ...] = ()
    missing: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A verdict that began or ended, or changed its severity."""

    at: float
    verdict: Verdict
    began: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything that one poll leads to. Readers get a whole frame or the one before it."""

    at: float
    snapshot: Snapshot
    samples: tuple[Sample, ...]
    unavailable: tuple[Unavailable, ...]
    verdicts: tuple[Verdict, ...] = ()
    changes: tuple[Change, ...] = ()
