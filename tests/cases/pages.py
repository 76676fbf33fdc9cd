"""vLLM's metrics page as text, with the names and labels that each release has.

Only what the sidecar could judge by is written: no HELP lines, no `_created` series (they can be
switched off), no latency histograms beyond their counts. Which release has which series was read
from vLLM's sources, 0.2.3 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Release = tuple[int, int, int]

STEP_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of `iteration_tokens_total`."""


@dataclass(frozen=True, slots=True)
class Server:
    """What does not change while a server lives.

    `blocks` is one engine's share. `started_at` is None where the page has no `process_*` series:
    V0 from 0.5.5, and V1 with several API servers. `pids` are the API servers that each show the
    usage gauge, most of them a stale zero (0.9.2 to 0.11.0). `own_labels` replaces single labels
    of `cache_config_info`.
    """

    release: Release
    v0: bool = False
    started_at: float | None = None
    blocks: int | None = None
    block_size: int = 16
    max_model_len: int = 8192
    prefix: str = "vllm:"
    pids: tuple[int, ...] = ()
    own_labels: Mapping[str, str] = field(default_factory=dict)
    max_lora: int | None = None


@dataclass(slots=True)
class Engine:
    """One engine's gauges and counters."""

    model: str
    index: str = "0"
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    swapped: int = 0
    usage: float = 0.0
    preemptions: float = 0.0
    prompt: float = 0.0
    generation: float = 0.0
    finished: float = 0.0
    finished_prompt: float = 0.0
    finished_generation: float = 0.0
    first_tokens: float = 0.0
    hits: float = 0.0
    prefix_caching: bool = False
    sleep: str = "awake"
    steps: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STEP_BOUNDS, 0.0))
    steps_sum: float = 0.0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    def step(self, tokens: float, times: float) -> None:
        """Count `times` steps of so many tokens."""
        if times <= 0 or tokens <= 0:
            return
        bound = next((b for b in STEP_BOUNDS if tokens <= b), STEP_BOUNDS[-1])
        self.steps[bound] += times
        self.steps_sum += tokens * times


_CACHE_CONFIG: tuple[tuple[str, str, Release, Release | None], ...] = (
    ("block_size", "", (0, 3, 3), None),
    ("gpu_memory_utilization", "0.9", (0, 3, 3), None),
    ("swap_space_bytes", "4294967296", (0, 3, 3), (0, 11, 1)),
    ("cache_dtype", "auto", (0, 3, 3), None),
    ("sliding_window", "None", (0, 3, 3), None),
    ("num_gpu_blocks", "", (0, 3, 3), None),
    ("num_cpu_blocks", "", (0, 3, 3), None),
    ("enable_prefix_caching", "", (0, 4, 0), None),
    ("num_gpu_blocks_override", "None", (0, 4, 1), None),
    ("cpu_offload_gb", "0", (0, 5, 3), (0, 18, 0)),
    ("is_attention_free", "False", (0, 6, 3), None),
    ("calculate_kv_scales", "False", (0, 7, 0), (0, 28, 0)),
    ("prefix_caching_hash_algo", "sha256", (0, 8, 3), None),
    ("swap_space", "4.0", (0, 8, 5), (0, 18, 0)),
    ("cpu_kvcache_space_bytes", "None", (0, 9, 2), (0, 20, 0)),
    ("mamba_page_size_padded", "None", (0, 10, 0), None),
    ("mamba_cache_dtype", "auto", (0, 10, 1), None),
    ("mamba_ssm_cache_dtype", "auto", (0, 10, 1), None),
    ("kv_sharing_fast_prefill", "False", (0, 10, 1), None),
    ("kv_cache_memory_bytes", "None", (0, 10, 2), None),
    ("mamba_block_size", "None", (0, 11, 1), None),
    ("kv_offloading_size", "None", (0, 11, 1), None),
    ("kv_offloading_backend", "native", (0, 11, 1), None),
    ("mamba_cache_mode", "none", (0, 15, 0), None),
    ("user_specified_block_size", "False", (0, 18, 0), None),
    ("_block_size_resolved", "True", (0, 18, 0), None),
    ("kv_cache_dtype_skip_layers", "[]", (0, 19, 0), None),
    ("hash_block_size", "None", (0, 20, 0), (0, 26, 0)),
    ("user_specified_mamba_block_size", "False", (0, 20, 0), None),
    ("kv_cache_size_tokens", "", (0, 24, 0), None),
    ("kv_cache_max_concurrency", "", (0, 24, 0), None),
    ("skip_page_size_padded", "None", (0, 25, 0), None),
    ("prefix_match_unit", "None", (0, 26, 0), None),
    ("replayssm_buffer_len", "16", (0, 27, 0), None),
    ("use_replayssm", "False", (0, 27, 0), None),
)
"""Label, its default, first release with it, first release without it."""


