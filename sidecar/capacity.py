"""How big an engine's KV pool is, in blocks and tokens, and how much of it is in use."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.model import EngineReading
from sidecar.sources.releases import Release, counts_null_block_as_used, has_null_block


@dataclass(frozen=True, slots=True)
class Capacity:
    """The pool of one engine.

    `blocks` are those that requests can use, without the placeholder block of newer releases.
    `tokens` is what vLLM itself states as the pool's size; `usable_tokens` leaves the
    placeholder out. `block_size` (tokens a block) is None where vLLM's figure cannot be
    trusted: models with several kinds of KV layers share blocks between them.
    """

    blocks: int
    tokens: int | None
    usable_tokens: float | None
    block_size: int | None
    idle_usage_ratio: float


def capacity_of(reading: EngineReading, release: Release | None) -> Capacity | None:
    """Read the pool's size off the page; None without a block count (V1 before 0.9.0).

    Since vLLM 0.24.0 the page states the pool's tokens. Where that differs from blocks times
    block size, attention is not uniform and the block size says nothing about one request.
    """
    config = reading.cache
    if config is None or config.num_gpu_blocks is None:
        return None
    null_blocks = 1 if has_null_block(release, engine_label=reading.engine_label) else 0
    usable = config.num_gpu_blocks - null_blocks
    if usable <= 0:
        return None
    block_size = config.block_size if _is_uniform(reading) else None
    tokens = config.kv_cache_size_tokens
    if tokens is None and block_size is not None:
        tokens = config.num_gpu_blocks * block_size
    return Capacity(
        blocks=usable,
        tokens=tokens,
        usable_tokens=None if tokens is None else tokens * usable / config.num_gpu_blocks,
        block_size=block_size,
        idle_usage_ratio=(
            1 / config.num_gpu_blocks if null_blocks and counts_null_block_as_used(release) else 0.0
        ),
    )


def _is_uniform(reading: EngineReading) -> bool:
    """Whether every layer keeps the same KV for every token, so that blocks x size = tokens."""
    config = reading.cache
    if config is None or config.num_gpu_blocks is None or config.block_size is None:
        return False
    if config.kv_cache_size_tokens is not None:
        # The stated size is a product of floats since 0.22.0, so it may be a token or two off.
        expected = config.num_gpu_blocks * config.block_size
        return abs(config.kv_cache_size_tokens - expected) <= config.block_size
    special = ("sliding_window", "mamba_page_size_padded", "mamba_block_size")
    return all(config.labels.get(name, "None") == "None" for name in special)


def used_blocks(usage_ratio: float, capacity: Capacity) -> float:
    """Blocks in use. vLLM 0.8.3 to 0.10.1 counted the placeholder block as used."""
    if capacity.idle_usage_ratio:
        return max(0.0, usage_ratio * (capacity.blocks + 1) - 1)
    return usage_ratio * capacity.blocks
