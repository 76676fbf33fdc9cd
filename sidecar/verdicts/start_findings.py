"""What is worth saying beside the outcome of a start: graphs, padding, broken counters."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.settings import Thresholds
from sidecar.startlog.start import Start
from sidecar.verdicts.memory_arithmetic import gib
from sidecar.verdicts.situation import GIB

GRAPH_ESTIMATE_RATIO = 0.20


def findings(start: Start, thresholds: Thresholds) -> Iterable[Verdict]:
    """What is worth saying beside the outcome."""
    yield from _graphs(start, thresholds.graph_memory_ratio)
    yield from _padding(start)
    yield from _counter_errors(start)


def _counter_errors(start: Start) -> Iterable[Verdict]:
    """vLLM's own statistics tried to count backwards, which ends the request that did it."""
    if start.serving.counter_errors:
        yield Verdict(
            "metrics_invalid",
            "warning",
            "high",
            f"vLLM's own counters were given negative amounts {start.serving.counter_errors} "
            "time(s); each of them can end a stream.",
            evidence=(Evidence("counter_errors", float(start.serving.counter_errors), "lines"),),
            advice=(
                Advice(
                    "upgrade",
                    None,
                    "streams survive",
                    "a defect of the release with KV connectors and speculative decoding (seen in "
                    "0.11 to 0.21); --disable-log-stats avoids it, and with it all metrics",
                ),
            ),
            avoid=(Avoid("--gpu-memory-utilization", "memory is not what failed"),),
        )


def _graphs(start: Start, wide_ratio: float) -> Iterable[Verdict]:
    graphs, weights = start.cuda_graph_bytes_per_rank, start.weights_bytes_per_rank
    estimated = start.cuda_graph_estimated_bytes_per_rank
    total = start.total_bytes
    if graphs is None and estimated is None:
        return
    size = max(graphs or 0, estimated or 0)
    larger = weights is not None and size > weights
    wide = total is not None and size > wide_ratio * total
    off = (
        graphs is not None
        and estimated is not None
        and graphs > 0
        and (estimated > 2 * graphs or graphs > 2 * estimated)
        and abs(estimated - graphs) > GIB / 2
    )
    absurd = estimated is not None and (
        estimated < 0 or (total is not None and estimated > GRAPH_ESTIMATE_RATIO * total)
    )
    if not (larger or wide or off or absurd):
        return
    fault = "the estimate is at fault, not the capacity" if off or absurd else "they are large"
    yield Verdict(
        "graph_memory",
        "warning",
        "high",
        f"CUDA graphs take {gib(size)}: {fault}.",
        evidence=tuple(
            Evidence(name, float(value), "bytes")
            for name, value in (
                ("cuda_graph_bytes_per_rank", graphs),
                ("cuda_graph_estimated_bytes_per_rank", estimated),
                ("weights_bytes_per_rank", weights),
            )
            if value is not None
        ),
        advice=(
            Advice(
                "--cudagraph-capture-sizes",
                None,
                "fewer and smaller graphs",
                "a short list up to the number of requests that really run at once",
            ),
            Advice(
                "--cuda-graph-sizes",
                None,
                "fewer and smaller graphs",
                "a short list up to the number of requests that really run at once",
            ),
            Advice(
                "--max-num-seqs",
                None,
                "fewer graphs, since they are captured up to it",
                "down to what really runs at once",
                current=None if start.max_num_seqs is None else str(start.max_num_seqs),
            ),
        ),
        avoid=(
            Avoid(
                "--enforce-eager",
                "measured on an H200: 65 % fewer tokens per second to save 0.06 GiB; only if a "
                "short list is not enough",
            ),
        ),
    )


def _padding(start: Start) -> Iterable[Verdict]:
    """Blocks made large by the model itself, or memory lost to padding layers."""
    waste, block = start.padding_waste_ratio, start.block_size
    wasted = waste is not None and waste >= 0.15
    large = block is not None and block >= 256
    if not wasted and not large:
        return
    what = (
        f"padding layers may waste up to {waste:.0%} of the KV cache"
        if wasted and waste is not None
        else f"a block holds {block:,} tokens, so each request takes at least that much"
    )
    yield Verdict(
        "internal_fragmentation",
        "info",
        "medium",
        f"By the model's own layout {what}.",
        evidence=tuple(
            Evidence(name, float(value), unit)
            for name, value, unit in (
                ("padding_waste_ratio", waste, "ratio"),
                ("block_size", block, "tokens"),
            )
            if value is not None
        ),
        avoid=(Avoid("--block-size", "the model's state layers set it; a flag cannot lower it"),),
    )
