"""PyTorch ran out of memory: who held it, what was asked for, and whether fragmentation is to
blame.

PyTorch prints a hint about `expandable_segments` whatever the figures are. It helps only where a
notable share of the card is reserved and unallocated; in the public reports that were collected
it was 0.04 to 1.6 %.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.sources.releases import Release
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.startlog.start import Start
from sidecar.verdicts.memory_arithmetic import gib, margin_bytes, round_utilization_down
from sidecar.verdicts.situation import GIB

SLACK_RATIO = 0.05
SINGLE_ALLOCATION_RATIO = 0.9
NEIGHBOUR_BYTES = GIB
LORA_STEP = 0.05
"""With adapters: they are profiled as dummies, and real ones leave more behind."""
SLEEP_WITH_SEGMENTS_SINCE: Release = (0, 22, 0)

_NO_SEGMENTS = Avoid(
    "expandable_segments",
    "the allocator's slack is too small for it to help, whatever PyTorch's message says",
)


def judge_out_of_memory(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    """The kind of trouble behind an out-of-memory error, by its figures and its moment."""
    message = failure.out_of_memory
    if failure.kind == "oom_in_disguise":
        return _disguised(start)
    if message is not None and message.total_bytes is not None:
        tried, total = message.tried_bytes or 0, message.total_bytes
        if tried >= SINGLE_ALLOCATION_RATIO * total:
            return _single_allocation(message)
        if (message.reserved_unallocated_bytes or 0) >= SLACK_RATIO * total:
            return _allocator_slack(start, message, release)
    if failure.moment == "serving" or (failure.moment is None and start.started):
        return _runtime(start, message)
    if failure.kind == "sampler_warmup_oom" or failure.moment == "sampler_warmup":
        return _activations(start, message, failure.dummy_requests)
    if foreign_bytes(message) >= NEIGHBOUR_BYTES:
        return _neighbour(start, message)
    if failure.moment == "graph_capture":
        return _graphs(start, message)
    if failure.moment == "profiling":
        return _activations(start, message, None)
    if failure.kind == "load_model_oom" or failure.moment in (None, "loading"):
        return _weights(start, message)
    return _runtime(start, message)


def foreign_bytes(message: OutOfMemory | None) -> int:
    """Bytes of other processes at that moment: as named, else what the device's figures leave."""
    if message is None:
        return 0
    own = message.this_process_bytes
    if own is None and message.allocated_bytes is not None:
        own = _own_bytes(message, message.allocated_bytes)
    if own is None or message.total_bytes is None or message.free_bytes is None:
        return sum(size for _, size in message.processes)
    return max(0, message.total_bytes - message.free_bytes - own)


def _own_bytes(message: OutOfMemory, allocated: int) -> int:
    """What the failing process holds, where the message does not name it as its own: in a
    container it stands among the others under the host's number; before PyTorch 2.1 it is what
    PyTorch reserves, and half a GiB for the context around it."""
    large_enough = [size for _, size in message.processes if size >= allocated]
    if large_enough:
        return max(large_enough)
    return allocated + (message.reserved_unallocated_bytes or 0) + GIB // 2


def _figures(message: OutOfMemory | None) -> tuple[Evidence, ...]:
    if message is None:
        return ()
    named = (
        ("tried_bytes", message.tried_bytes),
        ("free_bytes", message.free_bytes),
        ("total_bytes", message.total_bytes),
        ("this_process_bytes", message.this_process_bytes),
        ("allocated_bytes", message.allocated_bytes),
        ("reserved_unallocated_bytes", message.reserved_unallocated_bytes),
    )
    found = [Evidence(name, float(value), "bytes") for name, value in named if value is not None]
    if message.reserved_unallocated_bytes is not None and message.total_bytes:
        share = message.reserved_unallocated_bytes / message.total_bytes
        found.append(Evidence("allocator_slack_ratio", share, "ratio", SLACK_RATIO))
    if foreign_bytes(message) > 0:
        found.append(Evidence("other_processes_bytes", float(foreign_bytes(message)), "bytes"))
    return tuple(found)


