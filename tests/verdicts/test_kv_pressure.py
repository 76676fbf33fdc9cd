"""The KV cache is nearly full."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.verdicts import kv_pressure

from .moments import figure, only, polls, severity


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        pytest.param({"kv_usage_ratio": 0.9}, True, id="nearly full"),
        pytest.param({"kv_usage_ratio": 0.89}, False, id="room"),
        pytest.param({"preemptions_total": lambda t: t}, False, id="preemptions"),
        pytest.param({"preemptions_total": lambda t: min(t, 5.0)}, True, id="15 s ago"),
        pytest.param({"sleeping": True}, False, id="asleep"),
    ],
)
def test_pressure(fields: dict[str, Any], holds: bool) -> None:
    moment = polls(20, **{"running": 4.0, "kv_usage_ratio": 0.92, **fields})
    assert severity(kv_pressure.RULE, moment) == ("info" if holds else None)


def test_pressure_tells_the_time_left_and_alarms_nobody() -> None:
    rising = polls(20, running=4.0, kv_usage_ratio=lambda t: 0.75 + 0.01 * t)
    verdict = only(kv_pressure.RULE, rising)
    assert figure(verdict, "kv_cache_exhaustion_seconds") == pytest.approx(5.0)
    assert (verdict.advice, verdict.confidence) == ((), "high")
    blind = only(kv_pressure.RULE, polls(20, kv_usage_ratio=0.92, preemptions_total=None))
    assert (blind.confidence, blind.missing) == ("low", ("preemptions_per_second",))
