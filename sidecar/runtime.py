"""Runs the poller and the web server side by side until a signal or until one of them dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from sidecar.addresses import reachable_address

log = logging.getLogger(__name__)

_GRACEFUL_SECONDS = 1


class ListenError(Exception):
    """The address cannot be listened on; the message is one line that names the flag."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: signals belong to the process, not to one task."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything starts, so that a busy port is one clear line. Raises ListenError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as unless_it_works:
            listener = unless_it_works.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
            unless_it_works.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ListenError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return listener


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The address to type into a browser on this machine."""
    host, port = listener.getsockname()[:2]
    return reachable_address(host, port, tls=tls)


@dataclass(frozen=True, slots=True)
class Site:
    """An application, the listener it is served on, and its TLS files where it has any."""

    application: FastAPI
    listener: socket.socket
    certificate: Path | None = None
    key: Path | None = None


def _server(site: Site) -> _Server:
    return _Server(
        uvicorn.Config(
            site.application,
            ssl_certfile=site.certificate,
            ssl_keyfile=site.key,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
            server_header=False,
        )
    )


async def run_together(
    work: list[tuple[str, Coroutine[None, None, None]]],
    sites: list[Site],
    *,
    seconds: float | None = None,
) -> int:
    """Run everything until SIGTERM or SIGINT (0), or until a part ends by itself (1).

    `seconds` bounds the whole, which then ends as by a signal.

    The parts are siblings: a sidecar without its poller would serve frozen values, one without
    its server would be deaf, so neither outlives the other.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    servers = [(_server(site), site.listener) for site in sites]
    tasks = [asyncio.create_task(part, name=name) for name, part in work]
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]), name="web server")
        for server, listener in servers
    ]
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({*tasks, *serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for server, _ in servers:
        server.should_exit = True
    for task in (*tasks, stopped):
        task.cancel()
    ended, _ = await asyncio.wait({*tasks, *serving, stopped}, timeout=_GRACEFUL_SECONDS + 0.5)
    failed = False
    for task in (*tasks, *serving):
        error = task.exception() if task in ended and not task.cancelled() else None
        if task in done or error is not None:
            log.error("%s ended: %s", task.get_name(), _one_line(error))
            log.debug("where it ended", exc_info=error)
            failed = True
    return 1 if failed else 0


def _one_line(error: BaseException | None) -> str:
    if error is None:
        return "without being asked to"
    return " ".join(f"{type(error).__name__}: {error}".split())