def _less_utilization(
    start: Start, message: OutOfMemory | None, by: float = 0.02
) -> Iterable[Advice]:
    """Room outside the pool: what was asked for and a margin, and no less than `by`.

    By the flag in force; nothing where too little would be left for the weights.
    """
    total = message.total_bytes if message is not None else None
    if message is not None and total and message.tried_bytes is not None:
        missing = message.tried_bytes - (message.free_bytes or 0) + margin_bytes(total)
        by = max(by, missing / total)
    expect = "that much stays free outside the KV cache"
    why = "what was asked for and a margin; go back by 0.02 once it is stable"
    if start.num_gpu_blocks_override is not None:
        blocks = str(start.num_gpu_blocks_override)
        yield Advice("--num-gpu-blocks-override", None, expect, why, current=blocks)
    elif start.kv_cache_memory_bytes is not None:
        held = start.kv_cache_memory_bytes
        left = None if total is None else int(held - by * total)
        if left is None or left > 0:
            to = None if left is None else str(left)
            yield Advice("--kv-cache-memory-bytes", to, expect, why, current=str(held))
    elif start.gpu_memory_utilization is not None:
        now = start.gpu_memory_utilization
        to_ratio = round_utilization_down(now - by)
        least = (start.weights_bytes_per_rank or 0) / total if total else 0.0
        if to_ratio > least:
            yield Advice(
                "--gpu-memory-utilization", f"{to_ratio:.2f}", expect, why, current=f"{now:g}"
            )


def _runtime(start: Start, message: OutOfMemory | None) -> Verdict:
    foreign = foreign_bytes(message)
    asked = f"asked for {gib(message.tried_bytes)}" if message and message.tried_bytes else "ran"
    holder = (
        f"other processes held {gib(foreign)} of the card"
        if foreign >= NEIGHBOUR_BYTES
        else "nothing was left beside its own memory"
    )
    advice: list[Advice] = []
    if foreign >= NEIGHBOUR_BYTES:
        advice.append(
            Advice(
                "neighbour",
                None,
                f"{gib(foreign)} come back",
                "end or move the other process, or size both so that the first large prefill "
                "still fits",
            )
        )
        advice.append(
            Advice(
                "--kv-cache-memory-bytes",
                None,
                "a KV cache that leaves headroom for the neighbour and for the first load",
                "the first load alone takes about a GiB beyond what is measured at the start",
            )
        )
    else:
        adapters = start.arguments.get("enable_lora") or start.arguments.get("max_loras")
        advice.extend(_less_utilization(start, message, by=LORA_STEP if adapters else 0.02))
        advice.append(
            Advice(
                "--max-num-batched-tokens",
                None,
                "smaller peaks outside the KV cache",
                "activation memory grows with the tokens of a step",
                current=None
                if start.max_num_batched_tokens is None
                else str(start.max_num_batched_tokens),
            )
        )
    return Verdict(
        "runtime_oom",
        "critical",
        "high" if message is not None else "medium",
        f"The server {asked} and died of running out of GPU memory while serving: {holder}.",
        evidence=_figures(message),
        advice=tuple(advice),
        avoid=(_NO_SEGMENTS, Avoid("--block-size", "the KV cache is not what failed")),
    )


def _single_allocation(message: OutOfMemory) -> Verdict:
    return Verdict(
        "single_allocation",
        "critical",
        "high",
        f"A single request for {gib(message.tried_bytes or 0)} is larger than the card "
        f"({gib(message.total_bytes or 0)}) can ever give.",
        evidence=_figures(message),
        advice=(
            Advice(
                "attention backend",
                None,
                "no such allocation",
                "an attention fallback builds the whole matrix: install the backend that the "
                "release expects, or shorten the input (smaller images, --max-model-len)",
            ),
        ),
        avoid=(
            _NO_SEGMENTS,
            Avoid("--gpu-memory-utilization", "no share of this card is large enough"),
        ),
    )


def _allocator_slack(start: Start, message: OutOfMemory, release: Release | None) -> Verdict:
    slack = message.reserved_unallocated_bytes or 0
    share = slack / (message.total_bytes or 1)
    asleep = bool(start.arguments.get("enable_sleep_mode"))
    too_old = release is None or release < SLEEP_WITH_SEGMENTS_SINCE
    advice: list[Advice] = []
    if not (asleep and too_old):
        advice.append(
            Advice(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                None,
                f"up to {gib(slack)} can be used again",
                "here the allocator's slack really is large; it is an environment variable",
            )
        )
    advice.extend(_less_utilization(start, message))
    return Verdict(
        "allocator_slack",
        "critical",
        "high",
        f"{gib(slack)} ({share:.0%} of the card) are reserved by PyTorch and unallocated: the "
        "allocator is fragmented.",
        evidence=_figures(message),
        advice=tuple(advice),
    )


