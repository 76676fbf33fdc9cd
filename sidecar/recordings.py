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

from sidecar.model import (
    Failure,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuReport,
    HostReading,
    Page,
    Poll,
)

FORMAT = "vllm-sidecar-recording"
VERSION = 1
LONGEST_LINE_CHARACTERS = 64 * 2**20


class RecordingError(Exception):
    """A recording that cannot be read or written; the message is one line with file and line."""


_UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a wrong shape raises."""


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
            except _UNUSABLE as error:
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
                started_at=_finite(header["started_at"]),
                period_seconds=_finite(header["period_seconds"]),
                vllm_version=_text(header.get("vllm_version")),
                vllm_args=tuple(map(str, header.get("vllm_args") or ())),
            ),
        )
    except _UNUSABLE as error:
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


def poll_to_json(poll: Poll) -> dict[str, Any]:
    """One line of a recording."""
    line: dict[str, Any] = {"at": poll.at}
    if poll.phase is not None:
        line["phase"] = poll.phase
    if poll.vllm_version is not None:
        line["vllm_version"] = poll.vllm_version
    if poll.max_model_len is not None:
        line["max_model_len"] = poll.max_model_len
    if isinstance(poll.vllm, Page):
        line["vllm"] = {"text": poll.vllm.text, "seconds": poll.vllm.seconds}
    elif poll.vllm is not None:
        line["vllm"] = {"error": poll.vllm.reason}
    if isinstance(poll.gpus, GpuReport):
        line["gpus"] = [_gpu_to_json(gpu) for gpu in poll.gpus.gpus]
    elif poll.gpus is not None:
        line["gpus_error"] = poll.gpus.reason
    if poll.host is not None:
        line["host"] = {
            "total": poll.host.memory_total_bytes,
            "available": poll.host.memory_available_bytes,
            "swap_total": poll.host.swap_total_bytes,
            "swap_free": poll.host.swap_free_bytes,
        }
    return line


def poll_from_json(line: Mapping[str, Any], vllm_version: str | None) -> Poll:
    """The reverse. `vllm_version` is the header's, for lines that do not name their own.

    Raises one of several errors of Python's own for what is not a poll.
    """
    answer = line["vllm"]
    vllm: Page | Failure
    if "error" in answer:
        vllm = Failure(str(answer["error"]))
    else:
        vllm = Page(str(answer["text"]), _finite(answer["seconds"]))
    gpus: GpuReport | Failure | None = None
    if "gpus_error" in line:
        gpus = Failure(str(line["gpus_error"]))
    elif line.get("gpus") is not None:
        gpus = GpuReport(tuple(_gpu_from_json(gpu) for gpu in line["gpus"]), seconds=0.0)
    return Poll(
        at=_finite(line["at"]),
        vllm=vllm,
        gpus=gpus,
        vllm_version=_text(line.get("vllm_version")) or vllm_version,
        max_model_len=_whole(line.get("max_model_len")),
        phase=_text(line.get("phase")),
        host=_host_from_json(line.get("host")),
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
        line["processes"] = [_process_to_json(process) for process in gpu.processes]
    if gpu.unified:
        line["unified"] = True
    if gpu.mig_instance is not None:
        line["mig_instance"] = gpu.mig_instance
    return line


def _process_to_json(process: GpuProcess) -> dict[str, Any]:
    line: dict[str, Any] = {"pid": process.pid, "used": process.used_bytes}
    return line if process.title is None else line | {"title": process.title}


def _gpu_from_json(line: Mapping[str, Any]) -> GpuReading:
    memory, utilization = line.get("memory"), line.get("utilization") or {}
    processes = line.get("processes")
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
        else tuple(
            GpuProcess(int(p["pid"]), _whole(p.get("used")), _text(p.get("title")))
            for p in processes
        ),
        error=_text(line.get("error")),
        unified=line.get("unified") is True,
        mig_instance=_text(line.get("mig_instance")),
    )


def _host_from_json(line: Mapping[str, Any] | None) -> HostReading | None:
    if line is None:
        return None
    return HostReading(
        memory_total_bytes=int(line["total"]),
        memory_available_bytes=int(line["available"]),
        swap_total_bytes=int(line["swap_total"]),
        swap_free_bytes=int(line["swap_free"]),
    )


def _finite(value: object) -> float:
    """JSON as Python reads it knows NaN and Infinity, which no time is."""
    number = float(value) if isinstance(value, (int, float)) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _share(percent: object) -> float | None:
    return float(percent) / 100.0 if isinstance(percent, (int, float)) else None
