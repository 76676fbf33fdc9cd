"""The GPUs, read through NVML without ever making the event loop wait for the driver.

One daemon thread owns every call. A call into a troubled driver may never return: then this read
ends at its deadline, the following ones at once, and neither the service nor its exit waits.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from sidecar.model import Failure, GpuReport
from sidecar.sources.gpu_selection import ALL, GpuSelection, parse_selection
from sidecar.sources.host import PROC
from sidecar.sources.nvml_binding import NvmlLibrary
from sidecar.sources.nvml_errors import FAILURE_REASONS
from sidecar.sources.nvml_session import NvmlSession

__all__ = ["ALL", "FAILURE_REASONS", "GpuSelection", "NvmlSource", "parse_selection"]

DEADLINE_SECONDS = 2.0
"""Real calls take microseconds, starting NVML without persistence mode seconds."""
CLOSE_SECONDS = 0.5
"""How long `close` waits for NVML to be given back in good order."""

Answer: TypeAlias = GpuReport | Failure | None
_Request: TypeAlias = tuple[Callable[[], Answer], Callable[[Answer], None]]


def _import_pynvml() -> NvmlLibrary:
    """The binding, imported at first use. Raises ImportError also for a lookalike module."""
    import pynvml

    # The unmaintained PyPI package `pynvml` can overwrite part of `nvidia-ml-py`.
    if not callable(getattr(pynvml, "nvmlInitWithFlags", None)):
        raise ImportError(f"{pynvml.__file__} is not NVIDIA's binding")
    return pynvml


class NvmlSource:
    """Reads the selected GPUs. For one event loop and one reader at a time.

    `library` replaces the module pynvml, `clock` (monotonic seconds) measures calls and waits
    between attempts; the deadline alone is real time. `proc` is where the kernel tells about the
    host and its processes.
    """

    name = "nvml"

    def __init__(
        self,
        selection: GpuSelection = ALL,
        *,
        library: NvmlLibrary | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline_seconds: float = DEADLINE_SECONDS,
        logger: logging.Logger | None = None,
        proc: Path = PROC,
    ) -> None:
        load = _import_pynvml if library is None else lambda: library
        self._selection = selection
        self._deadline_seconds = deadline_seconds
        logger = logger or logging.getLogger(__name__)
        self._session = NvmlSession(selection, load, clock, logger, proc)
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaited: asyncio.Future[Answer] | None = None
        self._closed = False

    async def read(self) -> Answer:
        """What the devices say now, within the deadline.

        None where there never was an NVIDIA driver or GPU and none was asked for by name. A
        `Failure` has a reason of `FAILURE_REASONS`; nothing is raised.
        """
        if self._selection.wanted == ():
            return None
        if self._closed:
            return Failure("other", "the NVML source is closed")
        if self._awaited is None or self._awaited.done():
            self._awaited = self._post(self._session.read)
            await asyncio.wait({self._awaited}, timeout=self._deadline_seconds)
        if self._awaited.done():
            return self._awaited.result()
        return Failure(
            "timeout",
            f"NVML has not answered in {self._deadline_seconds:g} s ({self._session.doing}): see "
            "`dmesg` and `nvidia-smi`; at the start, persistence mode makes it faster",
        )

    async def close(self) -> None:
        """Gives NVML back and ends the thread, or leaves both behind where a call is stuck."""
        already_closed, self._closed = self._closed, True
        if self._thread is not None and not already_closed:
            ended = self._post(self._session.close)
            self._requests.put(None)
            await asyncio.wait({ended}, timeout=CLOSE_SECONDS)

    def _post(self, job: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """Has the thread do `job`; the future is done when the job is, however late."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def reply(answer: Answer) -> None:
            # A closed loop refuses: nobody waits for a stuck call's answer any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(future.set_result, answer)

        if self._thread is None:
            # A daemon, so that the interpreter's exit does not wait for a stuck call.
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()
        self._requests.put((job, reply))
        return future

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            job, reply = request
            reply(job())
