"""Few requests hold far too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.model import Snapshot
from sidecar.verdicts import runaway

from .moments import advised, polls, said

HISTORY = {
    "finished_total": 100.0,
    "finished_prompt_tokens_total": 20_000.0,
    "finished_generation_tokens_total": 30_000.0,  # 500 tokens each, so 2,500 are five times that
}


def long_run(
    usage_at: Callable[[float], float], *, tokens: float = 20.0, **fields: Any
) -> list[Snapshot]:
    changing = {"generation_tokens_total": lambda t: 30_000.0 + tokens * t}
    given = {"running": 1.0, "kv_usage_ratio": usage_at, **HISTORY, **changing, **fields}
    return polls(130, **given)


def grows_to(end: float) -> Callable[[float], float]:
    """From 2,400 tokens below."""
    return lambda t: end - 0.15 * (1 - t / 130)


@pytest.mark.parametrize(
    ("snapshots", "longest", "expected"),
    [
        pytest.param(long_run(grows_to(0.5)), None, "runaway_request", id="it generates"),
        pytest.param(long_run(grows_to(0.5), tokens=2.0), None, "kv_unexplained", id="or not"),
        pytest.param(
            long_run(grows_to(0.5), tokens=10.0), None, "runaway_request", id="half of it"
        ),
        pytest.param(long_run(grows_to(0.5), tokens=9.0), None, "kv_unexplained", id="less"),
        pytest.param(long_run(grows_to(2_500 / 16_000)), None, "runaway_request", id="five times"),
        pytest.param(long_run(grows_to(2_480 / 16_000)), None, None, id="not quite"),
        pytest.param(long_run(grows_to(0.5)), "16000", "runaway_request", id="half of the longest"),
        pytest.param(long_run(grows_to(0.5)), "16100", None, id="less than half"),
        pytest.param(long_run(grows_to(0.5), finished_total=None), None, None, id="no counter"),
        pytest.param(
            long_run(grows_to(0.5), finished_total=lambda t: 100.0 + (t > 60)),
            None,
            None,
            id="ends",
        ),
        pytest.param(long_run(grows_to(0.5), running=4.0), "100", None, id="2,000 each"),
        pytest.param(long_run(grows_to(0.9), running=4.0), None, "runaway_request", id="four"),
        pytest.param(long_run(grows_to(0.99), running=5.0), None, None, id="five are many"),
        pytest.param(long_run(grows_to(0.5), sleeping=True), None, None, id="asleep"),
        pytest.param(long_run(grows_to(0.5))[:119], None, None, id="too short"),
    ],
)
def test_runaway(snapshots: list[Snapshot], longest: str | None, expected: str | None) -> None:
    flags = {} if longest is None else {"max_model_len": longest}
    rules = (runaway.RUNAWAY, runaway.UNEXPLAINED)
    found = [v for rule in rules for v in said(rule, snapshots, flags=flags)]
    assert [verdict.code for verdict in found] == ([expected] if expected else [])
    for verdict in found:
        assert verdict.severity == "info"
        assert not [flag for flag in advised(verdict) if flag.startswith("--")]
        assert "leak" not in verdict.summary


def test_a_little_is_no_runaway() -> None:
    tiny = {**HISTORY, "finished_prompt_tokens_total": 0.0, "finished_total": 10_000.0}
    assert not said(runaway.RUNAWAY, long_run(lambda t: 0.049, **tiny))
    assert said(runaway.RUNAWAY, long_run(lambda t: 0.05, **tiny))
