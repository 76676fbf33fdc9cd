"""Writes what the sidecar exports at the last poll of each phase of each recording.

The files under `tests/golden/` are compared byte for byte by a test, so that no change of the
sidecar's output goes unseen: regenerate them with `make golden` and read the difference, which
is the review. They are never edited by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sidecar.exposition import render_families
from sidecar.recordings import open_recording
from sidecar.replay import frames
from sidecar.settings import Thresholds

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "captures" / "recordings"
GOLDEN = ROOT / "tests" / "golden"

LEFT_OUT = frozenset(
    {
        "build_info",
        "poll_overruns_total",
        "poll_period_seconds",
        "source_failures_total",
        "source_last_success_timestamp_seconds",
        "source_read_seconds",
        "source_up",
    }
)
"""The sidecar's telemetry about itself: it says nothing about the recorded server."""


def golden_texts(path: Path) -> dict[str, bytes]:
    """File name -> exposition for each phase of a recording, numbered in order."""
    texts: list[tuple[str, bytes]] = []
    phase: str | None = None
    for frame in frames(open_recording(path), Thresholds()):
        body = (frame.snapshot.phase or "none", render_families(frame, LEFT_OUT))
        if texts and frame.snapshot.phase == phase:
            texts[-1] = body
        else:
            texts.append(body)
        phase = frame.snapshot.phase
    return {f"{number}-{name}.prom": body for number, (name, body) in enumerate(texts, start=1)}


def main() -> int:
    """Write everything; say how many files changed."""
    changed = 0
    wanted: set[Path] = set()
    for path in sorted(RECORDINGS.glob("*.jsonl.gz")):
        folder = GOLDEN / path.name.removesuffix(".jsonl.gz")
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in golden_texts(path).items():
            target = folder / name
            wanted.add(target)
            if not target.exists() or target.read_bytes() != body:
                target.write_bytes(body)
                changed += 1
    for stale in set(GOLDEN.glob("*/*.prom")) - wanted:
        stale.unlink()
        changed += 1
    print(f"{len(wanted)} golden files, {changed} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
