"""Recordings played through the pipeline, for tests that judge what comes out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sidecar.model import Frame, Histogram
from sidecar.recordings import open_recording
from sidecar.replay import frames
from sidecar.settings import Thresholds

RECORDINGS = Path(__file__).resolve().parent / "captures" / "recordings"


@cache
def played(name: str) -> tuple[Frame, ...]:
    """All frames of a recording, computed once for all tests."""
    return tuple(frames(open_recording(RECORDINGS / f"{name}.jsonl.gz"), Thresholds()))


def values(frame: Frame, name: str, **labels: str) -> list[float]:
    """Values of an indicator whose labels include the given ones."""
    found = []
    for sample in frame.samples:
        if sample.declaration.name != name or isinstance(sample.value, Histogram):
            continue
        given = dict(zip(sample.declaration.labels, sample.labels, strict=True))
        if labels.items() <= given.items():
            found.append(sample.value)
    return found


def value(frame: Frame, name: str, **labels: str) -> float | None:
    """The one value of an indicator, or None where it is absent."""
    found = values(frame, name, **labels)
    assert len(found) <= 1, f"{name} {labels} is ambiguous"
    return found[0] if found else None


def number(frame: Frame, name: str, **labels: str) -> float:
    """The one value of an indicator, which must be there."""
    found = value(frame, name, **labels)
    assert found is not None, f"{name} {labels} is absent at {frame.snapshot.phase}"
    return found


def in_phase(name: str, phase: str) -> list[Frame]:
    """Frames of a recording's phase, in order."""
    return [frame for frame in played(name) if frame.snapshot.phase == phase]
