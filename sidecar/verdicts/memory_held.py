"""Concurrency fell and GPU memory did not: how vLLM works, said before somebody calls it a leak."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.indicators.concurrency_drop import find_drop
from sidecar.model import Evidence, Verdict
from sidecar.verdicts.rule import AT_ONCE, Rule
from sidecar.verdicts.situation import Situation

BLOCKS_CAME_BACK_RATIO = 0.5
"""KV usage that falls by half of what concurrency fell by has clearly given blocks back."""


def judge(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        drop = find_drop(engine, situation.history.memory)
        if drop is None or drop.memory_ratio is None:
            continue
        if drop.memory_ratio >= situation.thresholds.drop_memory_held_ratio:
            continue
        evidence = [
            Evidence("concurrency_drop_ratio", drop.concurrency_ratio, "ratio", 0.75),
            Evidence("gpu_memory_drop_ratio", drop.memory_ratio, "ratio", 0.1),
        ]
        summary = (
            f"Running requests fell by {drop.concurrency_ratio:.0%} and GPU memory stayed: vLLM "
            "keeps the KV cache that it allocated at the start."
        )
        if drop.kv_ratio is not None:
            evidence.append(Evidence("kv_cache_drop_ratio", drop.kv_ratio, "ratio"))
            if drop.kv_ratio >= BLOCKS_CAME_BACK_RATIO * drop.concurrency_ratio:
                summary += f" Inside it blocks came back ({drop.kv_ratio:.0%}); nothing leaks."
        yield Verdict(
            "memory_held",
            "info",
            "high" if drop.kv_ratio is not None else "medium",
            summary,
            scope,
            evidence=tuple(evidence),
        )


RULE = Rule("memory_held", ("info",), judge, AT_ONCE, linger_seconds=0.0)
