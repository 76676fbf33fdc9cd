"""`diagnose` of a running server: polls it for a while and says what holds."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from sidecar.diagnosis import Report, summarise
from sidecar.exposition import Board
from sidecar.model import Frame
from sidecar.poller import Poller
from sidecar.runtime import run_together
from sidecar.service import build_poller, gpu_source, vllm_source
from sidecar.settings import Settings
from sidecar.startlog import LogFollower
from sidecar.terminal import print_report
from sidecar.verdict_json import report_json

log = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
"""How long a single look lasts: a verdict needs some seconds to hold, a rate five of them."""


async def run_live_diagnosis(
    settings: Settings, log_file: Path | None, *, as_json: bool, watch: bool
) -> int:
    """Look for some seconds, or until a signal with `watch`. Returns the exit status."""
    vllm, gpus = vllm_source(settings), gpu_source(settings)
    follower = LogFollower(log_file) if log_file is not None else None
    board = Board()
    poller = build_poller(settings, vllm, gpus, board, log_follower=follower)
    frames: list[Frame] = []
    log.info("looking at %s for %.0f s", vllm.address, LOOK_SECONDS)
    try:
        status = await run_together(
            [("poller", poller.run()), ("report", _collect(board, frames, as_json, watch))],
            [],
            seconds=None if watch else LOOK_SECONDS,
        )
    finally:
        await vllm.close()
        await gpus.close()
    if watch or status != 0 or not frames:
        return status
    report = _final(frames, poller, follower)
    _show(report, as_json)
    return report.exit_status


def _final(frames: list[Frame], poller: Poller, follower: LogFollower | None) -> Report:
    """What held at the end of the look: what was over before is no longer news."""
    start = follower.reader.last if follower is not None and poller.polls else None
    report = summarise(frames[-1:])
    return Report(report.at, report.verdicts, start)


async def _collect(board: Board, frames: list[Frame], as_json: bool, watch: bool) -> None:
    """Keep the newest frame; with `watch` show it whenever the verdicts change."""
    shown: tuple[tuple[str, str], ...] | None = None
    while True:
        await asyncio.sleep(0.2)
        frame = board.frame
        if frame is None or (frames and frames[-1] is frame):
            continue
        frames[:] = [frame]
        held = tuple((verdict.code, verdict.severity) for verdict in frame.verdicts)
        if watch and held != shown:
            shown = held
            _show(Report(frame.at, frame.verdicts), as_json)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report_json(report), allow_nan=False) + "\n")
    else:
        print_report(report, sys.stdout)
    sys.stdout.flush()