def _graphs(start: Start, message: OutOfMemory | None) -> Verdict:
    return Verdict(
        "graph_memory",
        "critical",
        "high",
        "Memory ran out while CUDA graphs were captured.",
        evidence=_figures(message),
        advice=(
            *_less_utilization(start, message, by=0.05),
            Advice(
                "--cudagraph-capture-sizes",
                None,
                "fewer and smaller graphs",
                "before 0.20 graphs come on top of the utilisation, so they need room beside it",
            ),
            Advice(
                "--enforce-eager",
                None,
                "no graphs at all",
                "the last resort: it cost 65 % of the tokens per second where it was measured",
            ),
        ),
        avoid=(_NO_SEGMENTS,),
    )


def _activations(start: Start, message: OutOfMemory | None, dummy_requests: int | None) -> Verdict:
    seqs = start.max_num_seqs or dummy_requests
    advice: list[Advice] = []
    if dummy_requests is not None or (seqs is not None and seqs > 256):
        to = min(256, max(1, (seqs or 512) // 2))
        advice.append(
            Advice(
                "--max-num-seqs",
                str(to),
                "the warm-up and the sampler take less",
                "the default rose to 1024 with V1 (0.8.0); few servers need it",
                current=None if seqs is None else str(seqs),
            )
        )
    advice.append(
        Advice(
            "--max-num-batched-tokens",
            None,
            "a smaller peak",
            "activation memory grows with the tokens of a step; --enable-chunked-prefill where it "
            "is not the default",
            current=None
            if start.max_num_batched_tokens is None
            else str(start.max_num_batched_tokens),
        )
    )
    advice.extend(_less_utilization(start, message))
    return Verdict(
        "activation_peak",
        "critical",
        "high",
        "The largest step does not fit beside the weights.",
        evidence=_figures(message),
        advice=tuple(advice),
        avoid=(_NO_SEGMENTS,),
    )


def _weights(start: Start, message: OutOfMemory | None) -> Verdict:
    return Verdict(
        "weights_too_big",
        "critical",
        "high" if message is not None else "medium",
        "The weights do not fit on the device.",
        evidence=_figures(message),
        advice=(
            Advice(
                "--tensor-parallel-size",
                str(2 * (start.tensor_parallel_size or 1)),
                "half of the weights on each GPU",
                "or a quantised model (--quantization), or --cpu-offload-gb at the cost of speed",
                current=str(start.tensor_parallel_size or 1),
            ),
        ),
        avoid=(
            _NO_SEGMENTS,
            Avoid("--gpu-memory-utilization", "the weights are loaded before it matters"),
        ),
    )


def _neighbour(start: Start, message: OutOfMemory | None) -> Verdict:
    foreign = foreign_bytes(message)
    return Verdict(
        "not_enough_free",
        "critical",
        "high",
        f"Other processes hold {gib(foreign)} of the card; the server does not fit beside them.",
        evidence=_figures(message),
        advice=(
            Advice(
                "neighbour",
                None,
                f"{gib(foreign)} come back",
                "end or move the other process, then start again",
            ),
            *_beside(start, message, foreign),
        ),
        avoid=(_NO_SEGMENTS,),
    )


def _beside(start: Start, message: OutOfMemory | None, foreign: int) -> Iterable[Advice]:
    """The share that is left beside the other processes."""
    if message is None or message.total_bytes is None:
        return
    total, now = message.total_bytes, start.gpu_memory_utilization
    to = round_utilization_down((total - foreign - margin_bytes(total)) / total)
    if to > 0 and (now is None or to < now):
        yield Advice(
            "--gpu-memory-utilization",
            f"{to:.2f}",
            "the server takes no more than what is left",
            f"{gib(total - foreign)} of {gib(total)} are not held by others",
            current=None if now is None else f"{now:g}",
        )


def _disguised(start: Start) -> Verdict:
    return Verdict(
        "runtime_oom" if start.started else "activation_peak",
        "critical",
        "medium",
        "PyTorch's allocator failed in its own NVML query: this is running out of memory in "
        "disguise, known on MIG devices.",
        evidence=(Evidence("message", start.last_exception or "NVML_SUCCESS == r"),),
        advice=(
            Advice(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
                None,
                "the honest message, or none",
                "the query belongs to expandable segments",
            ),
            *_less_utilization(start, None),
        ),
    )
