"""What one engine has done lately: measurements over time, and sums that only grow."""

from __future__ import annotations

from statistics import median

from sidecar.capacity import Capacity, capacity_of, used_blocks
from sidecar.model import EngineReading, Histogram
from sidecar.points import Points
from sidecar.progress import has_moved
from sidecar.settings import Thresholds
from sidecar.sources.releases import Release
from sidecar.token_balance import TokenBalance
from sidecar.usage_record import HOUR, UsageRecord

_SHORT = 900.0
LONGEST_STEP_SECONDS = 30.0
"""Time between two readings beyond this is a gap: nothing is known about it."""

_TOTALS = (
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
    "finished_prompt_tokens_total",
    "finished_generation_tokens_total",
    "prefix_queries_total",
    "prefix_hits_total",
)


class EngineHistory:
    """One engine since the sidecar first saw it. Totals here never fall, whatever vLLM does."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.reading: EngineReading | None = None
        self.capacity: Capacity | None = None
        self.at = 0.0
        self.first_at: float | None = None
        self.life_started_at = 0.0
        self.restarts = 0
        self.usage = Points(HOUR)
        self.running = Points(HOUR)
        self.waiting = Points(HOUR)
        self.totals = {name: Points(_SHORT) for name in _TOTALS}
        self.histograms: dict[str, list[tuple[float, Histogram]]] = {}
        self.token_rate = Points(HOUR)
        self.token_rate_running = Points(HOUR)
        self.plateau_running = Points(thresholds.drop_window_seconds)
        self.plateau_usage = Points(thresholds.drop_window_seconds)
        self.plateau_memory = Points(thresholds.drop_window_seconds)
        self.record = UsageRecord(thresholds)
        self.balance = TokenBalance(thresholds)
        self.fragmentation = Points(HOUR)
        self.suspicions = Points(_SHORT)
        self.idle_since: float | None = None
        self.held_idle_since: float | None = None
        self._finished_at_start: float | None = None
        self.last_progress_at = 0.0
        self.awake_since = 0.0

    def add(
        self,
        at: float,
        reading: EngineReading,
        release: Release | None,
        *,
        server_restarted: bool,
        memory_bytes: float | None,
    ) -> None:
        """Take in one reading. `memory_bytes` is what the server holds on its GPUs just now."""
        previous, previous_at = self.reading, self.at
        restarted = previous is not None and (server_restarted or _fell(previous, reading))
        if self.first_at is None:
            self.first_at = at
        if previous is None or restarted:
            self._begin_life(at)
            self.restarts += restarted
        step = at - previous_at if previous is not None and not restarted else 0.0
        if step > LONGEST_STEP_SECONDS:
            step = 0.0
        self.reading, self.at = reading, at
        self.capacity = capacity_of(reading, release)
        self._measure(at, reading, previous, restarted=restarted)
        self.suspicions.append(at, float(self._suspect_preemption(reading)))
        if reading.running is not None and reading.kv_usage_ratio is not None:
            self.record.add(at, reading.kv_usage_ratio, reading.running, step)
        self._watch_progress(at, reading, previous, gap=step == 0.0)
        self._balance(at, reading)
        self._plateau(at, memory_bytes)

    def counters_fell(self, reading: EngineReading) -> bool:
        """Whether this reading can only come from a new life of the engine."""
        return self.reading is not None and _fell(self.reading, reading)

    def serving_seconds_of_life(self) -> float:
        """Seconds with running requests since the last (re)start that was seen."""
        return self.record.serving_seconds_since(self.life_started_at)

    def finished_of_life(self) -> float | None:
        """Requests finished since the sidecar met this life of the engine."""
        reading = self.reading
        if reading is None or reading.finished_total is None or self._finished_at_start is None:
            return None
        return reading.finished_total - self._finished_at_start

    def finished_mean_tokens(self) -> float | None:
        """Prompt and generation tokens of all requests that vLLM has finished, on average."""
        reading = self.reading
        if reading is None or not reading.finished_total:
            return None
        prompt = reading.finished_prompt_tokens_total
        generated = reading.finished_generation_tokens_total
        if prompt is None or generated is None:
            return None
        return (prompt + generated) / reading.finished_total

    def suspicions_within(self, seconds: float) -> int:
        """At how many polls of the last seconds the queue looked like preemption."""
        return sum(1 for found in self.suspicions.within(self.at, seconds) if found)

    def _suspect_preemption(self, reading: EngineReading) -> bool:
        """Running fell and waiting rose by as much on a full pool, and nobody finished instead."""
        limits, usage = self.thresholds, reading.kv_usage_ratio
        if reading.running is None or reading.waiting is None or usage is None:
            return False
        start = max(self.at - limits.suspicion_seconds, self.life_started_at)
        left = max(self.running.since(start)) - reading.running
        queued = reading.waiting - min(self.waiting.since(start))
        finished = self.total("finished_total").increase(
            self.at, limits.suspicion_seconds, at_least_seconds=0.0
        )
        return (
            left >= limits.suspicion_requests
            and queued >= left
            and (finished is None or finished.amount < left)
            and usage >= limits.preemption_kv_usage_ratio
        )

    def total(self, name: str) -> Points:
        """A counter of vLLM as a total that survives restarts."""
        return self.totals[name]

    def is_idle(self, reading: EngineReading) -> bool:
        """Nothing runs, nothing waits, and no block is held beyond the release's idle floor."""
        floor = self.capacity.idle_usage_ratio if self.capacity else 0.0
        usage = reading.kv_usage_ratio
        return (
            reading.running == 0
            and reading.waiting == 0
            and usage is not None
            and usage <= floor + 1e-9
        )

    def _begin_life(self, at: float) -> None:
        self.life_started_at = self.awake_since = self.last_progress_at = at
        self.idle_since = self.held_idle_since = self._finished_at_start = None
        self.record.begin_life()
        self.histograms.clear()
        self.balance.forget()

    def _measure(
        self, at: float, reading: EngineReading, previous: EngineReading | None, *, restarted: bool
    ) -> None:
        for points, value in (
            (self.usage, reading.kv_usage_ratio),
            (self.running, reading.running),
            (self.waiting, reading.waiting),
        ):
            if value is not None:
                points.append(at, value)
        for name, points in self.totals.items():
            value = getattr(reading, name)
            if value is None:
                continue
            before = getattr(previous, name) if previous is not None else None
            if before is None:
                grown = 0.0  # the first value ever seen is a baseline, not an increase
            elif restarted or value < before:
                grown = value
            else:
                grown = value - before
            points.append(at, (points.values[-1] if points.values else 0.0) + grown)
        for name, histogram in (
            ("iteration_tokens", reading.iteration_tokens),
            ("queue_seconds", reading.queue_seconds),
        ):
            if histogram is not None:
                kept = self.histograms.setdefault(name, [])
                kept.append((at, histogram))
                while len(kept) > 2 and kept[1][0] <= at - 60.0:
                    del kept[0]

    def _watch_progress(
        self, at: float, reading: EngineReading, previous: EngineReading | None, *, gap: bool
    ) -> None:
        if reading.sleeping:
            self.awake_since = at
        if reading.running == 0 and reading.waiting == 0:
            self.idle_since = at if self.idle_since is None else self.idle_since
        else:
            self.idle_since = None
        held = reading.running == 0 and reading.waiting == 0 and not self.is_idle(reading)
        if not held or reading.kv_usage_ratio is None or reading.sleeping:
            self.held_idle_since = None
        elif self.held_idle_since is None:
            self.held_idle_since = at
        if self._finished_at_start is None:
            self._finished_at_start = reading.finished_total
        if gap or reading.sleeping or not reading.running or has_moved(previous, reading):
            self.last_progress_at = at
        rate = self.tokens_per_second(10.0)
        if rate is not None and reading.running is not None:
            self.token_rate.append(at, rate)
            self.token_rate_running.append(at, median(self.running.within(at, 10.0)))

    def tokens_per_second(self, seconds: float) -> float | None:
        """Prompt and generation tokens a second over a trailing window of this life."""
        rates = [
            self.total(name).increase(
                self.at, seconds, at_least_seconds=self.thresholds.rate_at_least_seconds
            )
            for name in ("prompt_tokens_total", "generation_tokens_total")
        ]
        found = [rate.per_second for rate in rates if rate is not None]
        return sum(found) if len(found) == len(rates) else None

    def _balance(self, at: float, reading: EngineReading) -> None:
        self.balance.add(reading, idle=self.is_idle(reading))
        measured = self.measured_fragmentation_ratio()
        bound = self.fragmentation_bound_ratio()
        if measured is not None and bound is not None and 0.0 <= measured <= bound:
            self.fragmentation.append(at, measured)

    def allocated_tokens(self) -> float | None:
        """Token slots in the blocks that are in use."""
        reading, capacity = self.reading, self.capacity
        if reading is None or reading.kv_usage_ratio is None or capacity is None:
            return None
        if capacity.usable_tokens is None:
            return None
        return used_blocks(reading.kv_usage_ratio, capacity) * (
            capacity.usable_tokens / capacity.blocks
        )

    def measured_fragmentation_ratio(self) -> float | None:
        """Empty share of the allocated slots by the balance of tokens, unchecked."""
        allocated = self.allocated_tokens()
        resident = self.balance.resident_tokens
        reading, capacity = self.reading, self.capacity
        if not allocated or resident is None or reading is None or not reading.running:
            return None
        if capacity is None or capacity.block_size is None:
            return None
        return 1.0 - resident / allocated

    def fragmentation_bound_ratio(self) -> float | None:
        """The most that can be empty: all but one token of each running request's last block."""
        allocated = self.allocated_tokens()
        reading, capacity = self.reading, self.capacity
        if not allocated or reading is None or not reading.running:
            return None
        if capacity is None or capacity.block_size is None:
            return None
        return min(1.0, reading.running * (capacity.block_size - 1) / allocated)

    def _plateau(self, at: float, memory_bytes: float | None) -> None:
        seconds = self.thresholds.plateau_seconds
        settled = at - max(self.life_started_at, self.awake_since) >= seconds - 1.0
        if self.running.at(at) is None or self.usage.at(at) is None or not settled:
            return
        self.plateau_running.append(at, median(self.running.within(at, seconds)))
        self.plateau_usage.append(at, median(self.usage.within(at, seconds)))
        if memory_bytes is not None:
            self.plateau_memory.append(at, memory_bytes)


def _fell(previous: EngineReading, reading: EngineReading) -> bool:
    """Whether any counter is below its last value, which only a restart can do."""
    pairs = ((getattr(previous, name), getattr(reading, name)) for name in _TOTALS)
    return any(before is not None and now is not None and now < before for before, now in pairs)