def render(server: Server, engines: Sequence[Engine]) -> str:
    """The page."""
    lines: list[str] = []
    if server.started_at is not None:
        lines += [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {server.started_at}",
        ]
    families: dict[str, tuple[str, list[str]]] = {}
    for engine in engines:
        for kind, family, sample, labels, value in _samples(server, engine, len(engines)):
            text = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            families.setdefault(family, (kind, []))[1].append(
                f"{server.prefix}{sample}{'{' + text + '}' if text else ''} {value}"
            )
    for family, (kind, samples) in families.items():
        lines += [f"# TYPE {server.prefix}{family} {kind}", *samples]
    return "\n".join(lines) + "\n"


_Sample = tuple[str, str, str, dict[str, str], float]


def _samples(server: Server, engine: Engine, engines: int) -> Iterator[_Sample]:
    release, v0 = server.release, server.v0
    base = {"model_name": engine.model}
    if not v0 and release >= (0, 8, 3):
        base["engine"] = engine.index

    def gauge(name: str, value: float, **labels: str) -> _Sample:
        return ("gauge", name, name, {**base, **labels}, value)

    def counter(name: str, value: float, **labels: str) -> _Sample:
        return ("counter", name, name, {**base, **labels}, float(int(value)))

    yield gauge("num_requests_running", float(engine.running))
    yield gauge("num_requests_waiting", float(engine.waiting))
    if v0 and release <= (0, 9, 0):
        yield gauge("num_requests_swapped", float(engine.swapped))
    if release >= (0, 20, 0):
        capacity = float(engine.waiting - engine.deferred)
        yield gauge("num_requests_waiting_by_reason", capacity, reason="capacity")
        yield gauge("num_requests_waiting_by_reason", float(engine.deferred), reason="deferred")
    if release >= (0, 11, 1):
        for state in ("awake", "weights_offloaded", "discard_all"):
            yield gauge("engine_sleep_state", float(engine.sleep == state), sleep_state=state)
    usage = float(f"{engine.usage:.6g}")
    if not v0 and release >= (0, 9, 2):
        for number, pid in enumerate(server.pids):
            yield gauge("kv_cache_usage_perc", usage if number == 0 else 0.0, pid=str(pid))
        if not server.pids:
            yield gauge("kv_cache_usage_perc", usage)
    if release <= (0, 10, 2):
        yield gauge("gpu_cache_usage_perc", usage)
    if v0 and release <= (0, 9, 0):
        yield gauge("cpu_cache_usage_perc", 0.0)
    if v0 and release <= (0, 6, 6):
        yield gauge("avg_prompt_throughput_toks_per_s", 0.0)
        yield gauge("avg_generation_throughput_toks_per_s", 0.0)
    yield from _prefix_cache(server, engine, base)
    if release >= ((0, 4, 3) if v0 else (0, 8, 0)):
        yield counter("num_preemptions_total", engine.preemptions)
    yield counter("prompt_tokens_total", engine.prompt)
    yield counter("generation_tokens_total", engine.generation)
    if release >= (0, 4, 2):
        yield counter("request_success_total", engine.finished, finished_reason="stop")
        yield counter("request_success_total", 0, finished_reason="length")
        yield counter("request_success_total", 0, finished_reason="abort")
        for name, total in (
            ("request_prompt_tokens", engine.finished_prompt),
            ("request_generation_tokens", engine.finished_generation),
        ):
            yield from _summary(name, engine.finished, total, base)
    if release >= ((0, 6, 4) if v0 else (0, 7, 3)):
        yield from _steps(engine, base)
    yield from _summary(
        "time_to_first_token_seconds", engine.first_tokens, engine.first_tokens * 0.2, base
    )
    if server.max_lora is not None and engine.index == "0":
        labels = {
            "max_lora": str(server.max_lora),
            "running_lora_adapters": ",".join(engine.running_adapters),
            "waiting_lora_adapters": ",".join(engine.waiting_adapters),
        }
        yield ("gauge", "lora_requests_info", "lora_requests_info", labels, 1.0)
    if server.blocks is not None and release >= ((0, 3, 3) if v0 else (0, 8, 0)):
        labels = _cache_config(server, engine, engines)
        yield ("gauge", "cache_config_info", "cache_config_info", labels, 1.0)


