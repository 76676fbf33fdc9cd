"""What differs between vLLM releases: which one is running, and what follows from it.

Facts were read from the sources of vLLM 0.2.3 to 0.33.0. A release that cannot be learnt is
None, and every function here then answers with what holds for the current releases.
"""

from __future__ import annotations

import re

Release = tuple[int, int, int]

_RELEASE = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(\.dev)?", re.ASCII)


def parse_release(version: str | None) -> Release | None:
    """Read `0.25.0`, `v0.10.2`, `0.32.0+cpu` or `0.11.1rc2.dev5` as numbers; else None.

    A build from a checkout without tags calls itself `0.1.dev...` whatever it was made from.
    """
    found = _RELEASE.match(version.strip()) if version else None
    if found is None:
        return None
    major, minor, patch, built = found.groups()
    release = (int(major), int(minor), int(patch or 0))
    return None if built and release < (0, 2, 0) else release


def has_null_block(release: Release | None, *, engine_label: bool) -> bool:
    """Whether one block of the pool is a placeholder that no request can use.

    V1 engines reserve block 0 since 0.8.3. Before 0.11.0 a V0 engine may still run, which is
    recognised by the missing `engine` label.
    """
    if release is not None and release < (0, 8, 3):
        return False
    if release is not None and release < (0, 11, 0):
        return engine_label
    return True


def counts_null_block_as_used(release: Release | None) -> bool:
    """Whether usage rests at 1/blocks instead of 0 on an idle server (V1 0.8.3 to 0.10.1)."""
    return release is not None and (0, 8, 3) <= release < (0, 10, 2)


def counts_prefix_in_blocks(release: Release | None, *, config_names_engine: bool) -> bool:
    """Whether `gpu_prefix_cache_*` counts blocks (to 0.8.5) or tokens (0.9.0 and later).

    Of an unknown release `cache_config_info` tells: it names its engine from 0.9.0 on.
    """
    return release < (0, 9, 0) if release is not None else not config_names_engine


def sums_blocks_over_engines(release: Release | None) -> bool:
    """Whether `num_gpu_blocks` is the sum over all data-parallel engines (0.9.0 and later)."""
    return release is None or release >= (0, 9, 0)
