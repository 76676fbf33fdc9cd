"""What a start of the server, or its end, says in its own log.

Judged from the log alone: the last start counts. All figures are per rank, that is per GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sidecar.launch import with_known_flags
from sidecar.model import Advice, Avoid, Evidence, Severity, Verdict
from sidecar.sources.releases import Release, parse_release
from sidecar.startlog.failures import FailureKind, LogFailure
from sidecar.startlog.start import Start
from sidecar.verdicts.memory_arithmetic import (
    gib,
    margin_bytes,
    round_utilization_down,
    round_utilization_up,
)
from sidecar.verdicts.out_of_memory import judge_out_of_memory
from sidecar.verdicts.situation import GIB, MIB

STRUCTURAL_RATIO = 0.06
"""Memory that is missing at an otherwise empty device: driver, display, WSL's host share."""
HIGHEST_UTILIZATION = 0.98
ACTIVATION_RATIO = 0.25
GRAPH_RATIO = 0.05
GRAPH_ESTIMATE_RATIO = 0.20

SEVERITIES: Mapping[str, tuple[Severity, ...]] = {
    "started": ("info",),
    "incomplete": ("info", "critical"),
    "no_kv_memory": ("critical",),
    "max_len_too_long": ("critical",),
    "not_enough_free": ("critical",),
    "graph_memory": ("warning", "critical"),
    "weights_too_big": ("critical",),
    "activation_peak": ("critical",),
    "single_allocation": ("critical",),
    "allocator_slack": ("critical",),
    "neighbour_left": ("warning",),
    "runtime_oom": ("critical",),
    "host_oom": ("critical",),
    "bad_argument": ("critical",),
    "not_memory": ("critical",),
}
"""All codes that a log leads to, with the severities they may take."""

REPLACED_FLAGS: Mapping[str, str] = {
    "--swap-space": "removed in 0.18.0; V1 never swaps: --kv-offloading-size keeps KV on the host",
    "--preemption-mode": "V0 only, gone since 0.11.0: V1 always recomputes",
    "--max-seq-len-to-capture": "gone since 0.11.0: --cudagraph-capture-sizes",
    "--max-context-len-to-capture": "gone since 0.6.4: --cudagraph-capture-sizes",
    "--cuda-graph-sizes": "gone since 0.12.1: --cudagraph-capture-sizes",
    "--use-v2-block-manager": "gone since 0.8: it is the only one",
    "--num-scheduler-steps": "V0 only, gone since 0.11.0: --async-scheduling",
    "--num-lookahead-slots": "V0 only, gone since 0.11.0",
    "--disable-frontend-multiprocessing": "gone since 0.18.0",
    "--watermark": "there since 0.24.0",
    "--kv-cache-memory-bytes": "there since 0.10.2",
    "--kv-offloading-size": "there since 0.11.1",
}


def judge_start(start: Start) -> tuple[Verdict, ...]:
    """All that one start says; the decisive failure first. Never empty."""
    release = parse_release(start.vllm_version)
    failure = start.decisive_failure
    if failure is not None:
        outcome = _FAILURES[failure.kind](start, failure, release)
    else:
        outcome = _started(start) if start.outcome == "started" else _incomplete(start)
    beside = (finding for finding in _findings(start) if finding.code != outcome.code)
    return tuple(with_known_flags(verdict, release) for verdict in (outcome, *beside))


def _evidence(start: Start) -> tuple[Evidence, ...]:
    """The figures of the start that are known."""
    named = (
        ("weights_bytes_per_rank", start.weights_bytes_per_rank),
        ("activation_bytes_per_rank", start.activation_bytes_per_rank),
        ("non_torch_bytes_per_rank", start.non_torch_bytes_per_rank),
        ("cuda_graph_bytes_per_rank", start.cuda_graph_bytes_per_rank),
        ("kv_cache_bytes_per_rank", start.kv_cache_bytes_per_rank),
    )
    return tuple(
        Evidence(name, float(value), "bytes") for name, value in named if value is not None
    )


def _started(start: Start) -> Verdict:
    evidence = list(_evidence(start))
    if start.capacity_tokens is not None:
        evidence.append(Evidence("kv_cache_tokens", float(start.capacity_tokens), "tokens"))
    if start.max_concurrency is not None:
        evidence.append(Evidence("max_concurrency", start.max_concurrency, "requests"))
    return Verdict("started", "info", "high", "The server started.", evidence=tuple(evidence))


def _incomplete(start: Start) -> Verdict:
    return Verdict(
        "incomplete",
        "info",
        "low",
        "The log ends before the server was up and before it failed: too short to judge.",
        evidence=_evidence(start),
        missing=("the rest of the log",),
    )


def _utilization(start: Start, failure: LogFailure | None = None) -> float | None:
    if failure is not None and failure.utilization is not None:
        return failure.utilization
    return start.gpu_memory_utilization


