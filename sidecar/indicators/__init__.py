"""Everything that is derived from polls. A new indicator is a file here and a line below."""

from __future__ import annotations

from sidecar.history import History
from sidecar.indicators import (
    concurrency_drop,
    fragmentation,
    gpu_budget,
    gpu_memory,
    host,
    kv_capacity,
    kv_usage,
    load,
    preemptions,
)
from sidecar.indicators.subject import Subject
from sidecar.model import Declaration, Sample, Unavailable

SUBJECTS: tuple[Subject, ...] = (
    preemptions.SUBJECT,
    kv_usage.SUBJECT,
    concurrency_drop.SUBJECT,
    kv_capacity.SUBJECT,
    fragmentation.SUBJECT,
    gpu_memory.SUBJECT,
    gpu_budget.SUBJECT,
    host.SUBJECT,
    load.SUBJECT,
)

DECLARATIONS: tuple[Declaration, ...] = tuple(
    declaration for subject in SUBJECTS for declaration in subject.declarations
)


def measure(history: History) -> tuple[tuple[Sample, ...], tuple[Unavailable, ...]]:
    """All indicators of this moment, and those that could not be computed, with the reason."""
    outcomes = [outcome for subject in SUBJECTS for outcome in subject.measure(history)]
    return (
        tuple(outcome for outcome in outcomes if isinstance(outcome, Sample)),
        tuple(outcome for outcome in outcomes if isinstance(outcome, Unavailable)),
    )
