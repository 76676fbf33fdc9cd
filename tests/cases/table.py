"""What was true in each public report, and what may never be said about it.

The table was fixed before any judgement was written, from the reports alone. How to read a case:

- `accepted`: at least one of these verdicts must be among those given (of a recording: at any
  time, as the verdict JSON lists them).
- `never`: none of these may be among them: each would be the opposite of the truth, or an alarm
  where nothing is wrong. `never_at_end`: may have held earlier, not at the last poll.
- `flag`: must be advised. `interval`: every value advised for it lies within, ends included.
- `bounds`: the same for further flags, where they are advised at all.
- `never_flags`: must not be advised at all. The same holds, in every case, for flags that the
  release does not have (`unknown_flags`). `expandable_segments` stands for the allocator's
  setting, in whatever variable.
- `never_moves`: must not be advised in this direction. Where the advice does not say what the
  flag is now, the flags in the input do; where neither does, no direction is told.

`inputs` are files in `inputs/`; several belong together (a recording and the server's log).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

INPUTS = Path(__file__).resolve().parent / "inputs"

Kind = Literal["log", "page", "pages", "recording", "gpu"]
Direction = Literal["up", "down"]
Codes = frozenset[str]

UTIL = "--gpu-memory-utilization"
KV_BYTES = "--kv-cache-memory-bytes"
KV_DTYPE = "--kv-cache-dtype"
SEQS = "--max-num-seqs"
BATCHED = "--max-num-batched-tokens"
MODEL_LEN = "--max-model-len"
BLOCK = "--block-size"
LORAS = "--max-loras"
PARALLEL = "--tensor-parallel-size"
SWAP = "--swap-space"
EAGER = "--enforce-eager"
OFFLOAD = "--kv-offloading-size"
EXPANDABLE = "expandable_segments"

WELL: Codes = frozenset({"healthy", "idle"})
UP: Codes = WELL | {"started"}
TROUBLES: Codes = frozenset(
    {
        "vllm_down",
        "vllm_blind",
        "kv_exhausted",
        "seqs_capped",
        "token_budget_capped",
        "lora_capped",
        "internal_fragmentation",
        "kv_leaked",
        "stalled",
        "co_tenant",
        "orphan",
        "memory_growth",
        "headroom_low",
        "host_memory_low",
        "metrics_missing",
        "metrics_invalid",
        "gpu_unreadable",
    }
)
"""What would be an alarm while a server serves; fragmentation and neighbours are so at times."""
FAILURES: Codes = frozenset(
    {
        "no_kv_memory",
        "max_len_too_long",
        "not_enough_free",
        "graph_memory",
        "weights_too_big",
        "activation_peak",
        "single_allocation",
        "allocator_slack",
        "neighbour_left",
        "runtime_oom",
        "host_oom",
        "bad_argument",
        "not_memory",
    }
)
"""What a log can say of a start or a death that went wrong."""
FALSE_ALARMS: Codes = TROUBLES | FAILURES
FRAGMENTED: Codes = frozenset({"internal_fragmentation", "allocator_slack"})
LEAKING: Codes = frozenset({"kv_leaked", "memory_growth"})
NOT_FOR_CAPACITY: Codes = frozenset(
    {
        "seqs_capped",
        "token_budget_capped",
        "lora_capped",
        "over_reserved",
        "internal_fragmentation",
        "kv_leaked",
        "memory_growth",
        "stalled",
    }
)
"""Wrong where the pool is truly full: a cap, spare room, fragments, a leak, a hang."""
MEMORY_FLAGS: Codes = frozenset(
    {UTIL, KV_BYTES, KV_DTYPE, MODEL_LEN, BLOCK, SWAP, PARALLEL, EXPANDABLE}
)

RELEASES_OF_FLAGS: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int] | None]] = (
    MappingProxyType(
        {
            EAGER: ((0, 2, 6), None),
            KV_DTYPE: ((0, 3, 0), None),
            "--num-gpu-blocks-override": ((0, 4, 1), None),
            "--enable-chunked-prefill": ((0, 4, 0), None),
            "--max-seq-len-to-capture": ((0, 4, 2), (0, 11, 0)),
            "--preemption-mode": ((0, 5, 0), (0, 11, 0)),
            "--cpu-offload-gb": ((0, 5, 3), None),
            "--enable-sleep-mode": ((0, 7, 0), None),
            SWAP: ((0, 1, 0), (0, 18, 0)),
            "--cuda-graph-sizes": ((0, 9, 0), (0, 13, 0)),
            "--async-scheduling": ((0, 10, 0), None),
            KV_BYTES: ((0, 10, 2), None),
            "--cudagraph-capture-sizes": ((0, 11, 1), None),
            "--max-cudagraph-capture-size": ((0, 11, 1), None),
            OFFLOAD: ((0, 11, 1), None),
            "--kv-offloading-backend": ((0, 11, 1), None),
            "--scheduler-reserve-full-isl": ((0, 19, 0), None),
            "--watermark": ((0, 24, 0), None),
            "--max-num-queued-reqs": ((0, 29, 0), None),
        }
    )
)
"""First release with a flag, first release without it again; from vLLM's sources."""


