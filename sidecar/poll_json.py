"""One poll as a line of a recording, and back. The recording's format version covers it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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

UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a wrong shape raises."""


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

    Raises one of `UNUSABLE` for what is not a poll.
    """
    answer = line["vllm"]
    vllm: Page | Failure
    if "error" in answer:
        vllm = Failure(str(answer["error"]))
    else:
        vllm = Page(str(answer["text"]), finite(answer["seconds"]))
    gpus: GpuReport | Failure | None = None
    if "gpus_error" in line:
        gpus = Failure(str(line["gpus_error"]))
    elif line.get("gpus") is not None:
        gpus = GpuReport(tuple(_gpu_from_json(gpu) for gpu in line["gpus"]), seconds=0.0)
    return Poll(
        at=finite(line["at"]),
        vllm=vllm,
        gpus=gpus,
        vllm_version=text_or_none(line.get("vllm_version")) or vllm_version,
        max_model_len=_whole(line.get("max_model_len")),
        phase=text_or_none(line.get("phase")),
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
            GpuProcess(int(p["pid"]), _whole(p.get("used")), text_or_none(p.get("title")))
            for p in processes
        ),
        error=text_or_none(line.get("error")),
        unified=line.get("unified") is True,
        mig_instance=text_or_none(line.get("mig_instance")),
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


def finite(value: object) -> float:
    """JSON as Python reads it knows NaN and Infinity, which no time is."""
    number = float(value) if isinstance(value, (int, float)) else math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _share(percent: object) -> float | None:
    return float(percent) / 100.0 if isinstance(percent, (int, float)) else None
