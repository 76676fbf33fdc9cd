"""How the service starts and how it ends: by a signal, or because a part of it died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from command import Running, refuse, running
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fault_server import Behaviour, page, serving, silent, status

from sidecar.addresses import reachable_address
from sidecar.recordings import open_recording
from sidecar.runtime import ListenError, Site, address_of, listen, run_together


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def hello() -> PlainTextResponse:
        return PlainTextResponse("hello")

    @app.get("/slow")
    async def slow() -> PlainTextResponse:
        await asyncio.sleep(3600)
        return PlainTextResponse("at last")

    return app


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as opened:
        yield opened


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0.05)
    raise error


async def end() -> None:
    await asyncio.sleep(0.05)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


# ---------------------------------------------------------------------------------------------
# In this process.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_everything_with_0(
    number: signal.Signals, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await forever()
        finally:
            cancelled.set()

    assert await run_together([("work", work())], [Site(application(), listener)]) == 0
    assert cancelled.is_set()
    assert errors(caplog) == []


async def test_time_can_be_bounded(caplog: pytest.LogCaptureFixture) -> None:
    started = time.monotonic()
    assert await run_together([("work", forever())], [], seconds=0.2) == 0
    assert 0.2 <= time.monotonic() - started < 1.0
    assert errors(caplog) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\nlines"), "poller ended: ValueError: two lines"),
        (OSError(28, "No space left"), "poller ended: OSError: [Errno 28] No space left"),
        (AssertionError(), "poller ended: AssertionError:"),
    ],
)
async def test_a_part_that_dies_takes_the_others_along(
    error: Exception, line: str, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = asyncio.get_running_loop().create_future()

    async def sibling() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            other.set_result("cancelled")
            raise

    started = time.monotonic()
    work = [("poller", fail(error)), ("sibling", sibling())]
    assert await run_together(work, [Site(application(), listener)]) == 1
    assert time.monotonic() - started < 2.0
    assert await other == "cancelled"
    assert errors(caplog) == [line]
    assert all(record.exc_info is None for record in caplog.records)


async def test_where_it_died_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await run_together([("poller", fail(ValueError("x")))], []) == 1
    assert [record.levelname for record in caplog.records if record.exc_info] == ["DEBUG"]


async def test_a_part_that_just_ends_is_no_better(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    assert await run_together([("poller", end())], [Site(application(), listener)]) == 1
    assert errors(caplog) == ["poller ended: without being asked to"]


async def test_a_server_that_dies_takes_the_poller_along(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    listener.close()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            cancelled.set()

    assert await run_together([("poller", work())], [Site(application(), listener)]) == 1
    assert cancelled.is_set()
    (line,) = errors(caplog)
    assert line.startswith("web server ended: ")
    assert "\n" not in line


async def test_a_part_that_fails_while_it_is_ended_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stubborn() -> None:
        try:
            await forever()
        finally:
            raise OSError("cannot be closed")

    assert await run_together([("stubborn", stubborn())], [], seconds=0.05) == 1
    assert errors(caplog) == ["stubborn ended: OSError: cannot be closed"]


@contextlib.asynccontextmanager
async def connected(
    listener: socket.socket, *requests: bytes
) -> AsyncIterator[asyncio.StreamReader]:
    """A client that keeps its connection, with what it has sent so far."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        for request in requests:
            writer.write(request)
            await writer.drain()
        yield reader
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "answered"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True, id="idle after an answer"),
        pytest.param(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n", False, id="still answering"),
        pytest.param(b"GET / HTTP/1.1\r\nHo", False, id="half a request"),
        pytest.param(b"", False, id="nothing yet"),
    ],
)
async def test_no_client_delays_the_end(
    request_bytes: bytes, answered: bool, listener: socket.socket
) -> None:
    serving = asyncio.create_task(
        run_together([("work", forever())], [Site(application(), listener)])
    )
    async with connected(listener, request_bytes) as reader:
        if answered:
            assert await reader.readuntil(b"hello")
        else:
            await asyncio.sleep(0.3)
        started = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0
        assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 9130, "http://127.0.0.1:9130"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::", 80, "http://[::1]:80"),
        ("fe80::1", 80, "http://[fe80::1]:80"),
        ("localhost", 80, "http://localhost:80"),
    ],
)
def test_addresses_to_type_into_a_browser(host: str, port: int, address: str) -> None:
    assert reachable_address(host, port) == address


