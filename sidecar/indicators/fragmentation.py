"""Internal fragmentation: the empty rest of each request's last block.

A paged KV cache has no external fragmentation: all blocks are alike, any free one serves any
request. What can be wasted is the part of a block that its request has not filled yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sidecar.engine_history import EngineHistory
from sidecar.indicators.subject import Outcome, Subject, for_each_engine, outcome
from sidecar.model import Declaration

FRAGMENTATION = Declaration(
    "kv_cache_internal_fragmentation_ratio",
    "Empty share of the token slots in used blocks: measured from the token counters where "
    "they balance, else estimated as half a block for each running request.",
    labels=("model_name", "engine", "method"),
)
BOUND = Declaration(
    "kv_cache_internal_fragmentation_max_ratio",
    "The most that internal fragmentation can be: all but one token of each last block.",
)
RESIDENT = Declaration(
    "kv_cache_resident_tokens",
    "Tokens of unfinished requests in the KV cache, from the balance of vLLM's counters since "
    "nothing last ran.",
)
SHARING = Declaration(
    "kv_cache_sharing_factor",
    "How many times over the used blocks serve requests, where prefix-cache hits make it exceed 1.",
)
LOST = Declaration(
    "requests_lost_total",
    "Requests whose client went away before they finished, which vLLM counts nowhere.",
    "counter",
)

_MEDIAN_SECONDS = 10.0


def measure(engine: EngineHistory, labels: tuple[str, str]) -> Iterable[Outcome]:
    reading, balance = engine.reading, engine.balance
    if reading is None:
        return
    yield outcome(LOST, labels, balance.lost_requests_total)
    reason = balance.distrusted_because or ""
    yield outcome(RESIDENT, labels, balance.resident_tokens, reason)
    allocated, shared = engine.allocated_tokens(), balance.shared_tokens(reading)
    if allocated and shared is not None and shared > allocated:
        yield outcome(SHARING, labels, shared / allocated)
    bound = engine.fragmentation_bound_ratio()
    if bound is None:
        yield outcome(BOUND, labels, None, _why_unbounded(engine))
        return
    yield outcome(BOUND, labels, bound)
    measured = engine.fragmentation.within(engine.at, _MEDIAN_SECONDS)
    if balance.resident_tokens is not None and measured:
        yield outcome(FRAGMENTATION, (*labels, "measured"), median(measured))
    else:
        yield outcome(FRAGMENTATION, (*labels, "estimated"), bound / 2)


def _why_unbounded(engine: EngineHistory) -> str:
    if engine.capacity is None or engine.capacity.block_size is None:
        return "block_size_unknown"
    return "nothing_running"


SUBJECT = Subject((FRAGMENTATION, BOUND, RESIDENT, SHARING, LOST), for_each_engine(measure))
