"""Puts the parts together for the commands that keep running: run, demo, record."""

from __future__ import annotations

import asyncio
import logging
import shlex
import ssl
import time
from pathlib import Path

from sidecar.exposition import Board
from sidecar.launch import parse_arguments
from sidecar.model import Poll
from sidecar.pipeline import Pipeline
from sidecar.poller import Poller
from sidecar.recordings import Header, Recorder, RecordingError
from sidecar.runtime import Site, address_of, listen, run_together
from sidecar.settings import Settings, SettingsError
from sidecar.simulator import Simulation
from sidecar.sources import GpuSource
from sidecar.sources.gpu_visibility import visible_selection
from sidecar.sources.host import read_host
from sidecar.sources.nvml import NvmlSource, parse_selection
from sidecar.sources.vllm import VllmSource
from sidecar.startlog import LogFollower
from sidecar.web.application import build_application
from sidecar.web.protection import protection_of

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0


async def run_service(settings: Settings) -> int:
    """The sidecar next to a real server. Returns the exit status."""
    vllm, gpus = vllm_source(settings), gpu_source(settings)
    protection = protection_of(settings)
    with listen(settings.host, settings.port) as listener:
        recorder = _recorder(settings)
        board = Board()
        poller = build_poller(settings, vllm, gpus, board, recorder)
        address = address_of(listener, tls=settings.speaks_tls)
        log.info("watching %s; metrics at %s/metrics", vllm.address, address)
        try:
            return await run_together(
                [("poller", poller.run())],
                [
                    Site(
                        build_application(board, protection),
                        listener,
                        protection.certificate,
                        protection.key,
                    )
                ],
            )
        finally:
            await _close(vllm, gpus)
            _end_recording(recorder)


async def run_demo(
    settings: Settings, simulation: Simulation, simulator_host: str, simulator_port: int
) -> int:
    """The same pipeline on a simulated server, which is asked over real HTTP."""
    with (
        listen(settings.host, settings.port) as listener,
        listen(simulator_host, simulator_port) as simulator_listener,
    ):
        address = address_of(listener)
        vllm = VllmSource(address_of(simulator_listener))
        board = Board()
        poller = build_poller(settings, vllm, simulation.gpus, board)
        print(  # noqa: T201 - the result of the command
            f"A simulated vLLM serves {vllm.address}/metrics; the sidecar watches it.\n"
            f"Open {address} or run: curl -s {address}/metrics | grep ^vllm_sidecar_\n"
            "Ctrl-C ends both.",
            flush=True,
        )
        try:
            return await run_together(
                [("poller", poller.run()), ("scenario", _tell_scenario(simulation))],
                [
                    Site(simulation.application, simulator_listener),
                    Site(build_application(board), listener),
                ],
            )
        finally:
            await _close(vllm, simulation.gpus)


async def run_recorder(settings: Settings, seconds: float | None) -> int:
    """Record without serving, until a signal or for so many seconds. Only here is a file that
    cannot be written the end: there is nothing else to do."""
    vllm, gpus = vllm_source(settings), gpu_source(settings)
    recorder = _recorder(settings)
    poller = build_poller(settings, vllm, gpus, Board(), recorder, must_record=True)
    log.info("recording %s into %s", vllm.address, settings.record)
    try:
        status = await run_together(
            [("recording", poller.run()), ("progress", _tell_progress(poller))],
            [],
            seconds=seconds,
        )
    finally:
        await _close(vllm, gpus)
        complete = _end_recording(recorder)
        log.info("recorded %d polls into %s", poller.polls, settings.record)
    return status if complete else 1


def vllm_source(settings: Settings) -> VllmSource:
    """The server that the settings name. Raises `SettingsError` for an unreadable key file."""
    return VllmSource(
        settings.vllm_address,
        timeout_seconds=settings.vllm_timeout_seconds,
        api_key=settings.secret("vllm_api_key"),
        trust=_trust(settings.vllm_ca_file),
    )


def _trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    """The usual authorities, and one more where it is configured."""
    if ca_file is None:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unusable"
        raise SettingsError(f"SIDECAR_VLLM_CA_FILE: {ca_file}: {reason}") from error
    return context


def gpu_source(settings: Settings) -> GpuSource:
    """The GPUs that the settings select. Raises `SettingsError` for what is no selection."""
    if settings.visibility:
        selection, said = visible_selection(settings.visibility)
        if said is not None:
            log.info("%s", said)
        return NvmlSource(selection)
    try:
        return NvmlSource(parse_selection(settings.gpus, setting="--gpus (SIDECAR_GPUS)"))
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _recorder(settings: Settings) -> Recorder | None:
    if settings.record is None:
        return None
    name = settings.record.name.removesuffix(".gz").removesuffix(".jsonl")
    return Recorder(
        settings.record,
        Header(
            name=name,
            started_at=time.time(),
            period_seconds=settings.poll_period_seconds,
            vllm_args=tuple(shlex.split(settings.vllm_args or "")),
        ),
    )


def build_poller(
    settings: Settings,
    vllm: VllmSource,
    gpus: GpuSource,
    board: Board,
    recorder: Recorder | None = None,
    *,
    must_record: bool = False,
    log_follower: LogFollower | None = None,
) -> Poller:
    """A poller for these sources; the log is the configured one unless another is given."""
    if log_follower is None and settings.vllm_log is not None:
        log_follower = LogFollower(settings.vllm_log)
    return Poller(
        vllm,
        gpus,
        Pipeline(settings.thresholds, parse_arguments(shlex.split(settings.vllm_args or ""))),
        board,
        period_seconds=settings.poll_period_seconds,
        recorder=recorder,
        must_record=must_record,
        log_follower=log_follower,
        # Nothing of this machine stands in between what is simulated.
        read_host=read_host if isinstance(gpus, NvmlSource) else lambda: None,
    )


async def _close(vllm: VllmSource, gpus: GpuSource) -> None:
    await vllm.close()
    await gpus.close()


def _end_recording(recorder: Recorder | None) -> bool:
    """Whether all of it could be written; if not, that is told."""
    try:
        if recorder is not None:
            recorder.close()
    except RecordingError as error:
        log.error("%s", error)
        return False
    return True


async def _tell_scenario(simulation: Simulation) -> None:
    """Say on stderr what is being played, whenever it changes."""
    told = None
    while True:
        if simulation.scenario_now != told:
            told = simulation.scenario_now
            log.info("scenario: %s", told)
        await asyncio.sleep(0.5)


async def _tell_progress(poller: Poller) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        log.info("%d polls so far; the last: %s", poller.polls, _outcome(poller.last))


def _outcome(poll: Poll | None) -> str:
    if poll is None or poll.vllm is None:
        return "vLLM has not answered yet"
    return getattr(poll.vllm, "detail", None) or "vLLM answers"
