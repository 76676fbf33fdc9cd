"""What a recording keeps of the host, of titles, of parts and of unified memory."""

from __future__ import annotations

import json

import pytest
from synthetic import GIB, gpu

from sidecar.model import Failure, GpuProcess, GpuReading, GpuReport, HostReading, Poll
from sidecar.poll_json import poll_from_json, poll_to_json

HOST = HostReading(128 * GIB, 5 * GIB, 16 * GIB, 10 * GIB)
PLAIN = gpu(5, {7: None})
READINGS = (
    PLAIN,
    GpuReading(1, "MIG-1", "part", PLAIN.memory, mig_instance="gi 3"),
    GpuReading(
        2, "GPU-2", "GB10", PLAIN.memory, processes=(GpuProcess(1, 2, "vllm serve"),), unified=True
    ),
)


def test_everything_comes_back() -> None:
    poll = Poll(5.0, Failure("refused"), GpuReport(READINGS, 0.0), host=HOST)
    line = json.loads(json.dumps(poll_to_json(poll)))
    assert poll_from_json(line, None) == poll
    assert line["host"] == {
        "total": 128 * GIB,
        "available": 5 * GIB,
        "swap_total": 16 * GIB,
        "swap_free": 10 * GIB,
    }


def test_what_is_not_there_adds_nothing_to_the_file() -> None:
    line = poll_to_json(Poll(5.0, Failure("refused"), GpuReport((PLAIN,), 0.0)))
    assert set(line) == {"at", "vllm", "gpus"}
    assert set(line["gpus"][0]) == {"index", "uuid", "name", "memory", "processes"}
    assert line["gpus"][0]["processes"] == [{"pid": 7, "used": None}]
    assert poll_from_json(line, None).host is None


@pytest.mark.parametrize("host", [{}, {"total": 1}, "x", 5, {"total": None}])
def test_a_host_that_is_none_is_refused(host: object) -> None:
    line = {"at": 1.0, "vllm": {"error": "refused"}, "host": host}
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        poll_from_json(line, None)
