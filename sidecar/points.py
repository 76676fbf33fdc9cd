"""One quantity over time, and the questions that indicators ask of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple


class Increase(NamedTuple):
    """How much a total grew, and over how many observed seconds."""

    amount: float
    seconds: float

    @property
    def per_second(self) -> float:
        return self.amount / self.seconds


@dataclass(slots=True)
class Points:
    """Measurements in ascending time. A moment without a measurement simply has no point.

    `keep_seconds` bounds the memory: older points are dropped, except the last one before the
    edge, so that a total can still be compared with its value at the edge.
    """

    keep_seconds: float
    times: list[float]
    values: list[float]

    def __init__(self, keep_seconds: float) -> None:
        self.keep_seconds = keep_seconds
        self.times = []
        self.values = []

    def append(self, at: float, value: float) -> None:
        self.times.append(at)
        self.values.append(value)
        # Cutting the front of a list costs its length, so it is done once in a while.
        if len(self.times) > 64 and self.times[len(self.times) // 4] < at - self.keep_seconds:
            edge = max(0, bisect_right(self.times, at - self.keep_seconds) - 1)
            del self.times[:edge]
            del self.values[:edge]

    def at(self, moment: float) -> float | None:
        """The value measured at exactly this moment, or None."""
        if self.times and self.times[-1] == moment:
            return self.values[-1]
        return None

    def value_at(self, moment: float) -> float | None:
        """The value measured at exactly this past moment, or None."""
        index = bisect_left(self.times, moment)
        if index < len(self.times) and self.times[index] == moment:
            return self.values[index]
        return None

    def within(self, now: float, seconds: float) -> list[float]:
        """Values of the last `seconds` up to `now`, the older edge left out."""
        return self.values[bisect_right(self.times, now - seconds) : bisect_right(self.times, now)]

    def since(self, moment: float) -> list[float]:
        """Values measured at or after `moment`."""
        return self.values[bisect_left(self.times, moment) :]

    def observed_seconds(self, now: float, seconds: float) -> float:
        """How much of the window lies between its first and last point."""
        first = bisect_left(self.times, now - seconds)
        return self.times[-1] - self.times[first] if first < len(self.times) else 0.0

    def covered_seconds(self, now: float, seconds: float) -> float:
        """How much of the window its points speak for: each for the time since the one before."""
        first = bisect_right(self.times, now - seconds)
        start = self.times[first - 1] if first > 0 else self.times[first] if self.times else now
        return min(seconds, now - start)

    def increase(self, now: float, seconds: float, *, at_least_seconds: float) -> Increase | None:
        """Growth of a never-falling total over a trailing window, measured up to `now`.

        The window opens at the last point at or before its edge, unless that lies further back
        than twice the window (a gap), in which case it opens at the first point inside: so a
        series of one, ten or fifteen seconds is judged alike. None when nothing was measured
        now, or when fewer than `at_least_seconds` were observed.
        """
        if self.at(now) is None:
            return None
        edge = bisect_right(self.times, now - seconds) - 1
        if edge < 0 or self.times[edge] < now - 2 * seconds:
            edge += 1
        observed = now - self.times[edge]
        if observed < at_least_seconds:
            return None
        return Increase(self.values[-1] - self.values[edge], observed)
