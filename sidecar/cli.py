"""The command `vllm-sidecar`. Imports of a command's work stay inside it, so `--help` is quick."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sidecar import __version__

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sidecar.diagnosis import Report
    from sidecar.settings import Settings

application = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "Watches a vLLM server and its GPUs, and shows where the memory goes.\n\n"
        "Start with `vllm-sidecar demo`, which needs neither. Next to a real server: "
        "`vllm-sidecar run --vllm-url http://127.0.0.1:8000`. Every flag of `run` is also an "
        "environment variable, SIDECAR_ and its name in capitals."
    ),
)

Url = Annotated[
    str | None,
    typer.Option("--vllm-url", help="The vLLM server to watch [http://127.0.0.1:8000]."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on [127.0.0.1].")]
Port = Annotated[
    int | None, typer.Option("--port", help="Port to listen on; 0 picks a free one [9130].")
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", help="GPUs to watch: all, none, or indices and UUIDs by commas [all]."),
]
Period = Annotated[
    float | None,
    typer.Option("--poll-period-seconds", help="Seconds between two polls, 0.1 to 60 [1]."),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", help="debug, info, warning or error [info]."),
]


def _fail(message: object, status: int = 2) -> NoReturn:
    """One line that says what, where and what to do; never a traceback."""
    typer.echo(f"vllm-sidecar: {message}", err=True)
    raise typer.Exit(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vllm-sidecar {__version__}")
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the release."
        ),
    ] = False,
) -> None:
    pass


@application.command()
def run(
    vllm_url: Url = None,
    host: Host = None,
    port: Port = None,
    gpus: Gpus = None,
    poll_period_seconds: Period = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Also record every poll into this file.")
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Watch a vLLM server until stopped: the service.

    Serves /metrics for Prometheus, a page at / and JSON at /api/v1/snapshot. vLLM may be down
    or still starting; the sidecar waits for it. A key for vLLM is read from
    SIDECAR_VLLM_API_KEY_FILE or SIDECAR_VLLM_API_KEY, never from a flag.
    """
    settings = _settings(
        vllm_url=vllm_url,
        host=host,
        port=port,
        gpus=gpus,
        poll_period_seconds=poll_period_seconds,
        record=record,
        log_level=log_level,
    )
    from sidecar.service import run_service

    _exit_with(run_service(settings))


@application.command()
def demo(
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            help="healthy, preemption-storm, over-reserved or drop-32-4; "
            "without it all four in turn, a minute each.",
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    simulator_host: Annotated[
        str, typer.Option("--simulator-host", help="Address the simulated vLLM listens on.")
    ] = "127.0.0.1",
    simulator_port: Annotated[
        int,
        typer.Option("--simulator-port", min=0, max=65535, help="Its port; 0 picks a free one."),
    ] = 0,
    log_level: LogLevel = None,
) -> None:
    """Run the whole sidecar on a simulated vLLM and GPU, so nothing else is needed.

    The simulated server speaks vLLM's own /metrics over HTTP; everything after that is the real
    thing. Ctrl-C ends it.
    """
    settings = _settings(host=host, port=port, log_level=log_level)
    from sidecar.service import run_demo
    from sidecar.simulator import Simulation

    try:
        simulation = Simulation(scenario)
    except ValueError as error:
        _fail(f"--scenario: {error}")
    _exit_with(run_demo(settings, simulation, simulator_host, simulator_port))