def unknown_flags(version: str | None) -> Codes:
    """Flags that this release does not have; none where the release is not told exactly."""
    numbers = (version or "").split(".")[:3]
    if len(numbers) < 3 or not all(number.isdigit() for number in numbers):
        return frozenset()
    release = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return frozenset(
        flag
        for flag, (since, until) in RELEASES_OF_FLAGS.items()
        if release < since or (until is not None and release >= until)
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One report. The fields are explained at the top of this file."""

    id: str
    kind: Kind
    inputs: tuple[str, ...]
    accepted: Codes
    never: Codes
    why: str
    source: str
    version: str | None = None
    flag: str | None = None
    interval: tuple[float, float] | None = None
    bounds: tuple[tuple[str, float, float], ...] = ()
    never_flags: Codes = frozenset()
    never_moves: frozenset[tuple[str, Direction]] = frozenset()
    never_at_end: Codes = frozenset()


VLLM = "https://github.com/vllm-project/vllm"
NEED_MORE_KV: frozenset[tuple[str, Direction]] = frozenset({(UTIL, "down"), (SEQS, "up")})

CASES: tuple[Case, ...] = (
    # Out of memory, from the log.
    Case(
        id="C01",
        kind="log",
        inputs=("C01.log",),
        accepted=frozenset({"not_enough_free", "co_tenant"}),
        never=UP | {"allocator_slack", "single_allocation", "weights_too_big", "kv_leaked"},
        flag=UTIL,
        interval=(0.60, 0.65),
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.1.x",
        why="15 GiB of other processes were not subtracted: 0.9 x 44.6 exceeds what is free;"
        " the allocator's slack is 0.02 GiB; utilisation <= (free - 1) / total",
        source=f"{VLLM}/issues/783",
    ),
    Case(
        id="C02",
        kind="log",
        inputs=("C02.log",),
        accepted=frozenset({"weights_too_big", "activation_peak"}),
        never=UP | {"allocator_slack", "co_tenant", "neighbour_left", "not_enough_free"},
        never_flags=frozenset({EXPANDABLE, UTIL}),
        version="0.5.4",
        why="43.67 GiB and one more tensor of 16 GiB exceed 44.5 GiB at any utilisation (tried:"
        " 0.8, 0.6, 0.5); slack 0.7 %; the process that the text names is vLLM itself",
        source=f"{VLLM}/issues/7721",
    ),
    Case(
        id="C03",
        kind="log",
        inputs=("C03.log",),
        accepted=frozenset({"runtime_oom", "headroom_low"}),
        never=WELL | {"allocator_slack", "kv_leaked", "single_allocation", "co_tenant"},
        flag=UTIL,
        interval=(0.89, 0.93),  # 0.05 below the 0.96 in force, give or take 0.02
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), (LORAS, "up")}),
        version="0.6.4.post1",
        why="real adapters take more than the profile's dummies: budget too tight for LoRA, no"
        " leak; slack 0.8 %; utilisation - 0.05, fewer or smaller adapters",
        source=f"{VLLM}/issues/10637",
    ),
    Case(
        id="C04",
        kind="log",
        inputs=("C04.log",),
        accepted=frozenset({"runtime_oom", "headroom_low"}),
        never=WELL | {"allocator_slack", "co_tenant", "weights_too_big", "single_allocation"},
        flag=UTIL,
        interval=(0.88, 0.92),
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), ("--num-scheduler-steps", "up")}),
        version="0.6.2",
        why="multi-step buffers are not in the profile, 2 MiB free; slack 0.8 % is not the"
        " cause; utilisation <= 0.92 or fewer steps",
        source=f"{VLLM}/issues/9290",
    ),
    Case(
        id="C05",
        kind="log",
        inputs=("C05.log",),
        accepted=frozenset({"single_allocation"}),
        never=UP
        | {"allocator_slack", "co_tenant", "not_enough_free", "weights_too_big", "no_kv_memory"},
        never_flags=frozenset({UTIL, EXPANDABLE, SEQS, KV_DTYPE, KV_BYTES}),
        version="0.10.1.1",
        why="74 GiB asked for on a 44 GiB card with 30 free: attention without flash-attn; fix"
        " the backend or shrink the image, not the utilisation",
        source="https://github.com/studio-dots-ai/dots.ocr/issues/196",
    ),
    Case(
        id="C06",
        kind="log",
        inputs=("C06.log",),
        accepted=frozenset({"no_kv_memory"}),
        never=UP | {"max_len_too_long", "not_memory", "runtime_oom", "bad_argument"},
        never_flags=frozenset({KV_BYTES}),
        never_moves=frozenset({(UTIL, "down")}),
        version="0.2.6",
        why="nothing is left for the pool after profiling: eager mode, utilisation up, one"
        " server a GPU (the 0.2.x profile itself fragments)",
        source=f"{VLLM}/issues/2248",
    ),
    # Full pools and what looks like them.
    Case(
        id="C07",
        kind="recording",
        inputs=("C07.jsonl.gz", "C07.log"),
        accepted=frozenset({"kv_exhausted", "kv_pressure"}),
        never=NOT_FOR_CAPACITY,
        never_flags=frozenset({BLOCK, EXPANDABLE, SWAP, KV_BYTES}),
        never_moves=NEED_MORE_KV | {(MODEL_LEN, "up")},
        version="0.7.3",
        why="the pool holds 1.3 full-length requests, so 100 % with two is true: shorter"
        " context, fp8, two GPUs; not more sequences",
        source=f"{VLLM}/issues/14412",
    ),
    Case(
        id="C08",
        kind="recording",
        inputs=("C08.jsonl.gz",),
        accepted=frozenset({"kv_exhausted"}),
        never=NOT_FOR_CAPACITY | {"runaway_request"},
        flag=SEQS,
        interval=(6, 7),
        never_flags=frozenset({BLOCK, EXPANDABLE, SWAP, "--preemption-mode", "--watermark"}),
        never_moves=NEED_MORE_KV,
        never_at_end=WELL,
        version="0.10.0",
        why="V1 preempts by recomputing and logs nothing; the counter moves and speed falls at"
        " the same demand; about 7 sequences, fp8 KV",
        source=f"{VLLM}/issues/18115",
    ),
    Case(
        id="C09",
        kind="recording",
        inputs=("C09.jsonl.gz", "C09.log"),
        accepted=frozenset({"kv_exhausted"}),
        never=NOT_FOR_CAPACITY,
        never_flags=frozenset({BLOCK, EXPANDABLE, "--watermark", SWAP, "--preemption-mode"}),
        never_moves=NEED_MORE_KV,
        never_at_end=WELL,
        version="0.20.2",
        why="V1 writes no line about a preemption: the counter is the evidence, the silent log"
        " is none to the contrary",
        source=f"{VLLM}/pull/42827",
    ),
    Case(
        id="C10",
        kind="recording",
        inputs=("C10.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS | {"over_reserved"},
        never_flags=frozenset({SEQS, UTIL, BLOCK, "--watermark", EXPANDABLE}),
        version="0.15.0",
        why="0.078 preemptions a finished request near saturation, all finished, speed steady:"
        " normal",
        source="https://github.com/inference-sim/inference-sim/issues/963",
    ),
    Case(
        id="C11",
        kind="recording",
        inputs=("C11.jsonl.gz",),
        accepted=frozenset({"kv_exhausted"}),
        never=NOT_FOR_CAPACITY,
        never_flags=frozenset({BLOCK, EXPANDABLE, SWAP, "--watermark"}),
        never_moves=NEED_MORE_KV | {(BATCHED, "up")},
        never_at_end=WELL,
        version="0.10.2",
        why="one long prompt is resumed and preempted again without end: preemptions far above"
        " finished; more KV, smaller steps or shorter prompts",
        source=f"{VLLM}/issues/25538",
    ),
    Case(
        id="C12",
        kind="recording",
        inputs=("C12.jsonl.gz",),
        accepted=frozenset({"stalled"}),
        never=frozenset(
            {
                "kv_exhausted",
                "kv_leaked",
                "seqs_capped",
                "token_budget_capped",
                "over_reserved",
                "internal_fragmentation",
                "vllm_down",
                "runaway_request",
            }
        ),
        never_flags=MEMORY_FLAGS | {SEQS},
        never_at_end=WELL,
        version="0.7.2",
        why="requests run and no token comes: a stall of the scheduler, not load; restart, V1",
        source=f"{VLLM}/issues/15996",
    ),
    Case(
        id="C13",
        kind="recording",
        inputs=("C13.jsonl.gz", "C13.log"),
        accepted=frozenset({"stalled"}),
        never=frozenset(
            {
                "kv_leaked",
                "seqs_capped",
                "token_budget_capped",
                "over_reserved",
                "internal_fragmentation",
                "vllm_down",
            }
        ),
        never_flags=frozenset({BLOCK, EXPANDABLE}),
        never_moves=frozenset({(SEQS, "up"), (SWAP, "down")}),
        never_at_end=WELL,
        version="0.6.3",
        why="one V0 preemption by swapping is fatal: nothing moves until a restart",
        source=f"{VLLM}/issues/546",
    ),
    Case(
        id="C14",
        kind="recording",
        inputs=("C14.jsonl.gz", "C14.log"),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS | {"kv_pressure"},
        never_flags=MEMORY_FLAGS,
        version="0.6.3",
        why="a priority forced the preemption, the text blames KV space: look at the usage of"
        " that moment before advising memory",
        source=f"{VLLM}/issues/9342",
    ),
    Case(
        id="C15",
        kind="recording",
        inputs=("C15.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        never_flags=frozenset({BLOCK, EXPANDABLE, SEQS, BATCHED}),
        version="0.5.3",
        why="15.6 % used and nothing waits: idle capacity, driven by demand",
        source=f"{VLLM}/issues/6206",
    ),
    Case(
        id="C16",
        kind="recording",
        inputs=("C16.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS | {"kv_unexplained"},
        never_flags=frozenset({BLOCK, EXPANDABLE, SEQS}),
        version="0.6.3",
        why="the same tokens in a larger pool: the denominator grew with the GPUs",
        source=f"{VLLM}/issues/9660",
    ),
    Case(
        id="C17",
        kind="recording",
        inputs=("C17.jsonl.gz",),
        accepted=frozenset({"token_budget_capped"}),
        never=FRAGMENTED
        | {"seqs_capped", "lora_capped", "kv_exhausted", "kv_pressure", "kv_leaked", "stalled"},
        flag=BATCHED,
        interval=(4097, 32768),  # more than the 4,096 in force
        never_flags=MEMORY_FLAGS,
        version="0.6.4",
        why="low KV, few running, many pending, limit of 64 not reached: steps are full at 4,096"
        " tokens; raise that (the report has no answer, this is our reading)",
        source=f"{VLLM}/issues/13508",
    ),
    Case(
        id="C18",
        kind="recording",
        inputs=("C18.jsonl.gz",),
        accepted=frozenset({"seqs_capped"}),
        never=FRAGMENTED
        | {
            "token_budget_capped",
            "lora_capped",
            "kv_exhausted",
            "kv_pressure",
            "kv_leaked",
            "over_reserved",
            "stalled",
        },
        flag=SEQS,
        interval=(650, 1013),  # the pool holds 600 / 0.592
        never_flags=MEMORY_FLAGS,
        version="0.7.3",
        why="exactly 600 running for ever at 59 % with thousands pending: max-num-seqs 600, the"
        " pool would hold about 1,000",
        source=f"{VLLM}/issues/17382",
    ),
    Case(
        id="C19",
        kind="pages",
        inputs=("C19-busy.prom", "C19-idle.prom"),
        accepted=frozenset({"idle"}),
        never=FALSE_ALARMS | {"restarted", "kv_unexplained"},
        version="0.6.1",
        why="0 % when idle is right although prefix caching is on: cached blocks are evictable",
        source=f"{VLLM}/issues/12077, {VLLM}/issues/5176",
    ),
    Case(
        id="C20",
        kind="recording",
        inputs=("C20.jsonl.gz",),
        accepted=frozenset({"runaway_request"}),
        never=LEAKING
        | FRAGMENTED
        | {"kv_unexplained", "kv_exhausted", "kv_pressure", "stalled", "seqs_capped"},
        never_flags=frozenset({BLOCK, EXPANDABLE, SEQS}),
        version="0.13.0",
        why="one request without a stop decodes for ten minutes: generation explains the growth,"
        " and it ends; max_tokens",
        source=f"{VLLM}/issues/31353",
    ),
    Case(
        id="C21",
        kind="recording",
        inputs=("C21.jsonl.gz",),
        accepted=frozenset({"runaway_request", "kv_pressure"}),
        never=NOT_FOR_CAPACITY,
        never_flags=frozenset({BLOCK, EXPANDABLE, SWAP}),
        never_moves=NEED_MORE_KV,
        version="0.10.2",
        why="near 100 % for hours with 38 requests that run and produce: over-long requests; a"
        " leak only if nothing ran",
        source=f"{VLLM}/issues/27073",
    ),
    Case(
        id="C22",
        kind="recording",
        inputs=("C22.jsonl.gz",),
        accepted=frozenset({"kv_leaked"}),
        never=frozenset(
            {
                "memory_growth",
                "co_tenant",
                "kv_exhausted",
                "kv_pressure",
                "seqs_capped",
                "stalled",
                "runaway_request",
                "internal_fragmentation",
                "vllm_down",
                "restarted",
            }
        ),
        never_flags=MEMORY_FLAGS | {SEQS},
        never_at_end=WELL,
        version="0.23.0",
        why="decode node: aborted remote loads keep blocks for ever; idle usage rises in steps"
        " and stays beyond twice the time-out; restart decode",
        source=f"{VLLM}/issues/46283",
    ),
    Case(
        id="C23",
        kind="recording",
        inputs=("C23.jsonl.gz",),
        accepted=frozenset({"kv_leaked"}),
        never=frozenset(
            {
                "memory_growth",
                "co_tenant",
                "kv_exhausted",
                "kv_pressure",
                "seqs_capped",
                "stalled",
                "runaway_request",
                "internal_fragmentation",
                "vllm_down",
                "restarted",
            }
        ),
        never_flags=MEMORY_FLAGS | {SEQS},
        never_at_end=WELL,
        version="0.18.0",
        why="prefill node: the release carries the wrong request id, blocks are never freed",
        source=f"{VLLM}/pull/36958",
    ),
    Case(
        id="C24",
        kind="recording",
        inputs=("C24.jsonl.gz",),
        accepted=frozenset({"idle"}),
        never=FALSE_ALARMS | {"kv_unexplained", "restarted"},
        version="0.19.1",
        why="blocks held for a client that went away, freed by the connector's time-out (480 s):"
        " no leak before that is over",
        source="https://github.com/llm-d/llm-d/pull/1138",
    ),
    Case(
        id="C25",
        kind="gpu",
        inputs=("C25.jsonl.gz",),
        accepted=frozenset({"memory_growth", "headroom_low"}),
        never=FRAGMENTED | {"kv_leaked", "kv_exhausted", "kv_pressure", "co_tenant", "orphan"},
        flag=UTIL,
        interval=(0.88, 0.92),
        never_flags=frozenset({EXPANDABLE, BLOCK, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up")}),
        never_at_end=WELL,
        version="0.6.1",
        why="own memory rises under traffic only, above the start-up footprint, until it dies:"
        " no headroom at 0.95; utilisation 0.90; not KV",
        source=f"{VLLM}/issues/8413",
    ),
    Case(
        id="C26",
        kind="gpu",
        inputs=("C26.jsonl.gz",),
        accepted=frozenset({"memory_growth"}),
        never=FRAGMENTED
        | {"kv_leaked", "kv_exhausted", "kv_pressure", "co_tenant", "orphan", "headroom_low"},
        never_flags=frozenset({EXPANDABLE, BLOCK}),
        never_moves=frozenset({(OFFLOAD, "up"), (UTIL, "up")}),
        never_at_end=WELL,
        version="0.22.0",
        why="device memory grows without a plateau while KV is flat, only with KV offloading: a"
        " leak outside the pool; drop the offloading",
        source=f"{VLLM}/issues/44181",
    ),
    # Starts that do not fit.
    Case(
        id="C27",
        kind="log",
        inputs=("C27.log",),
        accepted=frozenset({"not_enough_free"}),
        never=UP | FRAGMENTED | {"no_kv_memory", "weights_too_big", "max_len_too_long"},
        flag=UTIL,
        interval=(0.62, 0.65),
        never_flags=frozenset({EXPANDABLE, MODEL_LEN, KV_DTYPE, SEQS, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.9.1",
        why="31.44 of 47.38 GiB are free, 45.01 wanted: 15.9 GiB of another container; 0.64, or"
        " free 13.6 GiB (0.65 is the most that starts with a margin of 1 %)",
        source=f"{VLLM}/issues/20305",
    ),
    Case(
        id="C28",
        kind="log",
        inputs=("C28.log",),
        accepted=frozenset({"not_enough_free"}),
        never=UP | FRAGMENTED | {"no_kv_memory", "weights_too_big", "max_len_too_long"},
        flag=UTIL,
        interval=(0.82, 0.84),
        never_flags=frozenset({EXPANDABLE, MODEL_LEN, KV_DTYPE, SEQS}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.10.2",
        why="10 MiB short (13.58 of 15.99 GiB free, 13.59 wanted): lower by 0.01",
        source="a public repository, 2025-09-30",
    ),
    Case(
        id="C29",
        kind="log",
        inputs=("C29.log",),
        accepted=frozenset({"not_enough_free"}),
        never=UP
        | FRAGMENTED
        | {"co_tenant", "neighbour_left", "no_kv_memory", "weights_too_big", "max_len_too_long"},
        flag=UTIL,
        interval=(0.91, 0.94),
        never_flags=frozenset({EXPANDABLE, MODEL_LEN, KV_DTYPE, SEQS}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.19-0.20",
        why="WSL's driver always keeps some 770 MB: 30.12 of 31.84 GiB free, 30.25 wanted; 0.93,"
        " at most 0.94; no neighbour, no use in trying again",
        source="a public repository, 2026-05-02",
    ),
    Case(
        id="C30",
        kind="log",
        inputs=("C30.log",),
        accepted=frozenset({"max_len_too_long"}),
        never=UP | FRAGMENTED | {"vllm_down", "co_tenant", "not_enough_free", "weights_too_big"},
        flag=MODEL_LEN,
        interval=(49_152, 50_824),
        bounds=((UTIL, 0.93, 0.95),),  # 0.92 adds 0.48 GiB, 0.55 are missing
        never_flags=frozenset({EXPANDABLE, BLOCK}),
        never_moves=frozenset({(UTIL, "down"), (MODEL_LEN, "up")}),
        version="0.27.1",
        why="1.9 GiB of KV, 2.45 needed for 65,536 tokens: about 50k tokens, or 0.93 of 24 GiB",
        source="a public repository, 2026-08-20",
    ),
    Case(
        id="C31",
        kind="log",
        inputs=("C31.log",),
        accepted=frozenset({"max_len_too_long"}),
        never=UP | FRAGMENTED | {"co_tenant", "not_enough_free", "weights_too_big"},
        flag=MODEL_LEN,
        interval=(7_328, 7_344),
        never_flags=frozenset({EXPANDABLE, BLOCK, KV_BYTES}),
        never_moves=frozenset({(UTIL, "down"), (MODEL_LEN, "up")}),
        version="0.3.x",
        why="32,768 tokens asked for, 7,344 fit: that many (a multiple of a block), or more"
        " utilisation",
        source="https://github.com/QwenLM/Qwen3/issues/295",
    ),
    Case(
        id="C32",
        kind="log",
        inputs=("C32.log",),
        accepted=frozenset({"activation_peak"}),
        never=UP
        | FRAGMENTED
        | {"weights_too_big", "co_tenant", "max_len_too_long", "not_enough_free", "graph_memory"},
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(MODEL_LEN, "up"), (BATCHED, "up"), (UTIL, "up")}),
        version="0.4.3",
        why="below 32k chunked prefill is off, so the profile's batch is larger: turn it on or"
        " batch fewer tokens, do not raise the length",
        source=f"{VLLM}/issues/5416",
    ),
    Case(
        id="C33",
        kind="log",
        inputs=("C33.log",),
        accepted=frozenset({"graph_memory"}),
        never=UP
        | FRAGMENTED
        | {"weights_too_big", "co_tenant", "not_enough_free", "no_kv_memory", "max_len_too_long"},
        flag=UTIL,
        interval=(0.88, 0.92),
        never_flags=frozenset({EXPANDABLE, KV_BYTES, "--cudagraph-capture-sizes"}),
        never_moves=frozenset({(UTIL, "up"), (SEQS, "up")}),
        version="0.6.5",
        why="graphs come on top of utilisation x total before 0.21: 0.95 dies while capturing,"
        " 0.90 works",
        source=f"{VLLM}/issues/17549, {VLLM}/issues/11251",
    ),
    Case(
        id="C34",
        kind="log",
        inputs=("C34.log",),
        accepted=frozenset({"graph_memory"}),
        never=FAILURES - {"graph_memory"},
        never_flags=frozenset(
            {
                EXPANDABLE,
                KV_BYTES,
                "--cudagraph-capture-sizes",
                "--max-cudagraph-capture-size",
                "--cuda-graph-sizes",
            }
        ),
        never_moves=frozenset({(SEQS, "up"), (UTIL, "up")}),
        version="0.8.3",
        why="4.10 GiB of graphs for 0.73 GiB of weights: fewer capture sizes (in this release"
        " only by the compilation config) or fewer sequences",
        source="a public repository, 2025-04-12",
    ),
    Case(
        id="C35",
        kind="log",
        inputs=("C35.log",),
        accepted=frozenset({"graph_memory", "not_enough_free"}),
        never=UP | FRAGMENTED | {"co_tenant", "neighbour_left", "no_kv_memory", "weights_too_big"},
        never_flags=frozenset({UTIL, EXPANDABLE, MODEL_LEN, SEQS}),
        version="0.17.0",
        why="the engine's own graph estimate went negative on ROCm and inflated the figure:"
        " do not trust it there, do not lower utilisation to 1.33 / 23.98",
        source=f"{VLLM}/pull/36720",
    ),
    Case(
        id="C36",
        kind="log",
        inputs=("C36.log",),
        accepted=frozenset({"activation_peak"}),
        never=UP
        | FRAGMENTED
        | {"weights_too_big", "single_allocation", "no_kv_memory", "not_enough_free"},
        flag=SEQS,
        interval=(128, 256),
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), (SEQS, "up")}),
        version="0.8.0",
        why="V1 raised the default from 256 to 1,024 sequences and the sampler's warm-up no"
        " longer fits: 256 first, then utilisation",
        source=f"{VLLM}/pull/15357, {VLLM}/issues/12529",
    ),
    Case(
        id="C37",
        kind="log",
        inputs=("C37.log",),
        accepted=frozenset({"co_tenant", "no_kv_memory"}),
        never=UP
        | FRAGMENTED
        | {"weights_too_big", "activation_peak", "max_len_too_long", "not_enough_free"},
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "down")}),
        version="0.6.4.post1",
        why="up to 0.9.0 the other server's 29 GiB count as one's own: nothing left of 0.3,"
        " though 66 GiB of the card are free",
        source=f"{VLLM}/issues/10643",
    ),
    Case(
        id="C38",
        kind="gpu",
        inputs=("C38.jsonl.gz", "C38.log"),
        accepted=frozenset({"co_tenant", "no_kv_memory"}),
        never=UP
        | FRAGMENTED
        | {
            "weights_too_big",
            "max_len_too_long",
            "not_enough_free",
            "orphan",
            "vllm_down",
            "memory_growth",
        },
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "down")}),
        version="0.9.0",
        why="two servers at 0.4 on 8 GB: the first one's 3.5 GiB count as the second's; fixed"
        " in 0.9.1",
        source=f"{VLLM}/issues/19125",
    ),
    # Sleep and LoRA.
    Case(
        id="C39",
        kind="log",
        inputs=("C39.log",),
        accepted=frozenset({"asleep", "co_tenant", "started"}),
        never=LEAKING | (FAILURES - {"neighbour_left"}) | {"orphan"},
        never_flags=frozenset({UTIL, EXPANDABLE}),
        version="0.8.4",
        why="26.31 GiB still in use belong to the trainer on the same GPU: no leak of vLLM's",
        source=f"{VLLM}/issues/17117",
    ),
    Case(
        id="C40",
        kind="gpu",
        inputs=("C40.jsonl.gz", "C40.log"),
        accepted=frozenset({"memory_growth"}),
        never=FRAGMENTED | {"kv_leaked", "kv_exhausted", "co_tenant", "orphan", "vllm_down"},
        never_flags=frozenset({EXPANDABLE, BLOCK}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.20.0",
        why="4.1, 11.6, 25, 24 GiB left after each sleep: memory leaks from cycle to cycle",
        source="https://github.com/NVIDIA-NeMo/RL/issues/2619",
    ),
    Case(
        id="C42",
        kind="log",
        inputs=("C42.log",),
        accepted=frozenset({"runtime_oom", "headroom_low"}),
        never=WELL | {"allocator_slack", "co_tenant", "weights_too_big", "kv_leaked"},
        bounds=((UTIL, 0.84, 0.88), (BATCHED, 1024, 8192)),
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), (BATCHED, "up")}),
        version="0.7.3",
        why="LoRA buffers grow with the tokens of a step and are not in the profile: 8,192"
        " tokens a step, utilisation - 0.03",
        source=f"{VLLM}/issues/15039",
    ),
    Case(
        id="C43",
        kind="log",
        inputs=("C43.log",),
        accepted=frozenset({"runtime_oom", "headroom_low"}),
        never=WELL | {"allocator_slack", "co_tenant", "weights_too_big", "kv_leaked"},
        bounds=((UTIL, 0.83, 0.87),),
        never_flags=frozenset({EXPANDABLE}),
        never_moves=frozenset({(UTIL, "up"), (LORAS, "up")}),
        version="0.11.1",
        why="dies as soon as the adapters load after an upgrade, no cause known: utilisation"
        " - 0.05, compare the start-up lines of both releases",
        source=f"{VLLM}/issues/29049",
    ),
    # Pages that changed, or are not vLLM's.
    Case(
        id="C44",
        kind="page",
        inputs=("C44.prom",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        version="0.11.0",
        why="gpu_cache_usage_perc is hidden from 0.11, its successor is there: nothing is missing",
        source=f"{VLLM}/pull/27133, {VLLM}/issues/27341",
    ),
    Case(
        id="C45",
        kind="page",
        inputs=("C45.prom",),
        accepted=frozenset({"idle"}),
        never=FALSE_ALARMS,
        version="0.25.1",
        why="swapped requests, time per output token and the old cache name are gone in V1: not"
        " missing, not zero",
        source="https://github.com/vllm-project/production-stack/pull/989",
    ),
    Case(
        id="C46",
        kind="page",
        inputs=("C46.prom",),
        accepted=frozenset({"idle"}),
        never=FALSE_ALARMS | {"kv_unexplained"},
        version="0.10.0",
        why="an engine label and both names must be read; at rest this release shows one block"
        " of 102,563 as used",
        source="https://github.com/vllm-project/production-stack/issues/617",
    ),
    Case(
        id="C47",
        kind="page",
        inputs=("C47.prom",),
        accepted=frozenset({"metrics_missing"}),
        never=WELL | {"metrics_invalid", "vllm_down", "stalled", "over_reserved", "starting"},
        version="0.8.1",
        why="the router was asked, not the engine: the target answers without vllm: series",
        source="https://github.com/vllm-project/production-stack/issues/318",
    ),
    Case(
        id="C48",
        kind="page",
        inputs=("C48.prom",),
        accepted=frozenset({"metrics_missing"}),
        never=WELL | {"metrics_invalid", "vllm_down", "stalled", "over_reserved", "starting"},
        version="0.5.4",
        why="the multi-process front end lost the engine's series: upgrade, or"
        " --disable-frontend-multiprocessing",
        source=f"{VLLM}/issues/7188, {VLLM}/issues/8612",
    ),
    Case(
        id="C49",
        kind="page",
        inputs=("C49.prom",),
        accepted=frozenset({"metrics_missing"}),
        never=WELL | {"metrics_invalid", "vllm_down", "stalled", "over_reserved"},
        version="0.6.1",
        why="declared and never set, since the engine's statistics are off: not zero",
        source="https://github.com/MeetKai/functionary/pull/263",
    ),
    Case(
        id="C50",
        kind="recording",
        inputs=("C50.jsonl.gz", "C50.log"),
        accepted=frozenset({"metrics_missing", "started"}),
        never=WELL | {"vllm_down", "vllm_blind", "orphan", "kv_leaked", "co_tenant", "stalled"},
        version="0.9.0",
        why="used as a library: there is no page and no statistics line, and nothing is wrong",
        source=f"{VLLM}/issues/16348, {VLLM}/issues/18948",
    ),
    Case(
        id="C51",
        kind="page",
        inputs=("C51.prom", "C51.log"),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        version="0.10.2",
        why="several API servers stop the statistics lines by design, the page stays; the stale"
        " zero of the second server is not a disagreement",
        source=f"{VLLM}/pull/22227",
    ),
    Case(
        id="C52",
        kind="recording",
        inputs=("C52.jsonl.gz",),
        accepted=frozenset({"kv_exhausted"}),
        never=frozenset(
            {
                "metrics_invalid",
                "metrics_missing",
                "seqs_capped",
                "token_budget_capped",
                "internal_fragmentation",
                "kv_leaked",
                "stalled",
                "vllm_down",
            }
        ),
        never_flags=frozenset({BLOCK, EXPANDABLE}),
        never_moves=NEED_MORE_KV,
        never_at_end=WELL,
        version="0.25.0",
        why="two engines, one full: taking the last one or the mean hides it (judged for each"
        " engine; for the server as a whole nothing is well)",
        source=f"{VLLM}/pull/21257",
    ),
    Case(
        id="C53",
        kind="recording",
        inputs=("C53.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        version="0.9.2",
        why="four API servers count each step four times: no rate may rest on the step counts",
        source=f"{VLLM}/pull/18053, {VLLM}/pull/51329",
    ),
    Case(
        id="C54",
        kind="recording",
        inputs=("C54.jsonl.gz",),
        accepted=frozenset({"vllm_blind"}),
        never=WELL | {"vllm_down", "starting", "orphan", "stalled", "co_tenant"},
        version="0.25.0",
        why="the page is 500 for ever, serving is fine: blind, not down; /health (200 there) is"
        " not in a recording, but a server that answers 500 is not gone",
        source=f"{VLLM}/issues/49983",
    ),
    Case(
        id="C55",
        kind="recording",
        inputs=("C55.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS - {"vllm_blind"},
        version="0.25.0",
        why="the page is slow and times out at times while requests run: gaps, not a death and"
        " not a stall",
        source="https://github.com/ROCm/rocm-aic/pull/134",
    ),
    Case(
        id="C57",
        kind="page",
        inputs=("C57.prom",),
        accepted=frozenset({"metrics_missing"}),
        never=WELL | {"metrics_invalid", "vllm_down", "stalled", "over_reserved"},
        why="a redirect that nobody follows: an empty answer is a failure, not a success",
        source="https://github.com/BerriAI/litellm/issues/30079",
    ),
    Case(
        id="C60",
        kind="log",
        inputs=("C60.log",),
        accepted=frozenset({"metrics_invalid", "not_memory"}),
        never=WELL
        | (FAILURES - {"not_memory"})
        | {"kv_exhausted", "kv_leaked", "memory_growth", "headroom_low", "host_memory_low"},
        never_flags=MEMORY_FLAGS | {SEQS, BATCHED},
        version="0.19.1",
        why="a negative count breaks vLLM's own metrics and kills the stream: upgrade or turn"
        " the statistics off; no memory flag helps",
        source=f"{VLLM}/issues/43031, {VLLM}/issues/26372",
    ),
    Case(
        id="C61",
        kind="page",
        inputs=("C61.prom",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        version="0.11.0",
        why="Ray's exporter says ray_vllm_ and leaves out counters that never moved: read it,"
        " nothing is missing",
        source="https://github.com/ray-project/ray/issues/59071",
    ),
    Case(
        id="C62",
        kind="page",
        inputs=("C62.prom",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS | {"kv_pressure"},
        version="0.10.2",
        why="old and new name of one series stand together: never add an alias to its successor",
        source="https://github.com/gpustack/gpustack/issues/2985",
    ),
    # NVML and the devices.
    Case(
        id="C66",
        kind="gpu",
        inputs=("C66.jsonl.gz",),
        accepted=frozenset({"gpu_unreadable"}),
        never=frozenset(
            {
                "vllm_down",
                "orphan",
                "headroom_low",
                "memory_growth",
                "co_tenant",
                "stalled",
                "metrics_missing",
                "restarted",
            }
        ),
        never_flags=MEMORY_FLAGS,
        version="0.19.1",
        why="the container lost its devices, vLLM serves on: recreate the container, keep vLLM's"
        " half, never 0 bytes",
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    Case(
        id="C67",
        kind="gpu",
        inputs=("C67.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        never_flags=MEMORY_FLAGS - {UTIL, KV_BYTES},
        version="0.8.3",
        why="no process is visible from this container: whose the bytes are is unknown, which is"
        " no alarm",
        source="https://github.com/NVIDIA/nvidia-docker/issues/1483",
    ),
    Case(
        id="C68",
        kind="gpu",
        inputs=("C68.jsonl.gz",),
        accepted=frozenset({"healthy"}),
        never=FALSE_ALARMS,
        version="0.22.1",
        why="a pid that is not found means unknown, never 0 and never somebody else's",
        source="https://github.com/vllm-project/vllm-omni/issues/6243",
    ),
    Case(
        id="C69",
        kind="gpu",
        inputs=("C69.jsonl.gz",),
        accepted=frozenset({"gpu_unreadable"}),
        never=frozenset(
            {
                "vllm_down",
                "orphan",
                "headroom_low",
                "memory_growth",
                "co_tenant",
                "stalled",
                "metrics_missing",
            }
        ),
        never_flags=MEMORY_FLAGS - {UTIL, KV_BYTES},
        version="0.24.0",
        why="a MIG slice was asked by its parent's handle: no permission; ask the slice by its"
        " own UUID, do not use the parent's figures",
        source=f"{VLLM}/pull/39874, {VLLM}/pull/50463",
    ),
    Case(
        id="C70",
        kind="log",
        inputs=("C70.log",),
        accepted=frozenset({"runtime_oom"}),
        never=WELL | {"not_memory", "gpu_unreadable", "metrics_invalid", "allocator_slack"},
        never_flags=frozenset({KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), (SEQS, "up")}),
        version="0.6.3",
        why="the assert hides an out of memory inside a MIG slice: treat it as one (and"
        " expandable_segments off, not on)",
        source="https://github.com/pytorch/pytorch/issues/112377",
    ),
    Case(
        id="C71",
        kind="log",
        inputs=("C71.log",),
        accepted=frozenset({"not_enough_free"}),
        never=UP | FRAGMENTED | {"metrics_invalid", "no_kv_memory", "weights_too_big"},
        flag=UTIL,
        interval=(0.43, 0.46),
        never_flags=frozenset({EXPANDABLE, MODEL_LEN, KV_DTYPE, SEQS}),
        never_moves=frozenset({(UTIL, "up")}),
        version="0.24.0",
        why="unified memory with 55.87 of 119.56 GiB free, 59.78 wanted: really 3.9 GiB short,"
        " the counter is right",
        source=f"{VLLM}/issues/48140",
    ),
    Case(
        id="C72",
        kind="gpu",
        inputs=("C72.jsonl.gz",),
        accepted=frozenset({"host_memory_low"}),
        never=FRAGMENTED | LEAKING | {"kv_exhausted", "kv_pressure", "co_tenant", "vllm_down"},
        bounds=((KV_BYTES, 2**30, 36_863 * 2**20),),
        never_flags=frozenset({UTIL, EXPANDABLE, BLOCK}),
        never_moves=frozenset({(BATCHED, "up")}),
        never_at_end=WELL,
        version="0.24.0",
        why="unified memory used up to 99.8 % by everything together before the host froze, KV"
        " fixed at 36 GiB: warn before; fewer KV bytes (utilisation is not in force)",
        source="a public repository, 2026-07-13",
    ),
    Case(
        id="C73",
        kind="log",
        inputs=("C73.log",),
        accepted=frozenset({"host_oom"}),
        never=UP | (FAILURES - {"host_oom"}),
        bounds=((UTIL, 0.3, 0.6),),
        never_flags=frozenset({EXPANDABLE, KV_BYTES}),
        never_moves=frozenset({(UTIL, "up"), (SEQS, "up")}),
        version="0.6.3",
        why="the log ends with Killed and no error of CUDA's: 0.9 of shared memory was too much"
        " for the host; utilisation 0.5",
        source="https://github.com/dusty-nv/jetson-containers/issues/795",
    ),
    Case(
        id="C74",
        kind="gpu",
        inputs=("C74.jsonl.gz",),
        accepted=frozenset({"orphan"}),
        never=LEAKING | {"co_tenant", "neighbour_left", "gpu_unreadable", "stalled"},
        never_flags=MEMORY_FLAGS,
        never_at_end=WELL | {"starting"},
        version="0.28.0",
        why="the port is closed and the engine's workers still hold the GPUs: end those pids;"
        " they are no neighbour's",
        source=f"{VLLM}/issues/55510",
    ),
    Case(
        id="C75",
        kind="gpu",
        inputs=("C75.jsonl.gz",),
        accepted=frozenset({"orphan"}),
        never=LEAKING | {"co_tenant", "neighbour_left", "gpu_unreadable", "stalled"},
        never_flags=MEMORY_FLAGS,
        never_at_end=WELL | {"starting"},
        version="0.18.0",
        why="22 GB stay with processes of a container that was removed",
        source="https://github.com/vllm-project/vllm-omni/issues/2317",
    ),
    Case(
        id="C76",
        kind="gpu",
        inputs=("C76.jsonl.gz", "C76.log"),
        accepted=frozenset({"gpu_unreadable"}),
        never=LEAKING
        | FRAGMENTED
        | {"runtime_oom", "headroom_low", "kv_exhausted", "co_tenant", "host_oom"},
        never_flags=MEMORY_FLAGS | {SEQS, EAGER},
        never_at_end=WELL,
        version="0.11.0",
        why="a launch failure, then ERR! on one of eight GPUs until a reboot: hardware or driver,"
        " no memory flag helps",
        source=f"{VLLM}/issues/27430",
    ),
    # Queues, blocks and graphs again, and the host.
    Case(
        id="C77",
        kind="page",
        inputs=("C77.prom",),
        accepted=frozenset({"lora_capped"}),
        never=WELL
        | FRAGMENTED
        | {"seqs_capped", "token_budget_capped", "kv_exhausted", "kv_pressure", "over_reserved"},
        flag=LORAS,
        interval=(8, 8),  # 4 adapters run and 4 wait
        never_flags=MEMORY_FLAGS,
        never_moves=frozenset({(SEQS, "up"), (LORAS, "down")}),
        version="0.20.2",
        why="41 of 44 waiting are deferred and adapters wait: LoRA slots, not memory and not"
        " sequences; --max-loras 8",
        source="a public performance guide, 2026",
    ),
    Case(
        id="C78",
        kind="recording",
        inputs=("C78.jsonl.gz", "C78.log"),
        accepted=frozenset({"internal_fragmentation"}),
        never=frozenset(
            {
                "kv_exhausted",
                "kv_pressure",
                "kv_leaked",
                "seqs_capped",
                "allocator_slack",
                "stalled",
                "kv_unexplained",
            }
        ),
        never_flags=frozenset({BLOCK, EXPANDABLE}),
        version="0.28.0",
        why="blocks of 7,808 tokens are mostly empty: real, but the model's alignment sets the"
        " size and --block-size cannot change it",
        source=f"{VLLM}/issues/54458",
    ),
    Case(
        id="C79",
        kind="log",
        inputs=("C79.log",),
        accepted=frozenset({"internal_fragmentation", "graph_memory"}),
        never=WELL | (FAILURES - {"graph_memory"}) | {"kv_leaked", "co_tenant"},
        bounds=((UTIL, 0.62, 0.70),),
        never_flags=frozenset({BLOCK, EXPANDABLE}),
        never_moves=frozenset({(UTIL, "down")}),
        version="0.21+",
        why="padding layers of the draft model waste up to 60 % of the pool, and graphs are"
        " estimated at 6.24 GiB: fewer capture sizes or another draft model",
        source=f"{VLLM}/issues/46462",
    ),
    Case(
        id="C80",
        kind="gpu",
        inputs=("C80.jsonl.gz", "C80.log"),
        accepted=frozenset({"host_oom", "host_memory_low"}),
        never=UP
        | (FAILURES - {"host_oom"})
        | {"headroom_low", "co_tenant", "memory_growth", "vllm_down"},
        never_flags=frozenset({UTIL, KV_DTYPE, KV_BYTES, SEQS, MODEL_LEN, EXPANDABLE, BLOCK}),
        version="0.28.0",
        why="0.28 takes the host's memory while it starts, 0.27.1 does not: the host, not the GPU",
        source=f"{VLLM}/issues/54237",
    ),
)

EXCLUDED: Mapping[str, str] = MappingProxyType(
    {
        "C41": "no verdict says that the engine itself over-estimates its pool (sleep allocator)",
        "C56": "about another server's way to be scraped: the sidecar's own back-off, no verdict",
        "C58": "a dashboard that sums ratios: a matter of rules",
        "C59": "a rule that takes a histogram's sum for throughput: a matter of rules",
        "C63": "another exporter's setting in milliseconds: the sidecar's own settings, no verdict",
        "C64": "another exporter's failed look-ups: the sidecar's own NVML source, no verdict",
        "C65": "another monitor's way of polling: the sidecar's own NVML source, no verdict",
        "C81": "a rule without hysteresis: a matter of rules",
        "C82": "a rule that breaks a histogram: a matter of rules",
    }
)
"""Reports that no input and verdict can represent, and why."""
