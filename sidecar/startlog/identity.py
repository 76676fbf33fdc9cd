"""Which vLLM a start is, and what it was asked to do: banner, flags, configuration, ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from sidecar.startlog.amounts import to_count
from sidecar.startlog.arguments import parse_arguments, parse_config
from sidecar.startlog.lines import LogLine
from sidecar.startlog.start import EngineKind, Start

# What a start prints, in this order; not every release prints all of them.
Marker = Literal["art", "version", "arguments", "engine"]

# The logo is printed line by line; the first line of it has no version yet.
_ART = "█     █     █▄   ▄█"
_VERSION = re.compile(r"(?:vLLM API server version|█ +version) v?(\d[\w.+-]*)")
_ARGUMENTS = re.compile(r"(?:non-default args: (?=\{)|\bargs: (?=Namespace\())")
_ENGINE = re.compile(r"Initializing an? (?:(V[01]) )?LLM engine(?: \(v?([^)\s]+)\))? with config: ")
_RANK = re.compile(r"\brank[ =](\d+) (?:in world size (\d+)|local_rank=)")
_WORLD = re.compile(r"\bworld_size=(\d+) rank=")
_MODEL_LEN = re.compile(r"^Using max model len (\d+)")
_AUTO_FIT = re.compile(r"Auto-fit max_model_len: reduced from \d+ to (\d+)")
_BATCHED_TOKENS = re.compile(r"max_num_batched_tokens=(\d+)")
_BLOCK_SIZE = re.compile(
    r"(?:Setting attention|Setting kv cache|Forcing kv cache) block size to (\d+)"
)
_MOST_RANKS = 1024
_LARGEST_COUNT = 2**63


def marker_of(line: LogLine) -> Marker | None:
    """Which mark of a beginning this line is, if any."""
    text = line.text
    if "█" in text:
        if _ART in text:
            return "art"
        return "version" if _VERSION.search(text) else None
    if "args: " in text and _ARGUMENTS.search(text):
        return "arguments"
    if "Initializing a" in text and _ENGINE.search(text):
        return "engine"
    return "version" if "API server version" in text and _VERSION.search(text) else None


def read_identity(start: Start, line: LogLine) -> Start:
    """Adds what a line says about the release, the flags and the ranks."""
    text = line.text
    if ("version" in text) and (found := _VERSION.search(text)):
        start = replace(start, vllm_version=found[1].rstrip(".,"))
    if "args: " in text and (found := _ARGUMENTS.search(text)):
        start = _with_arguments(start, parse_arguments(text[found.end() :]))
    if "Initializing a" in text and (found := _ENGINE.search(text)):
        kind: EngineKind = "V1" if _is_v1(found[1], line) else "V0"
        version = found[2] or start.vllm_version
        start = replace(start, engine=kind, vllm_version=version)
        start = _with_arguments(start, parse_config(text[found.end() :]))
    if "rank" in text or "world_size=" in text:
        start = _with_ranks(start, text)
    if "max" in text:
        start = _with_limits(start, text)
    if "block size to" in text and (found := _BLOCK_SIZE.search(text)):
        start = replace(start, block_size=to_count(found[1]))
    return start


def _is_v1(said: str | None, line: LogLine) -> bool:
    # Up to 0.7.3 both engines say "an LLM engine"; only V1's is in core.py.
    if said is not None:
        return said == "V1"
    return line.file is not None and line.file.endswith("core.py")


def _with_arguments(start: Start, found: Mapping[str, object]) -> Start:
    # What is not said again keeps its value: the configuration line leaves most flags out.
    return replace(
        start,
        arguments={**start.arguments, **found},
        model=_text(found, "model") or _text(found, "model_tag") or start.model,
        dtype=_text(found, "dtype") or start.dtype,
        kv_cache_dtype=_text(found, "kv_cache_dtype") or start.kv_cache_dtype,
        tensor_parallel_size=_count(found, "tensor_parallel_size", start.tensor_parallel_size),
        pipeline_parallel_size=_count(
            found, "pipeline_parallel_size", start.pipeline_parallel_size
        ),
        data_parallel_size=_count(found, "data_parallel_size", start.data_parallel_size),
        enforce_eager=_flag(found, "enforce_eager", start.enforce_eager),
        enable_prefix_caching=_flag(found, "enable_prefix_caching", start.enable_prefix_caching),
        gpu_memory_utilization=_share(found, start.gpu_memory_utilization),
        max_model_len=_count(found, "max_model_len", start.max_model_len),
        max_num_seqs=_count(found, "max_num_seqs", start.max_num_seqs),
        max_num_batched_tokens=_count(
            found, "max_num_batched_tokens", start.max_num_batched_tokens
        ),
        block_size=_count(found, "block_size", start.block_size),
        num_gpu_blocks_override=_count(
            found, "num_gpu_blocks_override", start.num_gpu_blocks_override
        ),
        kv_cache_memory_bytes=_count(found, "kv_cache_memory_bytes", start.kv_cache_memory_bytes),
    )


def _with_ranks(start: Start, text: str) -> Start:
    if found := _WORLD.search(text):
        start = replace(start, world_size=to_count(found[1]))
    if found := _RANK.search(text):
        rank = to_count(found[1])
        if found[2]:
            start = replace(start, world_size=to_count(found[2]))
        if rank is not None and rank not in start.ranks and len(start.ranks) < _MOST_RANKS:
            start = replace(start, ranks=tuple(sorted((*start.ranks, rank))))
    return start


def _with_limits(start: Start, text: str) -> Start:
    if found := _MODEL_LEN.search(text) or _AUTO_FIT.search(text):
        start = replace(start, max_model_len=to_count(found[1]))
    if "Chunked prefill is enabled" in text and (found := _BATCHED_TOKENS.search(text)):
        start = replace(start, max_num_batched_tokens=to_count(found[1]))
    return start


def _text(found: Mapping[str, object], key: str) -> str | None:
    value = found.get(key)
    return value if isinstance(value, str) else None


def _count(found: Mapping[str, object], key: str, known: int | None) -> int | None:
    value = found.get(key)
    # -1 asks vLLM to choose.
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST_COUNT:
        return value
    return known


def _flag(found: Mapping[str, object], key: str, known: bool | None) -> bool | None:
    value = found.get(key)
    return value if isinstance(value, bool) else known


def _share(found: Mapping[str, object], known: float | None) -> float | None:
    value = found.get("gpu_memory_utilization")
    # A damaged line may hold 1e999, which reads as infinity.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    return known
