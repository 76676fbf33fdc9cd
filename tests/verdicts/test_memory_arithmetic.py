"""Shares, margins, and the flag in force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import CACHE, GIB

from sidecar.model import GpuMemory
from sidecar.verdicts.memory_arithmetic import (
    flag_in_force,
    margin_bytes,
    round_utilization_down,
    round_utilization_up,
    vllm_total_bytes,
)

from .moments import MIB, polls, situation


@pytest.mark.parametrize(
    ("share", "down", "up"),
    [
        (0.9, 0.9, 0.9),
        (0.909, 0.9, 0.91),
        (0.29, 0.29, 0.29),  # 0.29 x 100 is 28.999999999999996
        (0.57, 0.57, 0.57),
        (0.5700001, 0.57, 0.58),
        (0.5699, 0.56, 0.57),
    ],
)
def test_utilization_is_rounded_to_the_careful_side(share: float, down: float, up: float) -> None:
    assert round_utilization_down(share) == down
    assert round_utilization_up(share) == up


@pytest.mark.parametrize(
    ("total", "margin"), [(80 * GIB, 0.8 * GIB), (12.5 * GIB, 128 * MIB), (8 * GIB, 128 * MIB)]
)
def test_margin_is_one_per_cent_and_at_least_128_mib(total: float, margin: float) -> None:
    assert margin_bytes(total) == margin


def test_total_is_less_what_the_driver_reserves() -> None:
    assert vllm_total_bytes(GpuMemory(100, 10, 85, 5)) == 95
    assert vllm_total_bytes(GpuMemory(100, 15, 85, None)) == 100


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "--gpu-memory-utilization"),
        ({"kv_cache_memory_bytes": "None"}, "--gpu-memory-utilization"),
        ({"kv_cache_memory_bytes": "1"}, "--kv-cache-memory-bytes"),
        (
            {"kv_cache_memory_bytes": "1", "num_gpu_blocks_override": "9"},
            "--num-gpu-blocks-override",
        ),
    ],
)
def test_flag_in_force(flags: dict[str, str], expected: str) -> None:
    assert flag_in_force(situation(polls(1), flags=flags)) == expected


def test_the_page_overrules_what_was_written_down() -> None:
    cache = replace(CACHE, labels={"num_gpu_blocks_override": "9"})
    moment = situation(polls(1, cache=cache), flags={"kv_cache_memory_bytes": "1"})
    assert flag_in_force(moment) == "--num-gpu-blocks-override"
