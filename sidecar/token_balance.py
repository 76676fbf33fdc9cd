"""How many tokens live in the KV cache, by bookkeeping over vLLM's own counters.

vLLM says how many blocks are in use, not how full they are. But every token that came in and
has not left with a finished request must be in some block, so the difference of the counters
since a moment when nothing ran is the number of resident tokens. The books hold only while no
request was preempted, cut off by its client, or served from the prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.model import EngineReading
from sidecar.settings import Thresholds


@dataclass(frozen=True, slots=True)
class _Opening:
    """The books at the last idle moment."""

    tokens: float
    preemptions: float | None
    prefix_queries: float
    prefix_hits: float
    unfinished: float | None


class TokenBalance:
    """The books of one engine since its last idle moment.

    `resident_tokens` is None while the books cannot be trusted, and `distrusted_because` then
    says why. `lost_requests_total` counts requests whose client went away, which vLLM counts
    nowhere: they have seen a first token, are neither running nor waiting, and never finished.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._opening: _Opening | None = None
        self._lost_before = 0.0
        self._lost_now = 0.0
        self.resident_tokens: float | None = None
        self.is_shared = False
        self.distrusted_because: str | None = "not_idle_yet"

    @property
    def lost_requests_total(self) -> float:
        return self._lost_before + self._lost_now

    @property
    def is_open(self) -> bool:
        """Whether an idle moment of this life has been seen."""
        return self._opening is not None

    def forget(self) -> None:
        """Close the books at a restart; they open again at the next idle moment."""
        self._lost_before += self._lost_now
        self._lost_now = 0.0
        self._opening = None
        self.resident_tokens = None
        self.distrusted_because = "not_idle_yet"

    def add(self, reading: EngineReading, *, idle: bool) -> None:
        tokens = _flow(reading)
        if tokens is None:
            self._opening, self.resident_tokens = None, None
            self.distrusted_because = "series_missing"
            return
        if idle:
            self.forget()
            self._opening = _Opening(
                tokens,
                reading.preemptions_total,
                reading.prefix_queries_total or 0.0,
                reading.prefix_hits_total or 0.0,
                _unfinished(reading),
            )
        opening = self._opening
        if opening is None:
            return
        self._count_lost(reading, opening)
        self.is_shared = self._hits_matter(reading, opening)
        self.distrusted_because = self._doubt(reading, opening)
        balance = tokens - opening.tokens
        self.resident_tokens = balance if self.distrusted_because is None else None

    def shared_tokens(self, reading: EngineReading) -> float | None:
        """Resident tokens counted once for each request that uses them, where only prefix-cache
        hits spoil the books; None otherwise."""
        tokens = _flow(reading)
        if self._opening is None or tokens is None or self.distrusted_because != "prefix_hits":
            return None
        return tokens - self._opening.tokens

    def _count_lost(self, reading: EngineReading, opening: _Opening) -> None:
        unfinished = _unfinished(reading)
        if unfinished is None or opening.unfinished is None:
            return
        present = (reading.running or 0.0) + (reading.waiting or 0.0)
        self._lost_now = max(self._lost_now, unfinished - opening.unfinished - present)

    def _hits_matter(self, reading: EngineReading, opening: _Opening) -> bool:
        queries = (reading.prefix_queries_total or 0.0) - opening.prefix_queries
        hits = (reading.prefix_hits_total or 0.0) - opening.prefix_hits
        return hits > self._thresholds.prefix_hits_ignored_ratio * queries

    def _doubt(self, reading: EngineReading, opening: _Opening) -> str | None:
        if reading.preemptions_total != opening.preemptions:
            return "preemptions"
        if self._lost_now > 0:
            return "requests_lost"
        if self.is_shared:
            return "prefix_hits"
        return None


def _flow(reading: EngineReading) -> float | None:
    """Tokens that entered minus tokens that left with finished requests."""
    entered = (reading.prompt_tokens_total, reading.generation_tokens_total)
    left = (reading.finished_prompt_tokens_total, reading.finished_generation_tokens_total)
    known = [part for part in (*entered, *left) if part is not None]
    if len(known) < 4:
        return None
    return known[0] + known[1] - known[2] - known[3]


def _unfinished(reading: EngineReading) -> float | None:
    """Requests that have seen a first token and have not finished."""
    if reading.first_tokens_total is None or reading.finished_total is None:
        return None
    return reading.first_tokens_total - reading.finished_total
