"""Runs a server and keeps what it prints in a file of bounded size, for a neighbour to read.

    python3 keep_log.py FILE COMMAND [ARGUMENT...]

The command's output goes on to this process's own output, signals go on to the command, and its
exit status becomes this one's: to whoever started it, the command could as well run by itself.

The file holds what explains a server: how it started and what it said last. When it is full, the
middle is left out. Earlier starts are kept while there is room, since the reason of a crash stands
at the end of the start before.

A shell with `tee` would be shorter, but its file grows without end, and the lines that tell why the
server died are lost when the container ends before `tee` has written them.

Only the standard library: it runs with the Python of the server's image.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_BYTES = 16 * 1024 * 1024
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Processes that the command leaves behind may hold its output open; wait no longer than this.
LAST_WORDS_SECONDS = 5.0


class BoundedLog:
    """An append-only file that never exceeds a size. Raises `OSError` when it cannot be written."""

    def __init__(self, path: Path, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._share = limit // 4
        earlier = _last_lines(path.read_bytes() if path.exists() else b"", self._share)
        if earlier and not earlier.endswith(b"\n"):
            earlier += b"\n"  # the process before this one was cut off in the middle of a line
        self._replace(earlier)
        self._start = len(earlier)  # where the output of this start begins
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self._limit:
            self._leave_out_the_middle()
        self._file.write(data[-self._share :])

    def close(self) -> None:
        self._file.close()

    def _leave_out_the_middle(self) -> None:
        content = self._path.read_bytes()[self._start :]
        first = _first_lines(content, self._share)
        last = _last_lines(content[len(first) :], self._share)
        missing = len(content) - len(first) - len(last)
        note = f"... {missing} bytes of output are left out here ...\n".encode()
        self._file.close()
        self._replace(first + note + last)
        self._start = 0
        self._file = self._path.open("ab", buffering=0)

    def _replace(self, content: bytes) -> None:
        # A reader sees the old file or the new one, never half of it.
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_bytes(content)
        fresh.replace(self._path)


def _first_lines(content: bytes, size: int) -> bytes:
    return content[: content.rfind(b"\n", 0, size) + 1]


def _last_lines(content: bytes, size: int) -> bytes:
    if len(content) <= size:
        return content
    newest = content[-size:]
    return newest[newest.find(b"\n") + 1 :]


def run(path: Path, command: list[str]) -> int:
    """Runs the command to its end and returns its exit status, as a shell would tell it."""
    output, writing_end = os.pipe()
    child = subprocess.Popen(command, stdout=writing_end, stderr=writing_end)  # noqa: S603
    os.close(writing_end)
    for number in FORWARDED_SIGNALS:
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    log = _open(path)
    patience_ends: float | None = None
    while True:
        readable, _, _ = select.select([output], [], [], 0.5)
        chunk = os.read(output, 65536) if readable else b""
        if readable and not chunk:
            break
        _pass_on(chunk)
        log = _keep(log, chunk)
        if child.poll() is not None:
            patience_ends = patience_ends or time.monotonic() + LAST_WORDS_SECONDS
            if not readable or time.monotonic() > patience_ends:
                break
    if log is not None:
        log.close()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _open(path: Path) -> BoundedLog | None:
    try:
        return BoundedLog(path)
    except OSError as error:
        _complain(error)
        return None


def _keep(log: BoundedLog | None, chunk: bytes) -> BoundedLog | None:
    """Writes to the log. A full disk costs the log, never the server: then there is none."""
    try:
        if log is not None:
            log.write(chunk)
        return log
    except OSError as error:
        _complain(error)
        return None


def _complain(error: OSError) -> None:
    _pass_on(f"keep_log: the output is no longer kept: {error}\n".encode())


def _pass_on(chunk: bytes) -> None:
    try:
        while chunk:
            chunk = chunk[os.write(sys.stdout.fileno(), chunk) :]
    except OSError:
        return  # nobody listens any more; the server goes on


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: keep_log.py FILE COMMAND [ARGUMENT...]")
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
