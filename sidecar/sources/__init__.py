"""Where polls come from: one file a source, all behind the same small protocol."""

from __future__ import annotations

from typing import Protocol

from sidecar.model import Failure, GpuReport, Page


class PageSource(Protocol):
    """Something that serves vLLM's `/metrics` text. A bad answer is a `Failure`, never raised."""

    async def read(self) -> Page | Failure: ...

    async def close(self) -> None: ...


class GpuSource(Protocol):
    """Something that reads devices. None: there never was one, which is no failure."""

    async def read(self) -> GpuReport | Failure | None: ...

    async def close(self) -> None: ...
