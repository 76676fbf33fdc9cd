"""How an engine's KV cache was used while it served: sums that only grow, and peaks."""

from __future__ import annotations

from sidecar.points import Points
from sidecar.settings import Thresholds

HOUR = 3600.0
HOURS_KEPT = 24
USAGE_BOUNDS = (*(step / 20 for step in range(1, 20)), 0.98, 1.0)
"""Upper bounds of the histogram of KV usage samples."""


class UsageRecord:
    """Seconds in a state and samples of KV usage, so that a slow scrape loses nothing.

    Sums survive restarts of the engine; the peak is of its present life.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.serving_seconds = Points(HOUR)
        self.underused_seconds = Points(HOUR)
        self.saturated_seconds_total = 0.0
        self.sample_counts = [0] * (len(USAGE_BOUNDS) + 1)
        self.sample_sum = 0.0
        self._hourly_peaks: dict[int, float] = {}

    def begin_life(self) -> None:
        """The engine restarted, perhaps with another pool: its peak begins anew."""
        self._hourly_peaks.clear()

    def add(self, at: float, usage_ratio: float, running: float, step_seconds: float) -> None:
        """One poll, which speaks for the `step_seconds` before it."""
        limits = self._thresholds
        serving = step_seconds if running > 0 else 0.0
        underused = serving if usage_ratio < limits.kv_underused_ratio else 0.0
        for points, grown in ((self.serving_seconds, serving), (self.underused_seconds, underused)):
            points.append(at, (points.values[-1] if points.values else 0.0) + grown)
        if usage_ratio >= limits.kv_saturated_ratio:
            self.saturated_seconds_total += serving
        if running > 0:
            self._take_sample(at, usage_ratio)

    def _take_sample(self, at: float, usage_ratio: float) -> None:
        bucket = next(
            (index for index, upper in enumerate(USAGE_BOUNDS) if usage_ratio <= upper),
            len(USAGE_BOUNDS),
        )
        self.sample_counts[bucket] += 1
        self.sample_sum += usage_ratio
        hour = int(at // HOUR)
        self._hourly_peaks[hour] = max(usage_ratio, self._hourly_peaks.get(hour, 0.0))
        for old in [known for known in self._hourly_peaks if known <= hour - HOURS_KEPT]:
            del self._hourly_peaks[old]

    @property
    def peak_ratio(self) -> float | None:
        """Highest KV usage with running requests in the last 24 hours of this life."""
        return max(self._hourly_peaks.values(), default=None)

    def serving_seconds_since(self, moment: float) -> float:
        """Seconds with running requests since then, an hour back at most."""
        values = self.serving_seconds.since(moment)
        return values[-1] - values[0] if values else 0.0
