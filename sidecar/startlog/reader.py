"""Reads a whole log, of any size and in pieces of any size, and tells its starts apart.

A log often holds several starts: a crash loop, a container that was restarted. The last one is
judged, the others are counted. What a start prints first comes in a fixed order (logo, version,
flags, engine); where that order begins again, so does a start.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import IO

from sidecar.startlog.envelopes import Envelope, open_envelope
from sidecar.startlog.identity import Marker, marker_of
from sidecar.startlog.lines import LogLine, lines_of
from sidecar.startlog.reading import StartReading
from sidecar.startlog.start import Start

# Longer lines are cut here: a megabyte of a chat template tells nothing about memory.
LONGEST_LINE_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_MOST_STARTS_KEPT = 20
_ORDER: dict[Marker, int] = {"art": 0, "version": 1, "arguments": 2, "engine": 3}


class LogError(Exception):
    """A log that cannot be read; the message is one line that says which and why."""


class LogReader:
    """Takes a log piece by piece. Memory is bounded; nothing in a log makes it raise.

    The result does not depend on where the pieces end. A last line without a newline counts once
    `finish` is called.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._cut_fragment: Envelope | None = None
        self._earlier: list[Start] = []
        self._reading = StartReading()
        self._markers: dict[Marker, LogLine] = {}
        self.start_count = 1
        self.line_count = 0

    @property
    def starts(self) -> tuple[Start, ...]:
        """The newest 20 starts, oldest first. There is always one, if only an empty one."""
        return (*self._earlier, self._reading.start)

    @property
    def last(self) -> Start:
        """The start to judge."""
        return self._reading.start

    def feed(self, chunk: bytes | str) -> None:
        """Takes the next piece of the log, which may end anywhere."""
        data = chunk.encode("utf-8", "replace") if isinstance(chunk, str) else chunk
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._keep(part)
            line = bytes(self._pending)
            self._pending.clear()
            self._read_raw(line)
        self._keep(rest)

    def finish(self) -> None:
        """Reads what stands after the last newline. More may be fed afterwards."""
        line = bytes(self._pending)
        self._pending.clear()
        if line:
            self._read_raw(line)
        if self._cut_fragment is not None:
            self._read_envelope(Envelope(""))

    def forget_partial_line(self) -> None:
        """Drops what stands after the last newline: its end will never come."""
        self._pending.clear()
        self._cut_fragment = None

    def _keep(self, part: bytes) -> None:
        room = LONGEST_LINE_BYTES - len(self._pending)
        if room > 0:
            self._pending += part[:room]

    def _read_raw(self, line: bytes) -> None:
        # UTF-16, as PowerShell writes it, turns into readable text where its zero bytes go.
        text = line.replace(b"\0", b"").decode("utf-8", "replace")
        if text and not text.isspace():
            self.line_count += 1
            self._read_envelope(open_envelope(text))

    def _read_envelope(self, envelope: Envelope) -> None:
        """Joins the pieces into which a container runtime cuts a long line (16 KiB)."""
        if self._cut_fragment is not None:
            first = self._cut_fragment
            joined = (first.text + envelope.text)[:LONGEST_LINE_BYTES]
            envelope = Envelope(
                joined, first.stamp, first.level, first.process, first.pid, envelope.complete
            )
        if not envelope.complete and len(envelope.text) < LONGEST_LINE_BYTES:
            self._cut_fragment = envelope
            return
        self._cut_fragment = None
        for line in lines_of(envelope):
            self._read_line(line)

    def _read_line(self, line: LogLine) -> None:
        marker = marker_of(line)
        if self._begins_anew(line, marker):
            self._earlier = [*self._earlier, self._reading.start][1 - _MOST_STARTS_KEPT :]
            self._reading = StartReading()
            self._markers = {}
            self.start_count += 1
        if marker is not None:
            self._markers.setdefault(marker, line)
        self._reading.read(line)

    def _begins_anew(self, line: LogLine, marker: Marker | None) -> bool:
        reading = self._reading
        if marker is None:
            # The lines around the logo name the new server's process before its version.
            return (
                line.process == "APIServer"
                and line.pid is not None
                and reading.reached_engine
                and reading.has_process_named("APIServer")
                and not reading.knows_process(line.pid)
            )
        if not self._markers:
            return reading.reached_engine
        if all(_ORDER[marker] > _ORDER[seen] for seen in self._markers):
            return reading.reached_engine
        return not self._is_sibling(line, marker)

    def _is_sibling(self, line: LogLine, marker: Marker) -> bool:
        """Whether a mark comes from another process of the same start (data parallelism)."""
        seen = self._markers.get(marker)
        if seen is None:
            return False
        if seen.pid is None or line.pid is None:
            # Up to 0.10.0 an engine's line may have no prefix; engines begin at the same time.
            return marker == "engine" and not self._reading.reached_engine
        if seen.pid == line.pid:
            return False
        if marker == "engine":
            return seen.process != line.process
        return not self._reading.reached_engine


def read_log(source: str | Path) -> LogReader:
    """Reads a file to its end, or standard input for `-`; gzip is unpacked on the way.

    Raises `LogError` where it cannot be read.
    """
    reader = LogReader()
    try:
        if str(source) == "-":
            _read_all(reader, sys.stdin.buffer)
        else:
            with Path(source).open("rb") as plain:
                packed = plain.peek(2)[:2] == b"\x1f\x8b"
                if packed:
                    with gzip.open(plain) as unpacked:
                        _read_all(reader, unpacked)
                else:
                    _read_all(reader, plain)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LogError(f"cannot read the log {source}: {reason}") from error
    reader.finish()
    return reader


def _read_all(reader: LogReader, stream: IO[bytes] | gzip.GzipFile) -> None:
    while chunk := stream.read(_CHUNK_BYTES):
        reader.feed(chunk)
