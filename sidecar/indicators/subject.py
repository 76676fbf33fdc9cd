"""The shape of an indicator: what it publishes, and a pure function from the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sidecar.engine_history import EngineHistory
from sidecar.history import History
from sidecar.model import Declaration, Histogram, Sample, Unavailable

GPU_LABELS = ("gpu", "uuid")
Outcome = Sample | Unavailable


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject: its declarations and how they are measured.

    `measure` must be pure: same history, same outcomes. A declared quantity that cannot be
    computed yields `Unavailable` with a short reason; one that does not apply yields nothing.
    """

    declarations: tuple[Declaration, ...]
    measure: Callable[[History], Iterable[Outcome]]


def outcome(
    declaration: Declaration,
    labels: tuple[str, ...],
    value: float | Histogram | None,
    reason: str = "",
) -> Outcome:
    """A sample, or the reason why there is none."""
    if value is None:
        return Unavailable(declaration, labels, reason)
    return Sample(declaration, labels, value)


def for_each_engine(
    measure: Callable[[EngineHistory, tuple[str, str]], Iterable[Outcome]],
) -> Callable[[History], Iterable[Outcome]]:
    """Lift a measurement of one engine, given its labels, to all engines of the last page."""

    def measure_all(history: History) -> Iterable[Outcome]:
        for engine in history.engines:
            if engine.reading is not None:
                yield from measure(engine, engine.reading.key)

    return measure_all
