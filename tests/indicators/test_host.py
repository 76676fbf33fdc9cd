from __future__ import annotations

from dataclasses import replace

from synthetic import GIB, engine, history, measured, snapshot

from sidecar.model import HostReading

HOST = HostReading(128 * GIB, 5 * GIB, 16 * GIB, 10 * GIB)


def test_memory_of_the_host() -> None:
    seen = history(replace(snapshot(0, engine()), host=HOST))
    assert measured(seen, "host_memory_total_bytes") == 128 * GIB
    assert measured(seen, "host_memory_available_bytes") == 5 * GIB
    assert measured(seen, "host_swap_used_bytes") == 6 * GIB


def test_it_needs_no_vllm_and_never_outlives_its_poll() -> None:
    down = replace(snapshot(0, failure="refused"), host=HOST)
    assert measured(history(down), "host_memory_available_bytes") == 5 * GIB
    seen = history(down, snapshot(1, failure="refused"))
    assert measured(seen, "host_memory_available_bytes") is None
    assert measured(seen, "host_swap_used_bytes") is None
