"""Internal fragmentation: a notable share of the used blocks is empty.

It matters only where blocks are scarce, so it is information until they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sidecar.engine_history import EngineHistory
from sidecar.model import Advice, Avoid, Confidence, Evidence, Severity, Verdict
from sidecar.verdicts.rule import Hold, Rule
from sidecar.verdicts.situation import Situation

RECENT_SECONDS = 10.0


def fragmentation_ratio(engine: EngineHistory) -> float | None:
    """The measured ratio of the last seconds, or half of the bound as an estimate."""
    measured = _measured_ratio(engine)
    if measured is not None:
        return measured
    bound = engine.fragmentation_bound_ratio()
    return None if bound is None else bound / 2


def _measured_ratio(engine: EngineHistory) -> float | None:
    """None while the balance of tokens cannot be trusted."""
    values = engine.fragmentation.within(engine.at, RECENT_SECONDS)
    return median(values) if values and engine.balance.resident_tokens is not None else None


def judge(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        ratio, usage = fragmentation_ratio(engine), engine.usage.at(engine.at)
        if ratio is None or usage is None or ratio < situation.thresholds.fragmentation_ratio:
            continue
        measured = _measured_ratio(engine) is not None
        scarce = usage >= situation.thresholds.preemption_kv_usage_ratio
        severity: Severity = "warning" if scarce else "info"
        confidence: Confidence = "high" if measured else "medium"
        block_size = engine.capacity.block_size if engine.capacity is not None else None
        yield Verdict(
            "internal_fragmentation",
            severity,
            confidence,
            f"About {ratio:.0%} of the slots in used KV blocks are empty: requests are short "
            f"against blocks of {block_size} tokens.",
            scope,
            evidence=(
                Evidence(
                    "kv_cache_internal_fragmentation_ratio",
                    ratio,
                    "ratio",
                    situation.thresholds.fragmentation_ratio,
                ),
                Evidence("block_size", float(block_size or 0), "tokens"),
            ),
            advice=tuple(_advice(engine, ratio, block_size)) if scarce else (),
            avoid=()
            if scarce
            else (
                Avoid("--block-size", "blocks are not scarce; filling them better gains nothing"),
            ),
        )


def _advice(engine: EngineHistory, ratio: float, block_size: int | None) -> Iterable[Advice]:
    allocated = engine.allocated_tokens()
    if block_size is None or block_size <= 16 or allocated is None:
        return
    gained = allocated * ratio / 2
    yield Advice(
        "--block-size",
        str(max(16, block_size // 2)),
        f"about {gained:,.0f} token slots gained",
        "half the block wastes half as much in each last block; only where the attention backend "
        "and the release allow that size",
        current=str(block_size),
    )


RULE = Rule("internal_fragmentation", ("info", "warning"), judge, Hold(12.0, 15.0))
