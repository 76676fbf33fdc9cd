"""Ends of a server that are not about its GPU memory, or of which the log says too little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.startlog.start import Start
from sidecar.verdicts.failed_start import FailedStart

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


def bad_argument(case: FailedStart) -> Verdict:
    """The command line holds a flag that this release does not know."""
    failure = case.failure
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


def config_rejected(case: FailedStart) -> Verdict:
    """The configuration contradicts the model or itself."""
    failure = case.failure
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


def not_memory(case: FailedStart) -> Verdict:
    """A device error, or any exception that is not about memory."""
    failure = case.failure
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


def host_oom(case: FailedStart) -> Verdict:
    """Killed from outside without a line of its own."""
    start, failure = case.start, case.failure
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


def engine_dead(case: FailedStart) -> Verdict:
    """The engine died and only its parent speaks."""
    start, failure = case.start, case.failure
    if start.last_exception is not None:
        return not_memory(case)
    return Verdict(
        "incomplete",
        "critical",
        "low",
        "The engine died and this log does not say of what: the lines of its own process are "
        "missing.",
        evidence=(Evidence("message", failure.message),),
        missing=("the log of the engine process",),
    )
