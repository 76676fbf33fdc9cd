"""Real pages of many releases, and what stands on them, written down by hand.

`captures/pages/public` are pages from public reports, most of them excerpts: what an excerpt
leaves out is missing there, and must be said to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sidecar.model import Page, ServerReading
from sidecar.recordings import open_recording
from sidecar.sources.releases import parse_release
from sidecar.sources.vllm_text import read_page

CAPTURES = Path(__file__).parents[1] / "captures"
PAGES = CAPTURES / "pages"

COUNTERS = (
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One engine as the page has it; None is "not on the page"."""

    model: str
    engine: str = "0"
    usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    preemptions: float | None = None
    prompt: float | None = None
    generation: float | None = None
    finished: float | None = None
    queries: float | None = None
    hits: float | None = None
    blocks: int | None = None
    block_size: int | None = None
    by_reason: Mapping[str, float] = field(default_factory=dict)
    sleeping: bool | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """A page: the release that it is read for, its engines and its states."""

    version: str
    engines: tuple[Seen, ...] = ()
    prefix: str | None = "vllm:"
    usage_name: str | None = None
    missing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    reason: str | None = None


KV, GPU = "kv_cache_usage_perc", "gpu_cache_usage_perc"
NOTHING_WAITS = {"capacity": 0.0, "deferred": 0.0}

