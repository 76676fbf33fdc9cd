"""The command as a user runs it: in this process where it ends by itself, else as its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from typer.testing import CliRunner

from sidecar.cli import application
from sidecar.settings import PREFIX

_ADDRESS = re.compile(r" at (https?://[^ /]+)(/metrics)?$")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended, and what it said where."""

    status: int
    stdout: str
    stderr: str


def invoke(*arguments: str, **environment: str) -> Outcome:
    """Run it here. Anything but an orderly exit is raised, as it would be a traceback."""
    with _logging_as_before():
        result = CliRunner().invoke(application, arguments, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def refuse(*arguments: str, **environment: str) -> str:
    """Run what must be refused: status 2, one line on stderr, nothing on stdout."""
    outcome = invoke(*arguments, **environment)
    assert outcome.status == 2, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("vllm-sidecar: ")
    assert outcome.stderr.count("\n") == 1
    return outcome.stderr.removeprefix("vllm-sidecar: ").strip()


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    """The command sets logging up for its process, which here is that of the tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for noisy in ("httpx", "httpcore", "uvicorn", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.NOTSET)


def clean_environment(**more: str) -> dict[str, str]:
    """That of the tests, without what would change how the command behaves."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name != "PYTHONUNBUFFERED"
    }
    return {**kept, "PYTHONWARNINGS": "default", **more}


@dataclass
class Running:
    """A command that keeps running, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, text: str, seconds: float = 20.0) -> str:
        """The first line on stderr that holds the text."""
        with self._news:
            found = self._news.wait_for(lambda: self._first(text) is not None, seconds)
        assert found, f"{text!r} was not said; but: {self.lines}"
        return self._first(text) or ""

    def address(self) -> str:
        """Where it says that it listens."""
        found = _ADDRESS.search(self.wait_for("://127.0.0.1:"))
        assert found
        return found[1]

    def end(self, number: int, within: float = 2.0) -> int:
        """Send a signal; the exit status, if it comes in time."""
        started = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(10)
        assert time.monotonic() - started < within
        return status

    def _first(self, text: str) -> str | None:
        return next((line for line in self.lines if text in line), None)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()


@contextlib.contextmanager
def running(
    *arguments: str, code: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start it as its own process; `code` runs it instead of `python -m sidecar`."""
    start = ("-c", code) if code else ("-m", "sidecar")
    process = subprocess.Popen(
        [sys.executable, *start, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**(environment or {})),
    )
    command = Running(process)
    listener = threading.Thread(target=command._listen)
    listener.start()
    try:
        yield command
    finally:
        process.kill()
        process.wait()
        listener.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    assert not [line for line in command.lines if "Traceback" in line or "Warning" in line]
