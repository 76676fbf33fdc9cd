"""The host runs out of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import GIB, engine, snapshot

from sidecar.model import HostReading, Scope, Snapshot
from sidecar.verdicts import host_memory

from .moments import advised, card, only, severity


def host(available_gib: float, *, total_gib: float = 128, unified: bool = False) -> Snapshot:
    device = card(1024, {1: 1024}, unified=unified)
    memory = HostReading(int(total_gib * GIB), int(available_gib * GIB), 0, 0)
    return replace(snapshot(0, engine(), gpus=[device]), host=memory)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param(host(12.81), None, id="10 %"),
        pytest.param(host(12.79), "warning", id="less than 10 %"),
        pytest.param(host(3.85), "warning", id="3 %"),
        pytest.param(host(3.83), "critical", id="less than 3 %"),
        pytest.param(host(10, unified=True), None, id="unified: 10 GiB"),
        pytest.param(host(9.99, unified=True), "warning", id="unified: less than 10 GiB"),
        pytest.param(host(6, unified=True), "warning", id="unified: 6 GiB"),
        pytest.param(host(5.99, unified=True), "critical", id="unified: less than 6 GiB"),
        pytest.param(snapshot(0, engine()), None, id="not read"),
    ],
)
def test_host_memory(moment: Snapshot, expected: str | None) -> None:
    assert severity(host_memory.RULE, [moment]) == expected


def test_host_memory_is_no_matter_of_utilization() -> None:
    for moment in (host(2), host(2, unified=True)):
        verdict = only(host_memory.RULE, [moment])
        assert [item.flag for item in verdict.avoid] == ["--gpu-memory-utilization"]
        assert verdict.scope == Scope()
    assert advised(only(host_memory.RULE, [host(2)])) == {"host": None}