TABLE: dict[str, Expected] = {
    "public/v0.3-0.4.0-aioprometheus": Expected(
        "0.3.2",
        (
            Seen(
                "mistralai/Mixtral-8x7B-v0.1",
                usage=0,
                running=0,
                waiting=0,
                prompt=14_025,
                generation=58_149,
            ),
        ),
        usage_name=GPU,
    ),
    "public/v0.4.3-V0-cpu": Expected(
        "0.4.3",
        (Seen("facebook/opt-125m", "0", 0, 0, 0, 0, 5, 7, 1, blocks=7281, block_size=16),),
        usage_name=GPU,
    ),
    "public/v0.5.4-python-only-no-vllm": Expected(
        "0.5.4",
        prefix=None,
        missing=("kv_usage_ratio", "running", "waiting", *COUNTERS, "cache_config"),
        reason="wrong_endpoint",
    ),
    "public/v0.6.1-help-type-without-samples": Expected(
        "0.6.1",
        prefix=None,
        pending=(*COUNTERS[1:], "cache_config"),
        empty=("kv_usage_ratio", "running", "waiting", "swapped", "preemptions_total"),
        reason="declared_only",
    ),
    "public/v0.6.x-V0-llama8b-idle": Expected(
        "0.6.3",
        (
            Seen(
                "meta-llama/Llama-3.1-8B-Instruct",
                *("0", 0, 0, 0, 0, 0, 0),
                blocks=2375,
                block_size=16,
            ),
        ),
        usage_name=GPU,
        pending=("finished_total",),
    ),
    "public/v0.6.x-ray-colon-prefix": Expected(
        "0.6.4",
        (
            Seen(
                "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8",
                usage=5.882698982295764e-05,
                running=0,
                waiting=0,
                prompt=58,
                generation=300,
            ),
        ),
        prefix="ray_vllm:",
        usage_name=GPU,
        pending=("preemptions_total", "finished_total"),
    ),
    "public/v0.6.5-0.7-V0-loaded-fp8kv": Expected(
        "0.6.6",
        (Seen("m", "0", 0, 3, 2, 0, 5_453_083, 155_722, 6_226, blocks=11_560, block_size=16),),
        usage_name=GPU,
    ),
    "public/v0.7-V0-aibrix": Expected(
        "0.7.3",
        (
            Seen(
                "Qwen/Qwen2.5-Coder-1.5B-Instruct",
                *("0", 0, 0, 0, 0, 148, 955, 4),
                blocks=81_767,
                block_size=16,
            ),
        ),
        usage_name=GPU,
    ),
    "public/v0.8.1-V1-no-engine-label": Expected(
        "0.8.1",
        (Seen("Qwen/Qwen2.5-Coder-32B-Instruct", "0", 0, 0, 0),),
        usage_name=GPU,
        missing=(*COUNTERS, "cache_config"),
        empty=("prefix_queries_total",),
        reason="renamed_or_hidden",
    ),
    "public/v0.10.0-V1-both-names": Expected(
        "0.10.0",
        (Seen("zai-org/GLM-4.5", usage=9.75010481363281e-06, queries=32, hits=0),),
        usage_name=KV,
        missing=("running", "waiting", *COUNTERS, "cache_config"),
        empty=("finished_generation_tokens_total",),
        reason="renamed_or_hidden",
    ),
    "public/v0.10.1-dp2-two-engines": Expected(
        "0.10.2",
        (Seen("qwen3-8b", "0"), Seen("qwen3-8b", "1")),
        missing=(
            *("kv_usage_ratio", "running", "waiting"),
            *COUNTERS,
            *("prefix_queries_total", "cache_config"),
        ),
        reason="renamed_or_hidden",
    ),
    "public/v0.1x-rhoai-2026-04-created": Expected(
        "0.13.0",
        (Seen("llama-vllm-single", "0", 0, 0, 0, 0, 0, 0, queries=0, hits=0),),
        usage_name=KV,
        missing=("finished_total", "cache_config"),
        pending=("sleep_state",),
        reason="renamed_or_hidden",
    ),
    "public/v0.19-0.20-lmcache-loaded": Expected(
        "0.20.0",
        (
            Seen(
                "Qwen/Qwen3-8B",
                *("0", 0, 0, 0, 0, 22_130, 960, 10, 22_130, 19_824, 20_539, 16),
                by_reason=NOTHING_WAITS,
                sleeping=False,
            ),
        ),
        usage_name=KV,
    ),
    "public/v0.2x-dp2-idle": Expected(
        "0.20.0",
        tuple(Seen("deepseek-v4-flash-w8a8-mtp", engine, running=0) for engine in ("0", "1")),
        missing=(*COUNTERS, "prefix_queries_total", "cache_config"),
        pending=("kv_usage_ratio", "waiting", "waiting_by_reason", "sleep_state"),
        reason="renamed_or_hidden",
    ),
    "public/v0.2x-lmcache-mp-slice": Expected(
        "0.20.0",
        (Seen("Qwen/Qwen3-8B", queries=1_924_705, hits=1_281_008),),
        missing=(
            *("kv_usage_ratio", "running", "waiting", "waiting_by_reason", "sleep_state"),
            *COUNTERS,
            "cache_config",
        ),
        reason="connector_only",
    ),
    "public/v0.2x-lora-slots-deferred": Expected(
        "0.20.0",
        (
            Seen(
                "m",
                usage=0.63,
                running=62,
                waiting=44,  # the sum of both reasons: the excerpt has no plain gauge
                by_reason={"capacity": 3.0, "deferred": 41.0},
            ),
        ),
        usage_name=KV,
        missing=("sleep_state", *COUNTERS, "prefix_queries_total", "cache_config"),
        reason="renamed_or_hidden",
    ),
    "public/v0.25.1-idle": Expected(
        "0.25.1",
        (
            Seen(
                "opt-125m-tp2",
                *("0", 0, 0, 0, 0, 0, 0, 0, 0, 0, 25_028, 16),
                by_reason=NOTHING_WAITS,
                sleeping=False,
            ),
        ),
        usage_name=KV,
    ),
    "vllm-0.32.0-cpu-two-engines-before-first-step": Expected(
        "0.32.0",
        tuple(
            Seen(
                "tiny",
                engine,
                *(None, None, None, 0, 0, 0, 0, 0, 0, 18, 128),
                sleeping=False,
            )
            for engine in ("0", "1")
        ),
        pending=("kv_usage_ratio", "running", "waiting", "waiting_by_reason"),
        reason="before_first_step",
    ),
    "vllm-0.32.0-cpu-two-engines-busy": Expected(
        "0.32.0",
        (
            Seen(
                "tiny",
                *("0", 0.3529411764705882, 2, 0, 0, 691, 1_378, 4, 0, 0, 18, 128),
                by_reason=NOTHING_WAITS,
                sleeping=False,
            ),
            Seen(
                "tiny",
                *("1", 0.8235294117647058, 6, 0, 0, 1_061, 1_958, 5, 0, 0, 18, 128),
                by_reason=NOTHING_WAITS,
                sleeping=False,
            ),
        ),
        usage_name=KV,
    ),
    "vllm-0.32.0-cpu-no-statistics": Expected(
        "0.32.0",
        prefix=None,
        missing=(
            *("kv_usage_ratio", "running", "waiting", "waiting_by_reason", "sleep_state"),
            *COUNTERS,
            *("prefix_queries_total", "cache_config"),
        ),
        reason="log_stats_off",
    ),
    "vllm-0.32.0-cpu-idle": Expected(
        "0.32.0",
        (
            Seen(
                "tiny",
                "0",
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                40,
                128,
                by_reason=NOTHING_WAITS,
                sleeping=False,
            ),
        ),
        usage_name=KV,
    ),
    "vllm-0.32.0-cpu-preempting": Expected(
        "0.32.0",
        (
            Seen(
                "tiny",
                *("0", 0.8205128205128205, 8, 15, 427, 18_481, 105_887, 172, 0, 0, 40, 128),
                by_reason={"capacity": 15.0, "deferred": 0.0},
                sleeping=False,
            ),
        ),
        usage_name=KV,
    ),
}


