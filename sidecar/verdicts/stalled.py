"""Requests run and nothing moves."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.indicators.load import stalled
from sidecar.model import Advice, Avoid, Evidence, Verdict
from sidecar.verdicts.rule import AT_ONCE, Rule
from sidecar.verdicts.situation import Situation


def judge(situation: Situation) -> Iterable[Verdict]:
    if situation.paused:
        return
    for engine, scope in situation.settled_engines():
        reading = engine.reading
        if reading is None or not stalled(engine):
            continue
        still = engine.at - engine.last_progress_at
        yield Verdict(
            "stalled",
            "critical",
            "medium",
            f"{reading.running:.0f} requests run and nothing has moved for {still:.0f} s: no "
            "token, no step, no finished request.",
            scope,
            evidence=(
                Evidence(
                    "seconds_without_progress",
                    still,
                    "seconds",
                    situation.thresholds.stalled_seconds,
                ),
                Evidence("requests_running", reading.running or 0.0, "requests"),
            ),
            advice=(
                Advice(
                    "look",
                    None,
                    "the cause, before anything is changed",
                    "is generation paused (POST /pause looks just like this on the page)? is a "
                    "step hung on a GPU or a collective (the log, GPU utilisation)? V0: is a "
                    "request stuck in swap?",
                ),
                Advice("restart", None, "the engine serves again", "if it is not a pause"),
            ),
            avoid=(
                Avoid("--gpu-memory-utilization", "nothing here says that memory is short"),
                Avoid("--max-num-seqs", "nothing here says that the load is too high"),
            ),
            missing=("is_paused",) if situation.snapshot.paused is None else (),
        )


RULE = Rule("stalled", ("critical",), judge, AT_ONCE)