def _prefix_cache(server: Server, engine: Engine, base: dict[str, str]) -> Iterator[_Sample]:
    release, v0 = server.release, server.v0
    if v0:
        if (0, 5, 5) <= release <= (0, 9, 0):
            rate = round(engine.hits / engine.prompt, 4) if engine.prefix_caching else -1.0
            name = "gpu_prefix_cache_hit_rate"
            yield ("gauge", name, name, dict(base), rate)
        return
    queries = engine.prompt if engine.prefix_caching else 0.0
    names = ["prefix_cache"] if release >= (0, 9, 2) else []
    if (0, 7, 3) <= release <= (0, 10, 2):
        names.append("gpu_prefix_cache")
    unit = 1 if release >= (0, 9, 0) else server.block_size  # blocks before 0.9.0
    for name in names:
        for what, value in (("queries", queries), ("hits", engine.hits)):
            full = f"{name}_{what}_total"
            yield ("counter", full, full, dict(base), float(int(value / unit)))


def _summary(name: str, count: float, total: float, base: dict[str, str]) -> Iterator[_Sample]:
    whole = float(int(count))
    yield ("histogram", name, f"{name}_bucket", {**base, "le": "+Inf"}, whole)
    yield ("histogram", name, f"{name}_count", dict(base), whole)
    yield ("histogram", name, f"{name}_sum", dict(base), round(total, 3))


def _steps(engine: Engine, base: dict[str, str]) -> Iterator[_Sample]:
    name, running = "iteration_tokens_total", 0.0
    for bound in STEP_BOUNDS:
        running += engine.steps[bound]
        labels = {**base, "le": f"{bound}.0"}
        yield ("histogram", name, f"{name}_bucket", labels, float(int(running)))
    yield ("histogram", name, f"{name}_bucket", {**base, "le": "+Inf"}, float(int(running)))
    yield ("histogram", name, f"{name}_count", dict(base), float(int(running)))
    yield ("histogram", name, f"{name}_sum", dict(base), float(int(engine.steps_sum)))


def _cache_config(server: Server, engine: Engine, engines: int) -> dict[str, str]:
    assert server.blocks is not None
    release, v0 = server.release, server.v0
    tokens = server.blocks * server.block_size
    # V1 before 0.9.0 never told its API server; from then on each engine shows the sum of all.
    blocks = server.blocks * (engines if release >= (0, 9, 0) and not v0 else 1)
    known = v0 or release >= (0, 9, 0)
    given = {
        "block_size": str(server.block_size),
        "num_gpu_blocks": str(blocks) if known else "None",
        "num_cpu_blocks": "2048" if v0 else "None",
        "enable_prefix_caching": str(engine.prefix_caching),
        "kv_cache_size_tokens": str(tokens),
        "kv_cache_max_concurrency": str(tokens / server.max_model_len),
        **server.own_labels,
    }
    labels = {
        key: given.get(key, default)
        for key, default, since, until in _CACHE_CONFIG
        if release >= since and (until is None or release < until)
    }
    if not v0 and release >= (0, 9, 0):
        labels["engine"] = engine.index
    return labels