def seen(reading: ServerReading) -> tuple[Seen, ...]:
    return tuple(
        Seen(
            engine.model_name,
            engine.engine,
            engine.kv_usage_ratio,
            engine.running,
            engine.waiting,
            engine.preemptions_total,
            engine.prompt_tokens_total,
            engine.generation_tokens_total,
            engine.finished_total,
            engine.prefix_queries_total,
            engine.prefix_hits_total,
            engine.cache.num_gpu_blocks if engine.cache else None,
            engine.cache.block_size if engine.cache else None,
            dict(engine.waiting_by_reason),
            engine.sleeping,
        )
        for engine in reading.engines
    )


@pytest.mark.parametrize("name", TABLE)
def test_page(name: str) -> None:
    expected = TABLE[name]
    text = (PAGES / f"{name}.prom").read_text("utf-8")
    reading = read_page(text, parse_release(expected.version))
    assert seen(reading) == expected.engines
    assert (reading.name_prefix, reading.kv_usage_name) == (expected.prefix, expected.usage_name)
    assert reading.missing == expected.missing
    assert reading.pending == expected.pending
    assert reading.empty == expected.empty
    assert reading.reason == expected.reason
    assert reading.invalid == {}


def test_every_page_is_in_the_table() -> None:
    files = {str(path.relative_to(PAGES))[: -len(".prom")] for path in PAGES.glob("**/*.prom")}
    assert files == set(TABLE)
    for path in PAGES.glob("public/*.prom"):
        assert path.read_text("utf-8").startswith("# origin: ")


def test_two_engines_of_one_server_stay_two() -> None:
    text = "".join(
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {usage}\n'
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {running}\n'
        f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="2000"}} 1\n'
        for engine, usage, running in (("0", 0.10, 3), ("1", 0.97, 40))
    )
    engines = read_page(text, (0, 25, 0)).engines
    assert [(e.engine, e.kv_usage_ratio, e.running) for e in engines] == [
        ("0", 0.10, 3.0),
        ("1", 0.97, 40.0),
    ]
    assert [e.cache.num_gpu_blocks for e in engines if e.cache] == [1000, 1000]


# Of the recordings of a real vLLM 0.25.0: how many pages, KV blocks, the highest usage on any page,
# and the preemptions and generated tokens on the last page.
RECORDED: dict[str, tuple[int, int, float, float, float]] = {
    "block16-short": (35, 4920, 0.2753, 0, 149775),
    "eager-32-4-0": (55, 57172, 0.048, 0, 28453),
    "graphs-32-4-0": (55, 57142, 0.0475, 0, 80708),
    "kill-restart": (33, 14226, 0.1717, 0, 10248),
    "lowuse-c2": (36, 57172, 0.0006, 0, 2150),
    "neighbour-grows": (41, 28541, 0.0436, 0, 17561),
    "pause-keep": (49, 14226, 0.108, 16, 18422),
    "preempt-storm": (64, 4920, 0.9998, 88, 126389),
    "runtime-oom": (19, 35267, 0, 0, 0),
    "sleep-wake": (49, 35699, 0.0354, 0, 14402),
    "tp2-32-4-0": (41, 78064, 0.0324, 0, 24622),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recording(name: str) -> None:
    path = CAPTURES / "recordings" / f"{name}.jsonl.gz"
    readings = [
        read_page(poll.vllm.text, parse_release(poll.vllm_version))
        for poll in open_recording(path).polls()
        if isinstance(poll.vllm, Page)
    ]
    engines = [engine for reading in readings for engine in reading.engines]
    assert len(engines) == len(readings)
    for reading in readings:
        assert (reading.missing, reading.pending, reading.empty) == ((), (), ())
        assert reading.invalid == {}
        assert reading.reason is None
        assert reading.kv_usage_name == KV
    usages = [engine.kv_usage_ratio or 0.0 for engine in engines]
    blocks = {engine.cache.num_gpu_blocks for engine in engines if engine.cache}
    last = engines[-1]
    assert (
        len(readings),
        blocks.pop(),
        round(max(usages), 4),
        last.preemptions_total,
        last.generation_tokens_total,
    ) == RECORDED[name]
    assert not blocks
