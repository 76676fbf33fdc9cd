"""The server ran out of GPU memory before it was up."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Verdict
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.memory_arithmetic import gib, margin_bytes, round_utilization_down
from sidecar.verdicts.out_of_memory_figures import (
    NO_SEGMENTS,
    figures,
    foreign_bytes,
    less_utilization,
)


def graph_memory(case: FailedStart) -> Verdict:
    """No room beside the pool for what CUDA graphs keep."""
    return Verdict(
        "graph_memory",
        "critical",
        "high",
        "Memory ran out while CUDA graphs were captured.",
        evidence=figures(case),
        advice=(
            *less_utilization(case, by=0.05),
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


def activation_peak(case: FailedStart) -> Verdict:
    """The trial step of the start, or the sampler's warm-up with its dummy requests."""
    start, dummy_requests = case.start, case.failure.dummy_requests
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
    advice.extend(less_utilization(case))
    return Verdict(
        "activation_peak",
        "critical",
        "high",
        "The largest step does not fit beside the weights.",
        evidence=figures(case),
        advice=tuple(advice),
        avoid=(NO_SEGMENTS,),
    )


def weights_too_big(case: FailedStart) -> Verdict:
    """Loading alone takes more than there is."""
    tensor_parallel = case.start.tensor_parallel_size or 1
    return Verdict(
        "weights_too_big",
        "critical",
        "high" if case.message is not None else "medium",
        "The weights do not fit on the device.",
        evidence=figures(case),
        advice=(
            Advice(
                "--tensor-parallel-size",
                str(2 * tensor_parallel),
                "half of the weights on each GPU",
                "or a quantised model (--quantization), or --cpu-offload-gb at the cost of speed",
                current=str(tensor_parallel),
            ),
        ),
        avoid=(
            NO_SEGMENTS,
            Avoid("--gpu-memory-utilization", "the weights are loaded before it matters"),
        ),
    )


def not_enough_free(case: FailedStart) -> Verdict:
    """Others hold a notable part of the card."""
    foreign = foreign_bytes(case.message)
    return Verdict(
        "not_enough_free",
        "critical",
        "high",
        f"Other processes hold {gib(foreign)} of the card; the server does not fit beside them.",
        evidence=figures(case),
        advice=(
            Advice(
                "neighbour",
                None,
                f"{gib(foreign)} come back",
                "end or move the other process, then start again",
            ),
            *_beside(case, foreign),
        ),
        avoid=(NO_SEGMENTS,),
    )


def _beside(case: FailedStart, foreign: int) -> Iterable[Advice]:
    """The share that is left beside the other processes."""
    message = case.message
    if message is None or message.total_bytes is None:
        return
    total, now = message.total_bytes, case.start.gpu_memory_utilization
    to = round_utilization_down((total - foreign - margin_bytes(total)) / total)
    if to > 0 and (now is None or to < now):
        yield Advice(
            "--gpu-memory-utilization",
            f"{to:.2f}",
            "the server takes no more than what is left",
            f"{gib(total - foreign)} of {gib(total)} are not held by others",
            current=None if now is None else f"{now:g}",
        )
