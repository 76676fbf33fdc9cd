"""Recordings: every poll of a server, kept as it came, so that it can be looked at again.

Format version 1: gzipped JSON lines, first a header, then one object a poll. What a page said
is stored as text, so a later sidecar can read more out of it than the one that recorded it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sidecar.model import (
    Failure,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuReport,
    Page,
    Poll,
)

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

    A file that exists is never overwritten. Raises `RecordingError` when it cannot be made.
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
        self._write(
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

    def add(self, poll: Poll) -> None:
        """Append one poll; a poll without any news of vLLM is left out. Raises as above."""
        if poll.vllm is None:
            return
        self._write(poll_to_json(poll))
        if poll.at - self._flushed_at >= self._FLUSH_SECONDS:
            self._flushed_at = poll.at
            self._file.flush()

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise RecordingError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        except OSError as error:
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
        for number, line in lines:
            try:
                yield poll_from_json(line, self.header.vllm_version)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise RecordingError(
                    f"{self.path}: line {number}: not a poll ({type(error).__name__}: {error})"
                ) from error


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
                started_at=float(header["started_at"]),
                period_seconds=float(header["period_seconds"]),
                vllm_version=header.get("vllm_version"),
                vllm_args=tuple(map(str, header.get("vllm_args") or ())),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
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


def poll_to_json(poll: Poll) -> dict[str, Any]:
    """One line of a recording."""
    line: dict[str, Any] = {"at": poll.at}
    if poll.phase is not None:
        line["phase"] = poll.phase
    if isinstance(poll.vllm, Page):
        line["vllm"] = {"text": poll.vllm.text, "seconds": poll.vllm.seconds}
    elif poll.vllm is not None:
        line["vllm"] = {"error": poll.vllm.reason}
    if isinstance(poll.gpus, GpuReport):
        line["gpus"] = [_gpu_to_json(gpu) for gpu in poll.gpus.gpus]
    elif poll.gpus is not None:
        line["gpus_error"] = poll.gpus.reason
    return line


def poll_from_json(line: Mapping[str, Any], vllm_version: str | None) -> Poll:
    """The reverse. Raises KeyError, TypeError or ValueError for what is not a poll."""
    answer = line["vllm"]
    vllm: Page | Failure
    if "error" in answer:
        vllm = Failure(str(answer["error"]))
    else:
        vllm = Page(str(answer["text"]), float(answer["seconds"]))
    gpus: GpuReport | Failure | None = None
    if "gpus_error" in line:
        gpus = Failure(str(line["gpus_error"]))
    elif line.get("gpus") is not None:
        gpus = GpuReport(tuple(_gpu_from_json(gpu) for gpu in line["gpus"]), seconds=0.0)
    phase = line.get("phase")
    return Poll(
        at=float(line["at"]),
        vllm=vllm,
        gpus=gpus,
        vllm_version=vllm_version,
        phase=None if phase is None else str(phase),
    )


def _gpu_to_json(gpu: GpuReading) -> dict[str, Any]:
    line: dict[str, Any] = {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name}
    if gpu.error is not None:
        line["error"] = gpu.error
    if gpu.memory is not None:
        line["memory"] = {
            "total": gpu.memory.total_bytes,
            "reserved": gpu.memory.reserved_bytes,
            "used": gpu.memory.used_bytes,
            "free": gpu.memory.free_bytes,
        }
    if gpu.utilization_ratio is not None:
        bandwidth = gpu.memory_bandwidth_ratio
        line["utilization"] = {
            "gpu": round(gpu.utilization_ratio * 100),
            "memory": None if bandwidth is None else round(bandwidth * 100),
        }
    if gpu.processes is not None:
        line["processes"] = [{"pid": p.pid, "used": p.used_bytes} for p in gpu.processes]
    return line


def _gpu_from_json(line: Mapping[str, Any]) -> GpuReading:
    memory, utilization = line.get("memory"), line.get("utilization") or {}
    processes, error = line.get("processes"), line.get("error")
    return GpuReading(
        index=int(line["index"]),
        uuid=str(line["uuid"]),
        name=str(line.get("name", "")),
        memory=None
        if memory is None
        else GpuMemory(
            total_bytes=int(memory["total"]),
            used_bytes=int(memory["used"]),
            free_bytes=int(memory["free"]),
            reserved_bytes=_whole(memory.get("reserved")),
        ),
        utilization_ratio=_share(utilization.get("gpu")),
        memory_bandwidth_ratio=_share(utilization.get("memory")),
        processes=None
        if processes is None
        else tuple(GpuProcess(int(p["pid"]), _whole(p.get("used"))) for p in processes),
        error=None if error is None else str(error),
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _share(percent: object) -> float | None:
    return float(percent) / 100.0 if isinstance(percent, (int, float)) else None