def _not_enough_free(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    free, total, wanted = failure.free_bytes, failure.total_bytes, failure.desired_bytes
    now = _utilization(start, failure)
    if (start.cuda_graph_estimated_bytes_per_rank or 0) < 0:
        return _estimate_at_fault(failure)
    if free is None or total is None or wanted is None:
        return _plain("not_enough_free", failure, "Less memory is free than the server may take.")
    to = round_utilization_down((free - margin_bytes(total)) / total)
    taken = total - free
    neighbour = taken > STRUCTURAL_RATIO * total
    held_by = (
        f"other processes hold about {gib(taken)}"
        if neighbour
        else f"{gib(taken)} are taken by the driver, a display or the host system"
    )
    advice: list[Advice] = []
    if to > (start.weights_bytes_per_rank or 0) / total:
        advice.append(
            Advice(
                "--gpu-memory-utilization",
                f"{to:.2f}",
                f"asks for {gib(to * total)} instead of {gib(wanted)}",
                f"{gib(free)} of {gib(total)} are free, {gib(margin_bytes(total))} stay as "
                "margin; that much KV cache is lost",
                current=None if now is None else f"{now:g}",
            )
        )
    if neighbour:
        advice.append(
            Advice(
                "neighbour",
                None,
                f"{gib(wanted - free)} more are free and the value can stay",
                "end or move the other process; a former vLLM may have left a worker behind",
            )
        )
    return Verdict(
        "not_enough_free",
        "critical",
        "high",
        f"{gib(free)} are free and {gib(wanted)} are wanted: {(wanted - free) / MIB:,.0f} MiB "
        f"short; {held_by}.",
        evidence=(
            Evidence("free_bytes", float(free), "bytes", float(wanted)),
            Evidence("total_bytes", float(total), "bytes"),
            Evidence("taken_bytes", float(taken), "bytes"),
        ),
        advice=tuple(advice),
        avoid=(Avoid("expandable_segments", "nothing was allocated yet that could fragment"),),
    )


def _estimate_at_fault(failure: LogFailure) -> Verdict:
    """A negative estimate of graph memory spoils every figure that follows from it."""
    return Verdict(
        "graph_memory",
        "critical",
        "high",
        "The estimate of CUDA graph memory came out negative, so the figures of this start cannot "
        "be trusted: the estimator is at fault, not the capacity.",
        evidence=(Evidence("message", failure.message),),
        advice=(
            Advice(
                "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",
                None,
                "a start without the estimate",
                "an environment variable; known on ROCm, where graph pools are accounted "
                "differently",
            ),
        ),
        avoid=(Avoid("--gpu-memory-utilization", "the figure it would follow is wrong"),),
    )


def _no_kv_memory(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    available = failure.available_bytes
    if available is None:
        available = start.kv_cache_bytes_per_rank
    now = _utilization(start, failure)
    total = failure.total_bytes or start.total_bytes or _least_total(start, now, available)
    weights, activations = start.weights_bytes_per_rank, start.activation_bytes_per_rank
    said = f" ({gib(available)} would be left for it)" if available is not None else ""
    advice: list[Advice] = []
    avoid = [Avoid("--max-num-seqs", "it does not change the weights")]
    if now is not None and now < HIGHEST_UTILIZATION:
        to, why = _raised_utilization(now, total, available)
        if to is not None and to > HIGHEST_UTILIZATION:
            avoid.append(
                Avoid("--gpu-memory-utilization", "no share of this device is enough by itself")
            )
        else:
            advice.append(
                Advice(
                    "--gpu-memory-utilization",
                    None if to is None else f"{to:.2f}",
                    "room for a KV cache",
                    why,
                    current=f"{now:g}",
                )
            )
    if activations is not None and (weights is None or activations > ACTIVATION_RATIO * weights):
        advice.append(
            Advice(
                "--max-num-batched-tokens",
                None,
                f"less than the {gib(activations)} that one step takes",
                "fewer tokens a step need less activation memory",
                current=None
                if start.max_num_batched_tokens is None
                else str(start.max_num_batched_tokens),
            )
        )
    advice.append(
        Advice(
            "--quantization",
            None,
            "smaller weights",
            "a quantised model, or --tensor-parallel-size over more GPUs, leaves more per GPU",
        )
    )
    return Verdict(
        "no_kv_memory",
        "critical",
        "high",
        f"Weights and activations take all that the server may use: no memory is left for the "
        f"KV cache{said}.",
        evidence=(
            *_evidence(start),
            *(
                (Evidence("available_kv_cache_bytes", float(available), "bytes", 0.0),)
                if available is not None
                else ()
            ),
        ),
        advice=tuple(advice),
        avoid=tuple(avoid),
    )


def _least_total(start: Start, now: float | None, available: int | None) -> int | None:
    """The smallest that the device can be: its share holds what is known to be used and what
    is said to be left. A device that is larger in truth needs a smaller step than advised."""
    used = start.consumed_bytes_per_rank or start.weights_bytes_per_rank
    if used is None or available is None or not now:
        return None
    used += start.activation_bytes_per_rank or 0
    return int((used + available) / now)


def _raised_utilization(
    now: float, total: int | None, available: int | None
) -> tuple[float | None, str]:
    """The utilisation at which the server would start with a GiB of KV cache; it may be more
    than there is."""
    if total is None or available is None:
        return None, "in steps of 0.02 until it starts"
    needed = max(0, -available) + GIB + margin_bytes(total)
    to = round_utilization_up(now + needed / total)
    return to, f"{gib(needed)} more of {gib(total)}: what is missing, a GiB of KV cache, a margin"


def _max_len_too_long(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    block = start.block_size or 16
    fits = failure.estimated_max_model_len or failure.capacity_tokens
    wanted = failure.max_model_len or start.max_model_len
    if fits is None and failure.needed_bytes and failure.available_bytes and wanted:
        fits = int(wanted * failure.available_bytes / failure.needed_bytes)
    advice: list[Advice] = []
    if fits is not None and fits >= block:
        advice.append(
            Advice(
                "--max-model-len",
                str(fits // block * block),
                "one request of that length fits",
                "what the KV cache holds, rounded down to a block",
                current=None if wanted is None else str(wanted),
            )
        )
    now, total = _utilization(start, failure), failure.total_bytes or start.total_bytes
    missing = None
    if failure.needed_bytes is not None and failure.available_bytes is not None:
        missing = failure.needed_bytes - failure.available_bytes
    if missing is not None and start.kv_cache_memory_bytes is not None:
        advice.append(
            Advice(
                "--kv-cache-memory-bytes",
                str(failure.needed_bytes),
                f"{gib(missing)} more KV cache, and the length can stay",
                "only if that much is free on the device; --gpu-memory-utilization does nothing "
                "while this flag is set",
                current=str(start.kv_cache_memory_bytes),
            )
        )
    elif now is not None and missing is not None and start.num_gpu_blocks_override is None:
        to = None
        if total is not None:
            to = round_utilization_up(now + (missing + SMALL_MARGIN_BYTES) / total)
        if to is None or to <= HIGHEST_UTILIZATION:
            advice.append(
                Advice(
                    "--gpu-memory-utilization",
                    None if to is None else f"{to:.2f}",
                    f"{gib(missing)} more KV cache, and the length can stay",
                    "only if that much is free on the device"
                    + ("" if total is not None else "; in steps of 0.02"),
                    current=f"{now:g}",
                )
            )
    advice.append(
        Advice(
            "--kv-cache-dtype",
            "fp8",
            "about twice the tokens in the same bytes",
            "where the device and the model take it",
            current=start.kv_cache_dtype or "auto",
        )
    )
    text = f"One request of {wanted:,} tokens" if wanted else "One request of the longest length"
    return Verdict(
        "max_len_too_long",
        "critical",
        "high",
        f"{text} does not fit into the KV cache"
        + (f", which holds about {fits:,}." if fits is not None else "."),
        evidence=(
            *(
                Evidence(name, float(value), unit)
                for name, value, unit in (
                    ("max_model_len", wanted, "tokens"),
                    ("fitting_tokens", fits, "tokens"),
                    ("needed_bytes", failure.needed_bytes, "bytes"),
                    ("available_bytes", failure.available_bytes, "bytes"),
                )
                if value is not None
            ),
        ),
        advice=tuple(advice),
        avoid=(Avoid("--max-num-seqs", "already one request is too long"),),
    )


SMALL_MARGIN_BYTES = 128 * MIB


def _neighbour_left(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    return Verdict(
        "neighbour_left",
        "warning",
        "high",
        "Another process gave memory back while the server measured what it needs, so the "
        "measurement is worth nothing.",
        evidence=tuple(
            Evidence(name, float(value), "bytes")
            for name, value in (
                ("initial_free_bytes", failure.initial_free_bytes),
                ("free_bytes", failure.free_bytes),
            )
            if value is not None
        ),
        advice=(
            Advice(
                "retry",
                None,
                "it starts",
                "start again once the other process is gone or settled; start servers one after "
                "the other",
            ),
        ),
    )


def _bad_argument(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    named = ", ".join(failure.arguments) or "a flag"
    advice = tuple(
        Advice("arguments", None, "the parser takes them", f"{name}: {REPLACED_FLAGS[name]}")
        for flag in failure.arguments
        if (name := flag.split("=")[0].replace("_", "-")) in REPLACED_FLAGS
    )
    return Verdict(
        "bad_argument",
        "critical",
        "high",
        f"The server does not know {named}; it never came to memory.",
        evidence=(Evidence("message", failure.message),),
        advice=advice
        or (
            Advice(
                "arguments",
                None,
                "the parser takes them",
                f"take {named} out, or spell it as `vllm serve --help` of this release does",
            ),
        ),
    )


def _config_rejected(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    allowed = failure.allowed_max_model_len
    advice: tuple[Advice, ...] = ()
    if allowed is not None:
        advice = (
            Advice(
                "--max-model-len",
                str(allowed),
                "the configuration is accepted",
                "the model itself was made for no more",
                current=None if failure.max_model_len is None else str(failure.max_model_len),
            ),
        )
    return Verdict(
        "bad_argument",
        "critical",
        "high",
        "The server refuses its configuration; it never came to memory.",
        evidence=(Evidence("message", failure.message),),
        advice=advice,
        avoid=(Avoid("--gpu-memory-utilization", "this is not about memory"),),
    )


def _not_memory(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    return Verdict(
        "not_memory",
        "critical",
        "high" if failure.kind == "device_error" else "medium",
        "The server failed for a reason that is not memory: no memory flag will help.",
        evidence=(Evidence("message", failure.message),),
        advice=(
            Advice(
                "look",
                None,
                "the cause",
                "read the message above and the lines before it; a device error may need a reset "
                "of the GPU, and CUDA_LAUNCH_BLOCKING=1 names the kernel",
            ),
        ),
        avoid=(
            Avoid("--gpu-memory-utilization", "memory is not what failed"),
            Avoid("--enforce-eager", "memory is not what failed"),
        ),
    )


def _half_of_shared_memory(start: Start) -> Iterable[Advice]:
    """For a server that was killed once it had taken its KV cache: that took the last memory."""
    if start.capacity_tokens is None and start.kv_cache_bytes_per_rank is None:
        return
    now = start.gpu_memory_utilization
    yield Advice(
        "--gpu-memory-utilization",
        "0.50",
        "on a device that shares its memory with the host, the host keeps half",
        "only on unified memory (Jetson, GB10), where the pool is taken from the host",
        current=None if now is None else f"{now:g}",
    )


def _host_oom(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    return Verdict(
        "host_oom",
        "critical",
        "medium",
        "The server was killed without a word of its own: most likely the host ran out of memory.",
        evidence=(Evidence("message", failure.message or start.last_text or ""),),
        advice=(
            Advice(
                "host",
                None,
                "the server lives",
                "look at the kernel's log (`dmesg`) for the out-of-memory killer; give the "
                "container or the host more memory",
            ),
            *_half_of_shared_memory(start),
        ),
        avoid=(Avoid("expandable_segments", "the GPU's allocator did not fail"),),
    )


def _engine_dead(start: Start, failure: LogFailure, release: Release | None) -> Verdict:
    if start.last_exception is not None:
        return _not_memory(start, failure, release)
    return Verdict(
        "incomplete",
        "critical",
        "low",
        "The engine died and this log does not say of what: the lines of its own process are "
        "missing.",
        evidence=(Evidence("message", failure.message),),
        missing=("the log of the engine process",),
    )


def _plain(code: str, failure: LogFailure, summary: str) -> Verdict:
    return Verdict(
        code, "critical", "medium", summary, evidence=(Evidence("message", failure.message),)
    )


_FAILURES: Mapping[FailureKind, Callable[[Start, LogFailure, Release | None], Verdict]] = {
    "free_memory_below_desired": _not_enough_free,
    "no_available_memory": _no_kv_memory,
    "max_len_too_long": _max_len_too_long,
    "profiling_disturbed": _neighbour_left,
    "load_model_oom": judge_out_of_memory,
    "sampler_warmup_oom": judge_out_of_memory,
    "cuda_oom": judge_out_of_memory,
    "oom_in_disguise": judge_out_of_memory,
    "host_oom": _host_oom,
    "killed": _host_oom,
    "argument_error": _bad_argument,
    "config_rejected": _config_rejected,
    "device_error": _not_memory,
    "exception": _not_memory,
    "engine_dead": _engine_dead,
}


def _findings(start: Start) -> Iterable[Verdict]:
    """What is worth saying beside the outcome."""
    yield from _graphs(start)
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


def _graphs(start: Start) -> Iterable[Verdict]:
    graphs, weights = start.cuda_graph_bytes_per_rank, start.weights_bytes_per_rank
    estimated = start.cuda_graph_estimated_bytes_per_rank
    total = start.total_bytes
    if graphs is None and estimated is None:
        return
    size = max(graphs or 0, estimated or 0)
    larger = weights is not None and size > weights
    wide = total is not None and size > GRAPH_RATIO * total
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
