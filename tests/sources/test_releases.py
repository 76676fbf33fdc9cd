"""Which release a version text names."""

from __future__ import annotations

import pytest

from sidecar.sources.releases import Release, counts_prefix_in_blocks, parse_release


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.25.0", (0, 25, 0)),
        ("v0.10.2", (0, 10, 2)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.8.5.post1", (0, 8, 5)),
        ("0.11.1rc2.dev5+g1a2b", (0, 11, 1)),
        ("0.20.0.dev3", (0, 20, 0)),
        (" 0.7 ", (0, 7, 0)),
        ("0.1.7", (0, 1, 7)),
        ("0.1.dev1+g5f0a", None),  # built without tags: it could be anything
        ("0.1.0.dev20", None),
        ("dev", None),
        ("", None),
        (None, None),
        ("٠.٩.٠", None),
        ("9" * 5_000 + ".1", None),
    ],
)
def test_release(version: str | None, release: Release | None) -> None:
    assert parse_release(version) == release


@pytest.mark.parametrize(
    ("release", "named", "blocks"),
    [
        ((0, 7, 3), False, True),
        ((0, 8, 5), True, True),
        ((0, 9, 0), False, False),
        (None, True, False),
        (None, False, True),
    ],
)
def test_unit_of_the_older_prefix_counters(
    release: Release | None, named: bool, blocks: bool
) -> None:
    assert counts_prefix_in_blocks(release, config_names_engine=named) is blocks
