"""The server starts, and its KV cache does not fit, or not one request fits into it."""

from __future__ import annotations

from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.startlog.start import Start
from sidecar.verdicts.failed_start import FailedStart
from sidecar.verdicts.memory_arithmetic import gib, margin_bytes, round_utilization_up
from sidecar.verdicts.situation import GIB, MIB
from sidecar.verdicts.start_figures import start_evidence, utilization_of

HIGHEST_UTILIZATION = 0.98


ACTIVATION_RATIO = 0.25


SMALL_MARGIN_BYTES = 128 * MIB


def no_kv_memory(case: FailedStart) -> Verdict:
    """Weights and activations leave nothing for the KV cache."""
    start, failure = case.start, case.failure
    available = failure.available_bytes
    if available is None:
        available = start.kv_cache_bytes_per_rank
    now = utilization_of(start, failure)
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
            *start_evidence(start),
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


def max_len_too_long(case: FailedStart) -> Verdict:
    """One request of the longest length does not fit into the KV cache."""
    start, failure = case.start, case.failure
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
    now, total = utilization_of(start, failure), failure.total_bytes or start.total_bytes
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
