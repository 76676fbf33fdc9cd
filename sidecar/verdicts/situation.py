"""Everything a rule may look at, at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sidecar.engine_history import EngineHistory
from sidecar.history import History
from sidecar.launch import LaunchFlags
from sidecar.lifecycle import Lifecycle
from sidecar.memory_history import DeviceHistory
from sidecar.model import Scope, Snapshot
from sidecar.settings import Thresholds
from sidecar.sources.releases import Release
from sidecar.startlog.start import Start

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Situation:
    """A moment as the rules see it: the history, the life of the server, and what is known of
    its start. `start` is None where there is no log."""

    snapshot: Snapshot
    history: History
    lifecycle: Lifecycle
    flags: LaunchFlags
    start: Start | None = None

    @property
    def at(self) -> float:
        return self.snapshot.at

    @property
    def thresholds(self) -> Thresholds:
        return self.history.thresholds

    @property
    def release(self) -> Release | None:
        return self.history.release

    @property
    def paused(self) -> bool:
        """Whether there is evidence of a pause: the server says so, or its log has the request."""
        return bool(self.snapshot.paused) or bool(self.start and self.start.serving.paused)

    def engines(self) -> Iterator[tuple[EngineHistory, Scope]]:
        """Engines of the last page, with their scope."""
        for engine in self.history.engines:
            if engine.reading is not None:
                yield engine, Scope(*engine.reading.key)

    @property
    def suspends_memory(self) -> bool:
        """Whether memory moves for reasons of its own: a start, a fresh restart, sleep."""
        life = self.lifecycle
        asleep = any(e.reading is not None and e.reading.sleeping for e, _ in self.engines())
        return asleep or life.just_restarted(self.at) or life.is_starting(self.at)

    def settled_engines(self) -> Iterator[tuple[EngineHistory, Scope]]:
        """Engines about which memory may be judged: awake, and not in the minute after a
        restart, in which caches fill and numbers jump."""
        for engine, scope in self.engines():
            asleep = engine.reading is not None and engine.reading.sleeping
            if not asleep and not self.lifecycle.just_restarted(self.at):
                yield engine, scope

    def devices(self) -> Iterator[tuple[DeviceHistory, Scope]]:
        """GPUs that this server uses: those with bytes of its own now, else lately (it may have
        died), else all, since nobody knows."""
        memory = self.history.memory
        if memory is None:
            return
        devices = memory.devices.values()
        owned = [d for d in devices if d.owners is not None and d.owners.vllm_bytes]
        lately = [d for d in devices if any(d.vllm.values)]
        for device in owned or lately or devices:
            if device.reading is not None:
                yield device, Scope(gpu=str(device.reading.index))

    def missing(self) -> tuple[str, ...]:
        """Sources that would have told more and are not there."""
        absent = []
        if self.start is None:
            absent.append("log")
        if self.history.memory is None:
            absent.append("nvml")
        return tuple(absent)
