"""The server ran out of GPU memory before it was up."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Verdict
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.startlog.start import Start
from sidecar.verdicts.memory_arithmetic import gib, margin_bytes, round_utilization_down
from sidecar.verdicts.out_of_memory_figures import (
    NO_SEGMENTS,
    figures,
    foreign_bytes,
    less_utilization,
)


def graph_memory(start: Start, message: OutOfMemory | None) -> Verdict:
    return Verdict(
        "graph_memory",
        "critical",
        "high",
        "Memory ran out while CUDA graphs were captured.",
        evidence=figures(message),
        advice=(
            *less_utilization(start, message, by=0.05),
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
        avoid=(NO_SEGMENTS,),
    )


def activation_peak(
    start: Start, message: OutOfMemory | None, dummy_requests: int | None
) -> Verdict:
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
    advice.extend(less_utilization(start, message))
    return Verdict(
        "activation_peak",
        "critical",
        "high",
        "The largest step does not fit beside the weights.",
        evidence=figures(message),
        advice=tuple(advice),
        avoid=(NO_SEGMENTS,),
    )


def weights_too_big(start: Start, message: OutOfMemory | None) -> Verdict:
    return Verdict(
        "weights_too_big",
        "critical",
        "high" if message is not None else "medium",
        "The weights do not fit on the device.",
        evidence=figures(message),
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
            NO_SEGMENTS,
            Avoid("--gpu-memory-utilization", "the weights are loaded before it matters"),
        ),
    )


def not_enough_free(start: Start, message: OutOfMemory | None) -> Verdict:
    foreign = foreign_bytes(message)
    return Verdict(
        "not_enough_free",
        "critical",
        "high",
        f"Other processes hold {gib(foreign)} of the card; the server does not fit beside them.",
        evidence=figures(message),
        advice=(
            Advice(
                "neighbour",
                None,
                f"{gib(foreign)} come back",
                "end or move the other process, then start again",
            ),
            *_beside(start, message, foreign),
        ),
        avoid=(NO_SEGMENTS,),
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
