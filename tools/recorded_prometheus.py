"""A Prometheus that is filled with the recordings, for whoever wants to ask it something.

Each recording is an `instance` of its own and all begin at the same moment. Two are there a second
time, in slow motion, for what needs many minutes; and this machine is there with its own memory,
which the recordings do not hold.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from recorded_series import JOB, NAMES, SCRAPE_SECONDS, open_metrics, scrapes, written

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from e2e.servers import HOST, free_port, running

from sidecar.sources.host import read_host

SLOW_MOTION = {"graphs-32-4-0": 30.0, "preempt-storm": 8.0}
THIS_MACHINE = "this-machine"
LONGEST_SECONDS = 160
HOUR = 3600


@dataclass(frozen=True, slots=True)
class Recorded:
    """A running Prometheus, and the time at which every recording in it begins."""

    url: str
    start: int

    def range(
        self, expression: str, seconds: float, *, step: int = SCRAPE_SECONDS, first: float = 0.0
    ) -> list[dict[str, Any]]:
        """The series that a range query answers from the start (plus `first`) on."""
        begin, end = str(self.start + first), str(self.start + first + seconds)
        return self._ask("query_range", query=expression, start=begin, end=end, step=str(step))

    def instant(self, expression: str, second: float) -> list[dict[str, Any]]:
        """The series that an instant query answers, in its order, in the form of a range."""
        found = self._ask("query", query=expression, time=str(self.start + second))
        return [{"metric": series["metric"], "values": [series["value"]]} for series in found]

    def _ask(self, kind: str, **data: str) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.url}/api/v1/{kind}", data=data, timeout=60, trust_env=False)
        body = answer.json()
        if body["status"] != "success":
            raise ValueError(f"{data['query']}: {body.get('error')}")
        found: list[dict[str, Any]] = body["data"]["result"]
        return found


@contextlib.contextmanager
def recorded_prometheus(
    folder: Path,
    more: Callable[[int], Iterable[str]] | None = None,
    *,
    every: int = SCRAPE_SECONDS,
) -> Iterator[Recorded]:
    """Fill a data folder from the recordings and run Prometheus on it until the block ends.

    `more` may add lines of its own, given the time at which everything begins; `every` is the
    scrape interval of what is not in slow motion.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start = (int(time.time()) - 3 * HOUR) // 60 * 60
    text, data = folder / "recordings.om", folder / "data"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(more(start) if more is not None else ())
        file.writelines(_lines(start, every))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)],
        check=True,
        capture_output=True,
    )
    configuration = folder / "prometheus.yml"
    configuration.write_text("global: {}\n", encoding="utf-8")
    port = free_port()
    command = ["prometheus", "--config.file", str(configuration), "--storage.tsdb.path", str(data)]
    # Shorter than usual: backfilled series have no mark where they end.
    command += ["--query.lookback-delta", f"{2 * every}s", "--web.listen-address", f"{HOST}:{port}"]
    with running(
        "prometheus", command, port=port, folder=folder, ready_path="/-/ready", ready_seconds=30
    ) as server:
        yield Recorded(server.url, start)


def _lines(start: int, every: int) -> Iterator[str]:
    yield from _host_lines(start)
    for name, slower in SLOW_MOTION.items():
        yield from open_metrics(scrapes(name, slower=slower), f"{name}-slow", start)
    for name in NAMES:
        yield from open_metrics(scrapes(name, every=every), name, start)
    yield "# EOF\n"


def _host_lines(start: int) -> Iterator[str]:
    """What a sidecar on this machine would say of its memory, read once."""
    host = read_host()
    if host is None:
        return
    values = {
        "total_bytes": host.memory_total_bytes,
        "available_bytes": host.memory_available_bytes,
    }
    names = {f"vllm_sidecar_host_memory_{name}": value for name, value in values.items()}
    names["vllm_sidecar_host_swap_used_bytes"] = host.swap_total_bytes - host.swap_free_bytes
    for name, value in names.items():
        series = written((name, (("job", JOB), ("instance", THIS_MACHINE))))
        for at in range(0, LONGEST_SECONDS, SCRAPE_SECONDS):
            yield f"{series} {float(value)!r} {start + at}\n"
