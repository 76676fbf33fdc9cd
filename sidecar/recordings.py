"""Recordings: every poll of a server, kept as it came, so that it can be looked at again.

Format version 1: gzipped JSON lines, first a header, then one object a poll. What a page said
is stored as text, so a later sidecar can read more out of it than the one that recorded it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sidecar.model import Poll
from sidecar.poll_json import UNUSABLE, finite, poll_from_json, poll_to_json, text_or_none

FORMAT = "vllm-sidecar-recording"
VERSION = 1
LONGEST_LINE_CHARACTERS = 64 * 2**20


class RecordingError(Exception):
    """A recording that cannot be read or written; the message is one line with file and line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. `vllm_args` are the flags of the server, where whoever recorded knew."""

    name: str
    started_at: float
    period_seconds: float
    vllm_version: str | None = None
    vllm_args: tuple[str, ...] = ()


class Recorder:
    """Writes polls to a file, flushed each ten seconds so that a crash loses little.

    A file that exists is never overwritten. Raises `RecordingError` when it cannot be made, and
    from `add` or `close`, once, when it cannot be continued: what is on disk by then stays.
    """

    _FLUSH_SECONDS = 10.0

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        try:
            self._file: TextIO = gzip.open(  # noqa: SIM115 - closed by close()
                path, "xt", encoding="utf-8", newline="\n"
            )
        except FileExistsError as error:
            raise RecordingError(f"{path}: already exists; choose another file") from error
        except OSError as error:
            raise RecordingError(f"{path}: cannot be written: {error.strerror}") from error
        self._flushed_at = header.started_at
        self._put(
            {
                "format": FORMAT,
                "version": VERSION,
                "name": header.name,
                "started_at": header.started_at,
                "period_seconds": header.period_seconds,
                "vllm_version": header.vllm_version,
                "vllm_args": list(header.vllm_args),
                "load": [],
            }
        )
        self._do(self._file.flush)

    def add(self, poll: Poll) -> None:
        """Append one poll; a poll without any news of vLLM is left out."""
        if poll.vllm is None:
            return
        self._put(poll_to_json(poll))
        if poll.at - self._flushed_at >= self._FLUSH_SECONDS:
            self._flushed_at = poll.at
            self._do(self._file.flush)

    def close(self) -> None:
        """Write the rest. May be called again, also after a failure."""
        self._do(self._file.close)

    def _put(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        self._do(lambda: self._file.write(text))

    def _do(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            with contextlib.suppress(OSError):  # what is still buffered cannot be written, too
                self._file.close()
            raise RecordingError(f"{self.path}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording opened for reading: its header, and its polls in order, read as they come."""

    path: Path
    header: Header

    def polls(self) -> Iterator[Poll]:
        """All polls. Raises `RecordingError` at the first line that cannot be understood."""
        lines = _lines(self.path)
        next(lines)
        previous = -math.inf
        for number, line in lines:
            try:
                poll = poll_from_json(line, self.header.vllm_version)
                if poll.at < previous:
                    raise ValueError("it is older than the poll before")
            except UNUSABLE as error:
                raise RecordingError(
                    f"{self.path}: line {number}: not a poll ({type(error).__name__}: {error})"
                ) from error
            previous = poll.at
            yield poll


def open_recording(path: Path) -> Recording:
    """Read and check the header. Raises `RecordingError` with one line for people."""
    first = next(_lines(path), None)
    if first is None:
        raise RecordingError(f"{path}: is empty")
    header = first[1]
    if header.get("format") != FORMAT:
        raise RecordingError(f"{path}: line 1: not a recording of vllm-sidecar")
    if header.get("version") != VERSION:
        found = header.get("version")
        raise RecordingError(f"{path}: line 1: format version {found!r}; only {VERSION} is read")
    try:
        return Recording(
            path,
            Header(
                name=str(header.get("name") or path.name),
                started_at=finite(header["started_at"]),
                period_seconds=finite(header["period_seconds"]),
                vllm_version=text_or_none(header.get("vllm_version")),
                vllm_args=tuple(map(str, header.get("vllm_args") or ())),
            ),
        )
    except UNUSABLE as error:
        raise RecordingError(f"{path}: line 1: header without usable {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            while line := file.readline(LONGEST_LINE_CHARACTERS):
                number += 1
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise RecordingError(f"{path}: line {number}: not a JSON object")
                yield number, value
    except json.JSONDecodeError as error:
        raise RecordingError(f"{path}: line {number}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise RecordingError(f"{path}: line {number}: not JSON that can be read") from error
    except FileNotFoundError as error:
        raise RecordingError(f"{path}: no such file") from error
    except gzip.BadGzipFile as error:
        raise RecordingError(f"{path}: not gzip, so not a recording of vllm-sidecar") from error
    except EOFError as error:
        raise RecordingError(
            f"{path}: ends in the middle, after line {number}; the writer was interrupted"
        ) from error
    except (OSError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordingError(f"{path}: after line {number}: cannot be read: {reason}") from error
