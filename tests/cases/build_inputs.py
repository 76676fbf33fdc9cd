"""Writes the inputs that are made from figures: recordings and some pages.

    python -m cases.build_inputs        (from the folder `tests`)

Logs, and pages that a report gave in full, are files of their own and not made here. The same
source gives the same bytes; a test compares what is committed with what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cases import memory_plans, serving_plans
from cases.pages import Engine, Server, render
from cases.serving_plans import STARTED
from cases.tracks import recording

INPUTS = Path(__file__).resolve().parent / "inputs"


def recordings() -> dict[str, bytes]:
    """Name of the file, and its bytes."""
    plans = {**serving_plans.PLANS, **memory_plans.PLANS}
    return {f"{name}.jsonl.gz": recording(name, plan) for name, plan in plans.items()}


def _loaded(
    model: str, running: int, usage: float, *, hit_ratio: float = 0.0, finished: int = 400
) -> Engine:
    """An engine that has served 400 requests of 600 and 300 tokens and runs some more."""
    engine = Engine(model, running=running, usage=usage, prefix_caching=hit_ratio > 0.0)
    engine.prompt = finished * 600.0 + running * 600.0
    engine.generation = finished * 300.0 + running * 150.0
    engine.finished, engine.first_tokens = finished, finished + running
    engine.finished_prompt, engine.finished_generation = finished * 600.0, finished * 300.0
    engine.hits = engine.prompt * hit_ratio
    engine.step(8, engine.generation / 8)
    engine.step(600, engine.prompt / 600)
    return engine


def pages() -> Iterator[tuple[str, str, str]]:
    """Name of the file, where it comes from, and the page."""
    v0 = Server((0, 6, 1), v0=True, blocks=2_375)
    yield (
        "C19-busy.prom",
        "C19, https://github.com/vllm-project/vllm/issues/12077 , /5176 ; vLLM 0.6 V0 with prefix"
        " caching while requests run ; figures chosen",
        render(v0, [_loaded("m", 8, 0.31, hit_ratio=0.52)]),
    )
    yield (
        "C19-idle.prom",
        "C19 ; the same server when they are done: 0 % though the cache is warm ; figures chosen",
        render(v0, [_loaded("m", 0, 0.0, hit_ratio=0.52, finished=408)]),
    )
    yield (
        "C44.prom",
        "C44, https://github.com/vllm-project/vllm/pull/27133 , issues/27341 ; vLLM 0.11.0 V1:"
        " gpu_cache_usage_perc is hidden, kv_cache_usage_perc is there ; figures chosen",
        render(Server((0, 11, 0), started_at=STARTED, blocks=9_849), [_loaded("m", 8, 0.06)]),
    )
    # 9.75e-06 at rest, as the report's page has it, is 1 of 102,563 blocks.
    glm = Engine(
        "zai-org/GLM-4.5",
        usage=9.75010481363281e-06,
        prompt=32.0,
        generation=1200.0,
        finished=4,
        finished_prompt=32.0,
        finished_generation=1200.0,
        first_tokens=4,
        prefix_caching=True,
    )
    glm.step(1, 1200)
    glm.step(8, 4)
    yield (
        "C46.prom",
        "C46, https://github.com/vllm-project/production-stack/issues/617 ; vLLM 0.10.0 V1: engine"
        " label, both names of the usage, at rest one block of 102,563 ; usage, prompt tokens and"
        " model are the report's, the rest of its excerpt is filled in",
        render(Server((0, 10, 0), started_at=1753795326.0, blocks=102_563), [glm]),
    )
    yield (
        "C51.prom",
        "C51, https://github.com/vllm-project/vllm/pull/22227 ; vLLM 0.10.2 V1, two API servers:"
        " the usage gauge once for each, the second a stale zero ; figures chosen",
        render(Server((0, 10, 2), blocks=9_851, pids=(301, 302)), [_loaded("m", 14, 0.42)]),
    )
    ray = render(
        Server((0, 11, 0), prefix="ray_vllm_", blocks=9_849),
        [_loaded("m", 4, 0.12, hit_ratio=0.3)],
    )
    yield (
        "C61.prom",
        "C61, https://github.com/ray-project/ray/issues/59071 , /58360 ; Ray 2.52: names begin"
        " with ray_vllm_, a counter that never moved is absent ; figures chosen",
        "".join(line + "\n" for line in ray.splitlines() if "num_preemptions" not in line),
    )
    both = render(Server((0, 10, 2), started_at=STARTED, blocks=9_851), [_loaded("m", 12, 0.48)])
    labels, bucket = 'engine="0",model_name="m"', 'engine="0",le="+Inf",model_name="m"'
    latency = "".join(
        f"# TYPE vllm:{name} histogram\n"
        f"vllm:{name}_bucket{{{bucket}}} 119600.0\n"
        f"vllm:{name}_count{{{labels}}} 119600.0\n"
        f"vllm:{name}_sum{{{labels}}} 3588.0\n"
        for name in ("time_per_output_token_seconds", "inter_token_latency_seconds")
    )
    yield (
        "C62.prom",
        "C62, https://github.com/gpustack/gpustack/issues/2985 ; vLLM 0.10.2 V1: old and new name"
        " of two series stand side by side; added up, 48 % would be 96 % ; figures chosen",
        both + latency,
    )
    lora = _loaded("m", 62, 0.63)
    lora.waiting, lora.deferred = 44, 41
    lora.running_adapters = ("a1", "a3", "a6", "a7")
    lora.waiting_adapters = ("a0", "a2", "a4", "a5")
    yield (
        "C77.prom",
        "C77, a public performance guide ; vLLM 0.20 V1, --max-loras 4 with 8 adapters: gauges and"
        " adapters are the guide's, the rest of its excerpt is filled in",
        render(Server((0, 20, 2), started_at=STARTED, blocks=9_001, max_lora=4), [lora]),
    )


def page_files() -> dict[str, bytes]:
    """Name of the file, and its bytes."""
    return {name: f"# origin: {origin}\n{text}".encode() for name, origin, text in pages()}


def main() -> None:
    """Write everything."""
    for name, content in {**recordings(), **page_files()}.items():
        (INPUTS / name).write_bytes(content)
        sys.stdout.write(f"{len(content):7d} {name}\n")


if __name__ == "__main__":
    main()
