"""The last hour as the indicators see it. The only place that remembers between polls."""

from __future__ import annotations

from sidecar.engine_history import EngineHistory
from sidecar.memory_history import MemoryHistory
from sidecar.model import Failure, GpuReport, HostReading, ServerReading, Snapshot
from sidecar.settings import Thresholds
from sidecar.sources.releases import Release, parse_release
from sidecar.startlog.start import Start

MOST_ENGINES = 256
"""Engines beyond this many are not followed: memory stays bounded whatever a page claims."""
FORGET_AFTER_SECONDS = 3600.0


class History:
    """Takes one snapshot after another and keeps what indicators need.

    `engines` are those that the last poll showed, `memory` is None unless it brought devices.
    One time-out in a row leaves the engines of the poll before in place; any other failure
    takes them away at once.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self.at = 0.0
        self.release: Release | None = None
        self.server: ServerReading | None = None
        self.engines: tuple[EngineHistory, ...] = ()
        self._known: dict[tuple[str, str], EngineHistory] = {}
        self._memory = MemoryHistory()
        self.memory: MemoryHistory | None = None
        self.host: HostReading | None = None
        self._process_start_seconds: float | None = None
        self._timeouts_in_a_row = 0
        self.restarted_at: float | None = None
        self.start: Start | None = None

    @property
    def present_pids(self) -> frozenset[int]:
        """All compute processes that the last poll saw on the watched GPUs."""
        return self.memory.present_pids if self.memory is not None else frozenset()

    def add(self, snapshot: Snapshot) -> None:
        self.at = snapshot.at
        self.host = snapshot.host
        self.release = parse_release(snapshot.vllm_version) or self.release
        server = snapshot.server
        restarted = server is not None and self._has_restarted(server)
        if restarted:
            self.restarted_at = snapshot.at
            self._memory.begin_life()
        self._add_memory(snapshot.gpus, snapshot.at, page_is_good=_is_good(server))
        if server is not None:
            self._timeouts_in_a_row = 0
            self._add_server(server, restarted=restarted)
        elif snapshot.failure is not None:
            self._fail(snapshot.failure)
        for key, engine in list(self._known.items()):
            if engine.at < snapshot.at - FORGET_AFTER_SECONDS:
                del self._known[key]

    def _has_restarted(self, server: ServerReading) -> bool:
        started, before = server.process_start_seconds, self._process_start_seconds
        self._process_start_seconds = started if started is not None else before
        if started is not None and before is not None:
            return started != before
        return any(
            (known := self._known.get(engine.key)) is not None and known.counters_fell(engine)
            for engine in server.engines
        )

    def _add_memory(
        self, gpus: GpuReport | Failure | None, at: float, *, page_is_good: bool
    ) -> None:
        if not isinstance(gpus, GpuReport):
            self.memory = None
            return
        self._memory.add(
            at,
            gpus,
            page_is_good=page_is_good,
            warming_up=self._is_warming_up(),
            logged_pids=frozenset(self.start.process_names if self.start is not None else ()),
        )
        self.memory = self._memory

    def _is_warming_up(self) -> bool:
        """Until a minute of this life was spent serving: the first load grows vLLM's memory."""
        return all(
            engine.serving_seconds_of_life() < self.thresholds.warmup_serving_seconds
            for engine in self._known.values()
        )

    def _add_server(self, server: ServerReading, *, restarted: bool) -> None:
        self.server = server
        memory_bytes = (
            self.memory.plateau_bytes(self.at, self.thresholds.plateau_seconds)
            if self.memory is not None
            else None
        )
        engines: list[EngineHistory] = []
        for reading in server.engines:
            engine = self._known.get(reading.key)
            if engine is None:
                if len(self._known) >= MOST_ENGINES:
                    continue
                engine = self._known[reading.key] = EngineHistory(self.thresholds)
            engine.add(
                self.at,
                reading,
                self.release,
                server_restarted=restarted,
                memory_bytes=memory_bytes,
            )
            engines.append(engine)
        self.engines = tuple(engines)

    def _fail(self, failure: Failure) -> None:
        """A page that timed out once may come late; a refused one is gone."""
        self._timeouts_in_a_row = self._timeouts_in_a_row + 1 if failure.reason == "timeout" else 0
        if self._timeouts_in_a_row != 1:
            self.server = None
            self.engines = ()


def _is_good(server: ServerReading | None) -> bool:
    return server is not None and any(e.kv_usage_ratio is not None for e in server.engines)