@application.command()
def record(
    out: Annotated[Path, typer.Option("--out", help="File to write (gzipped JSON lines).")],
    vllm_url: Url = None,
    gpus: Gpus = None,
    poll_period_seconds: Period = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1, help="Stop after this long.")
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Record a vLLM server and its GPUs, to look at later with `replay`.

    The file holds vLLM's pages as they came and what NVML said, nothing of any request. An
    existing file is never overwritten. Stop with Ctrl-C; what was recorded stays.
    """
    settings = _settings(
        vllm_url=vllm_url,
        gpus=gpus,
        poll_period_seconds=poll_period_seconds,
        record=out,
        log_level=log_level,
    )
    from sidecar.service import run_recorder

    _exit_with(run_recorder(settings, seconds))


@application.command()
def replay(
    recording: Annotated[Path, typer.Argument(help="A file made by `record` or `run --record`.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line a poll instead of a summary.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it as if it happened now.")] = False,
    speed: Annotated[
        str | None,
        typer.Option("--speed", help="Times faster than it happened, or max [1 served, else max]."),
    ] = None,
    host: Host = None,
    port: Port = None,
) -> None:
    """Play a recording through the same indicators as a live server."""
    settings = _settings(host=host, port=port)
    from sidecar.recordings import RecordingError, open_recording
    from sidecar.replay import parse_speed, print_summary, run_replay_server, write_json_lines

    try:
        factor = parse_speed(speed, serve=serve)
    except ValueError as error:
        _fail(f"--speed: {error}")
    try:
        opened = open_recording(recording)
        if serve:
            _exit_with(run_replay_server(settings, opened, factor))
        play = write_json_lines if as_json else print_summary
        try:
            play(opened, settings.thresholds, factor, sys.stdout)
        finally:
            sys.stdout.flush()
    except RecordingError as error:
        _fail(error)
    except BrokenPipeError:
        # `head` has seen enough; what is still buffered must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@application.command()
def diagnose(
    url: Annotated[
        str | None,
        typer.Option("--url", help="The running vLLM server to look at [the one configured]."),
    ] = None,
    from_file: Annotated[
        list[Path] | None,
        typer.Option("--from-file", help="A saved /metrics page instead; give it twice for rates."),
    ] = None,
    recording: Annotated[
        Path | None, typer.Option("--recording", help="A recording instead.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option("--log", help="vLLM's own log, which tells much more.")
    ] = None,
    interval_seconds: Annotated[
        float | None,
        typer.Option(
            "--interval-seconds",
            min=0.1,
            help="Seconds between two saved pages [as their files' times say].",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and say so whenever something changes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    gpus: Gpus = None,
) -> None:
    """Say what is wrong, and which launch flag to change next and why.

    Looks at a running server for 20 seconds, or at saved pages, or at a recording. One page tells
    what is true at that moment, two tell rates. Exit status 0 if nothing is wrong, 1 if something
    is, 3 if nothing could be judged because no page came.
    """
    settings = _settings(vllm_url=url, gpus=gpus)
    from sidecar.diagnosis import (
        DiagnosisError,
        diagnose_pages,
        diagnose_recording,
        page_times,
        read_page_file,
    )
    from sidecar.recordings import RecordingError, open_recording
    from sidecar.startlog import LogError, read_log

    if from_file and recording is not None:
        _fail("--from-file and --recording: give one of them")
    try:
        if not from_file and recording is None:
            from sidecar.live_diagnosis import run_live_diagnosis

            _exit_with(run_live_diagnosis(settings, log_file, as_json=as_json, watch=watch))
        start = read_log(log_file).last if log_file is not None else None
        if recording is not None:
            report = diagnose_recording(open_recording(recording), settings.thresholds, start)
        else:
            paths = from_file or []
            texts = [read_page_file(path) for path in paths]
            times = page_times(paths, interval_seconds)
            pages = list(zip(times, texts, strict=True))
            report = diagnose_pages(pages, settings.thresholds, start)
    except (DiagnosisError, LogError, RecordingError) as error:
        _fail(error)
    _print_report(report, as_json=as_json)


@application.command()
def explain(
    log_file: Annotated[str, typer.Argument(help="vLLM's log; - reads standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain a log of vLLM: how it started, or why it did not, or of what it died.

    Reads the wording of every release since 0.2.3. Of several starts the last is judged. Exit
    status 1 if that one failed, 3 if the log is too short to tell.
    """
    from sidecar.diagnosis import explain as explain_start
    from sidecar.startlog import LogError, read_log

    settings = _settings()
    try:
        reader = read_log(log_file)
    except LogError as error:
        _fail(error)
    report = explain_start(reader.last, settings.thresholds, time.time())
    if reader.start_count > 1 and not as_json:
        typer.echo(f"The log holds {reader.start_count} starts; the last one is judged.\n")
    _print_report(report, as_json=as_json, starts=reader.start_count)


