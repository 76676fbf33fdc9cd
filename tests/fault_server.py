"""A small real TCP server that misbehaves on demand, one behaviour for each path.

It speaks just enough HTTP to be asked, and each behaviour writes whatever bytes it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

Behaviour = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]

PAGE = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: the path, and the headers by lower-case name."""

    path: str
    headers: Mapping[str, str]


@dataclass(eq=False)
class FaultServer:
    """Listens on an ephemeral port of loopback. A path without a behaviour is not found."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    open_connections: int = 0
    most_open_connections: int = 0
    url: str = ""
    _server: asyncio.Server | None = None
    _talks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        # A connection that was accepted just now must get its talk, which can be ended: asyncio
        # forgets to close it if the server closes in between.
        await asyncio.sleep(0.01)
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled by stop(), which a task of asyncio's own making would report as an error.
        talk = asyncio.create_task(self._talk(reader, writer))
        # Also where it is cancelled before it began.
        talk.add_done_callback(lambda _: writer.close())
        self._talks.add(talk)
        await asyncio.wait({talk})

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self.most_open_connections = max(self.most_open_connections, self.open_connections)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    request = _request(await reader.readuntil(b"\r\n\r\n"))
                    self.requests.append(request)
                    self.asked.set()
                    await self.behaviours.get(request.path, status(404))(request, writer)
        finally:
            self.open_connections -= 1


def _request(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Request(first.split(" ")[1], {name.lower(): text.strip() for name, _, text in pairs})


@contextlib.asynccontextmanager
async def serving(**behaviours: Behaviour) -> AsyncIterator[FaultServer]:
    """A server whose `/metrics`, `/version` and so on behave as told, by their last word."""
    paths = {
        "metrics": "/metrics",
        "health": "/health",
        "version": "/version",
        "models": "/v1/models",
    }
    server = FaultServer({paths[name]: behaviour for name, behaviour in behaviours.items()})
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def status(
    code: int, body: str | bytes = b"", headers: Mapping[str, str] | None = None
) -> Behaviour:
    """A complete answer; the connection stays open for the next request."""
    content = body.encode() if isinstance(body, str) else body

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(code, {"Content-Length": str(len(content)), **(headers or {})}))
        writer.write(content)
        await writer.drain()

    return behave


def page(text: str = PAGE) -> Behaviour:
    return status(200, text, {"Content-Type": "text/plain; version=1.0.0"})


def redirect(location: str, code: int = 307) -> Behaviour:
    return status(code, headers={"Location": location})


def gzipped(body: bytes) -> Behaviour:
    """Compressed although nobody asked for it."""
    return status(200, gzip.compress(body), {"Content-Encoding": "gzip"})


def raw(content: bytes) -> Behaviour:
    """Bytes that need not be HTTP, then an orderly close (nothing at all: just the close)."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        writer.close()

    return behave


def cut_off(content: bytes = b"vllm:num_requests_running ") -> Behaviour:
    """A body that ends before its announced length."""
    return raw(_head(200, {"Content-Length": "100000"}) + content)


def reset(content: bytes = b"vllm:") -> Behaviour:
    """The connection is reset (RST) in the middle of the body."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, {"Content-Length": "100000"}) + content)
        await writer.drain()
        await asyncio.sleep(0.02)
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return behave


def silent(seconds: float = 3600.0, then: Behaviour | None = None) -> Behaviour:
    """No byte for so long, then what follows."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        await (then or page())(request, writer)

    return behave


def trickling(every_seconds: float = 0.02, code: int = 200) -> Behaviour:
    """A byte at a time, so that no single read takes long, and never an end."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(code, {"Content-Length": "100000"}))
        while not writer.is_closing():
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(every_seconds)

    return behave


def endless(part: bytes = b"# much text\n" * 20_000, code: int = 200) -> Behaviour:
    """As fast as it can, without end."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(code, {"Transfer-Encoding": "chunked"}))
        while not writer.is_closing():
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One after the other; the last one stays."""
    left = list(behaviours)

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, writer)

    return behave


def _head(code: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} Whatever", *(f"{name}: {text}" for name, text in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
