"""The KV cache is nearly full and nothing has been preempted: good use, close to the edge."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.indicators.kv_capacity import exhaustion_seconds
from sidecar.model import Evidence, Verdict
from sidecar.verdicts.rule import Hold, Rule
from sidecar.verdicts.situation import Situation


def judge(situation: Situation) -> Iterable[Verdict]:
    for engine, scope in situation.settled_engines():
        usage = engine.usage.at(engine.at)
        if usage is None or usage < situation.thresholds.preemption_kv_usage_ratio:
            continue
        moved = engine.total("preemptions_total").increase(engine.at, 15.0, at_least_seconds=0.0)
        if (moved is not None and moved.amount > 0) or engine.suspicions_within(15.0):
            continue
        evidence = [Evidence("kv_cache_usage_ratio", usage, "ratio", 0.9)]
        left = exhaustion_seconds(engine)
        if left is not None:
            evidence.append(Evidence("kv_cache_exhaustion_seconds", left, "seconds"))
        yield Verdict(
            "kv_pressure",
            "info",
            "high" if moved is not None else "low",
            "The KV cache is nearly full and nothing was preempted: good use of it, with little "
            "room for longer requests.",
            scope,
            evidence=tuple(evidence),
            missing=() if moved is not None else ("preemptions_per_second",),
        )


RULE = Rule("kv_pressure", ("info",), judge, Hold(12.0, 15.0), linger_seconds=5.0)
