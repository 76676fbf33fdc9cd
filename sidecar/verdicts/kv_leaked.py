"""Blocks are in use although nothing runs and nothing waits."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.engine_history import EngineHistory
from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.sources.releases import Release, counts_null_block_as_used
from sidecar.verdicts.rule import AT_ONCE, Rule
from sidecar.verdicts.situation import Situation

ONE_BLOCK_RATIO = 0.05
"""vLLM 0.8.3 to 0.8.5 rest at one block in use and do not say how many there are; a pool of fewer
than twenty is nobody's."""


def judge(situation: Situation) -> Iterable[Verdict]:
    limit = situation.thresholds.leaked_after_seconds
    if situation.flags.text("kv_transfer_config") is not None:
        limit = max(limit, situation.thresholds.leaked_with_connector_seconds)
    for engine, scope in situation.settled_engines():
        reading, since = engine.reading, engine.held_idle_since
        if reading is None or reading.kv_usage_ratio is None or since is None:
            continue
        if engine.at - since < limit or _may_be_one_block(engine, situation.release):
            continue
        yield Verdict(
            "kv_leaked",
            "warning",
            "high" if situation.flags.text("kv_transfer_config") is None else "medium",
            f"{reading.kv_usage_ratio:.1%} of the KV cache has been held for "
            f"{engine.at - since:.0f} s with no request running or waiting.",
            scope,
            evidence=(
                Evidence("kv_cache_held_while_idle_ratio", reading.kv_usage_ratio, "ratio", 0.0),
                Evidence("idle_seconds", engine.at - since, "seconds", limit),
            ),
            advice=(
                Advice(
                    "restart",
                    None,
                    "the blocks come back",
                    "restart this engine when it suits; with a KV connector (prefill and decode "
                    "apart) wait for its abort time-out first, and watch whether the level rises "
                    "in steps after aborted requests",
                ),
            ),
            avoid=(Avoid("--gpu-memory-utilization", "more blocks would be held as well"),),
        )


def _may_be_one_block(engine: EngineHistory, release: Release | None) -> bool:
    """Whether what is in use may be the placeholder that some releases count."""
    if engine.capacity is not None or engine.reading is None:
        return False
    return (
        counts_null_block_as_used(release)
        and (engine.reading.kv_usage_ratio or 0.0) <= ONE_BLOCK_RATIO
    )


RULE = Rule("kv_leaked", ("warning",), judge, AT_ONCE)