def _print_report(report: Report, *, as_json: bool, starts: int | None = None) -> NoReturn:
    """Print a report and end with the status that it calls for."""
    if as_json:
        import json

        from sidecar.verdict_json import report_json

        typer.echo(json.dumps(report_json(report, starts), allow_nan=False, indent=2))
    else:
        from sidecar.terminal import print_report

        print_report(report, sys.stdout)
    if report.damage is not None:
        _fail(f"{report.damage}; what precedes it was judged")
    raise typer.Exit(report.exit_status)


@application.command("check-rules")
def check_rules(
    files: Annotated[
        list[Path], typer.Argument(help="Prometheus rule files or Grafana dashboards (JSON).")
    ],
    vllm_version: Annotated[
        str | None,
        typer.Option("--vllm-version", help="The release that your servers run [the newest]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check other people's Prometheus rules and Grafana dashboards that use vLLM's metrics.

    Names that do not exist in a release, percent against ratio, summed ratios, alarms on a full GPU
    or on idleness, and more, each with the corrected expression. Exit status 1 on errors.
    """
    from sidecar.rule_check import run as check

    raise typer.Exit(check(files, vllm_version, as_json, sys.stdout))


@application.command()
def webhook(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")
    ] = 9131,
) -> None:
    """Receive Alertmanager's messages and print them, a line an alert.

    The default receiver of the compose stack: alerts are seen without any account anywhere.
    """
    _log_to_stderr("info")
    from sidecar.runtime import ListenError, Site, address_of, listen, run_together
    from sidecar.webhook import build_webhook_application

    def write(line: str) -> None:
        typer.echo(line)
        sys.stdout.flush()

    try:
        listener = listen(host, port)
    except ListenError as error:
        _fail(error)
    logging.getLogger(__name__).info("waiting for alerts at %s", address_of(listener))
    _exit_with(run_together([], [Site(build_webhook_application(write), listener)]))


@application.command()
def healthcheck(
    url: Annotated[
        str | None,
        typer.Option("--url", help="The sidecar to ask [the one configured here]."),
    ] = None,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout-seconds", min=0.1, help="How long to wait.")
    ] = 2.0,
) -> None:
    """Ask a running sidecar whether it is alive; for containers. Exit 0 if so, else 1."""
    import httpx

    if url is None:
        from sidecar.addresses import reachable_address

        settings = _settings()
        url = reachable_address(settings.host, settings.port, tls=settings.speaks_tls)
    try:
        # The certificate names the address that others use, not loopback; what is asked for is
        # no secret, and nothing is sent.
        answer = httpx.get(
            f"{url.rstrip('/')}/-/healthy",
            timeout=timeout_seconds,
            trust_env=False,
            verify=False,  # noqa: S501
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        _fail(f"no sidecar answers at {url}: {type(error).__name__}", 1)
    if answer.status_code != 200:
        _fail(f"{url} answers {answer.status_code}", 1)
    typer.echo("healthy")


def _settings(**given: object) -> Settings:
    from sidecar.settings import SettingsError, load_settings

    try:
        settings = load_settings(**given)
    except SettingsError as error:
        _fail(error)
    _log_to_stderr(settings.log_level)
    return settings


def _log_to_stderr(level: str) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)sZ %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )
    for noisy in ("httpx", "httpcore", "uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _exit_with(work: Coroutine[object, None, int]) -> NoReturn:
    """Run a command's coroutine; its result is the exit status.

    The process then ends at once: a name that is being looked up leaves a thread in the system's
    resolver for many seconds, for which Python would wait. All else was closed by then.
    """
    from sidecar.recordings import RecordingError
    from sidecar.runtime import ListenError
    from sidecar.settings import SettingsError

    with asyncio.Runner() as runner:
        try:
            status = runner.run(work)
        except (ListenError, RecordingError, SettingsError) as error:
            _fail(error)
        except KeyboardInterrupt:
            status = 0
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