def test_a_port_is_taken_from_the_moment_it_is_listened_on(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert address_of(listener) == f"http://127.0.0.1:{port}"
    with pytest.raises(ListenError, match=rf"^--host 127\.0\.0\.1 --port {port}: cannot listen"):
        listen("127.0.0.1", port)


# ---------------------------------------------------------------------------------------------
# As a process of its own.


def run_arguments(url: str) -> list[str]:
    return ["run", "--port", "0", "--gpus", "none", "--vllm-url", url]


@contextlib.asynccontextmanager
async def vllm_that(metrics: Behaviour, **others: Behaviour) -> AsyncIterator[str]:
    """The address of a server that behaves so."""
    async with serving(metrics=metrics, **others) as server:
        yield server.url


async def ready(command: Running) -> str:
    """The address of a sidecar that has made its first poll."""
    address = await asyncio.to_thread(command.address)
    await wait_until_ready(address)
    return address


async def wait_until_ready(address: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(200):
            if (await client.get(f"{address}/-/ready")).status_code == 200:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("never ready")


async def test_sigterm_with_a_hanging_vllm_and_an_open_connection() -> None:
    async with vllm_that(silent()) as url:
        with running(*run_arguments(url)) as command:
            address = await ready(command)
            async with httpx.AsyncClient(trust_env=False) as client:
                metrics = await client.get(f"{address}/metrics")
                assert "vllm_sidecar_build_info" in metrics.text
                assert await asyncio.to_thread(command.end, signal.SIGTERM) == 0
            assert command.process.stdout is not None
            assert command.process.stdout.read() == ""


async def test_sigint_without_any_vllm() -> None:
    with running(*run_arguments("http://127.0.0.1:1")) as command:
        await ready(command)
        assert await asyncio.to_thread(command.end, signal.SIGINT) == 0
    assert [line.partition(" ")[2] for line in command.lines] == [
        command.lines[0].partition(" ")[2],
        "WARNING vLLM: http://127.0.0.1:1: connection refused; nothing listens there",
        "INFO verdict starting (info): Nobody has answered here yet: the server may be starting, "
        "or the address may be wrong.",
    ]


async def test_sigterm_while_a_name_is_looked_up() -> None:
    """The thread in the system's resolver cannot be stopped, and must not be waited for."""
    code = (
        "import socket, time; look_up = socket.getaddrinfo\n"
        "def slow(host, *others, **more):\n"
        "    if host in ('vllm.example', b'vllm.example'): print('looking', flush=True, "
        "file=__import__('sys').stderr); time.sleep(60)\n"
        "    return look_up(host, *others, **more)\n"
        "socket.getaddrinfo = slow\n"
        "from sidecar.__main__ import main; main()"
    )
    with running(*run_arguments("http://vllm.example"), code=code) as command:
        await asyncio.to_thread(command.wait_for, "looking")
        await ready(command)
        assert await asyncio.to_thread(command.end, signal.SIGTERM) == 0


def test_a_busy_port_is_one_line_that_names_the_flag(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    message = refuse("run", "--port", str(port))
    assert message == (
        f"--host 127.0.0.1 --port {port}: cannot listen there: Address already in use"
    )


LIMITED = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
    "from sidecar.recordings import Recorder; Recorder._FLUSH_SECONDS = 0.0\n"
    "from sidecar.__main__ import main; main()"
)
"""A process whose files cannot grow past 3 kB, as on a full disk."""


def noise(kilobytes: int) -> str:
    """Text that does not compress away."""
    return "# " + os.urandom(kilobytes * 512).hex() + "\n"


async def test_a_full_disk_does_not_end_the_service(tmp_path: Path) -> None:
    fast = {"SIDECAR_POLL_PERIOD_SECONDS": "0.1"}
    async with vllm_that(page(noise(8) + "vllm:num_requests_running 3\n")) as url:
        arguments = [*run_arguments(url), "--record", str(tmp_path / "r.gz")]
        with running(*arguments, code=LIMITED, environment=fast) as command:
            address = await ready(command)
            await asyncio.to_thread(command.wait_for, "cannot be written: File too large")
            await asyncio.sleep(0.3)
            async with httpx.AsyncClient(trust_env=False) as client:
                text = (await client.get(f"{address}/metrics")).text
            assert "vllm_sidecar_requests_running" in text
            assert await asyncio.to_thread(command.end, signal.SIGTERM) == 0
    assert len([line for line in command.lines if "ERROR" in line]) == 1


async def test_a_full_disk_ends_a_recording(tmp_path: Path) -> None:
    async with vllm_that(page(noise(8))) as url:
        arguments = ["record", "--gpus", "none", "--vllm-url", url, "--out"]
        with running(*arguments, str(tmp_path / "r.gz"), code=LIMITED) as command:
            assert await asyncio.to_thread(command.process.wait, 20) == 1
    (line,) = [line for line in command.lines if "ERROR" in line]
    assert "cannot be written: File too large" in line


async def test_a_recording_ends_when_told_and_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.gz"
    async with vllm_that(page(), version=status(200, '{"version": "0.33.0"}')) as url:
        arguments = ["record", "--gpus", "none", "--vllm-url", url, "--seconds", "1"]
        fast = ["--poll-period-seconds", "0.2", "--out", str(path)]
        with running(*arguments, *fast) as command:
            assert await asyncio.to_thread(command.process.wait, 20) == 0
    polls = list(open_recording(path).polls())
    assert 3 <= len(polls) <= 6
    assert {poll.vllm_version for poll in polls} == {"0.33.0"}
    assert f"recorded {len(polls)} polls into {path}" in command.lines[-1]


async def test_the_demo_needs_nothing_and_ends_when_told() -> None:
    with running("demo", "--port", "0", "--scenario", "preemption-storm") as command:
        assert command.process.stdout is not None
        told = [command.process.stdout.readline() for _ in range(3)]
        found = re.search(r"Open (http://127\.0\.0\.1:\d+) ", told[1])
        assert found
        await wait_until_ready(found[1])
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{found[1]}/metrics")).text
        assert 'vllm_sidecar_requests_running{engine="0",model_name="simulated/llama-8b"}' in text
        assert await asyncio.to_thread(command.end, signal.SIGTERM) == 0
    assert [line for line in command.lines if "scenario: preemption-storm" in line]


async def test_an_interrupted_recording_is_served_as_far_as_it_goes(tmp_path: Path) -> None:
    recordings = Path(__file__).parent / "captures" / "recordings"
    whole = (recordings / "preempt-storm.jsonl.gz").read_bytes()
    path = tmp_path / "r.gz"
    path.write_bytes(whole[: len(whole) // 2])
    arguments = ["replay", str(path), "--serve", "--port", "0", "--speed", "max"]
    with running(*arguments) as command:
        await asyncio.to_thread(command.wait_for, "the last frame before it stays")
        async with httpx.AsyncClient(trust_env=False) as client:
            body = (await client.get(f"{command.address()}/api/v1/snapshot")).json()
        assert abs(body["at"] - time.time()) < 600, "as if it happened now"
        assert body["server"]["requests_running"] is not None
        assert await asyncio.to_thread(command.end, signal.SIGTERM) == 0
    assert "ends in the middle, after line" in command.wait_for("ERROR")
