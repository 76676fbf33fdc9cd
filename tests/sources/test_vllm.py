"""The HTTP source against a real server that does everything a server should not do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from fault_server import (
    PAGE,
    Behaviour,
    cut_off,
    endless,
    gzipped,
    in_turn,
    page,
    raw,
    redirect,
    reset,
    serving,
    silent,
    status,
    trickling,
)

from sidecar.model import Failure, Page
from sidecar.sources import vllm
from sidecar.sources.vllm import FAILURE_REASONS, Identity, VllmSource

KEY = "sk-very-secret"
UNUSABLE = "the answer is not HTTP; is this the right port?"


def closed_port() -> int:
    """A port on which nothing listens: it was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def asking(
    address: str, *, timeout_seconds: float = 5.0, api_key: str | None = KEY
) -> AsyncIterator[VllmSource]:
    source = VllmSource(address, timeout_seconds=timeout_seconds, api_key=api_key)
    try:
        yield source
    finally:
        await source.close()


async def read_once(address: str, *, timeout_seconds: float = 5.0) -> Page | Failure:
    async with asking(address, timeout_seconds=timeout_seconds) as source:
        return await source.read()


async def identify_once(address: str, *, timeout_seconds: float = 5.0) -> Identity:
    async with asking(address, timeout_seconds=timeout_seconds) as source:
        return await source.identify()


def is_page(answer: Page | Failure) -> bool:
    return isinstance(answer, Page) and answer.text == PAGE


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(page(), id="plain"),
        pytest.param(silent(0.2), id="late but in time"),
        pytest.param(status(200, PAGE, {"Content-Encoding": "identity"}), id="said to be plain"),
        pytest.param(redirect("/metrics/"), id="redirected to a path"),
        pytest.param(redirect("metrics/", 301), id="redirected to a relative path"),
    ],
)
async def test_pages(behaviour: Behaviour) -> None:
    async with serving(metrics=behaviour) as server:
        server.behaviours["/metrics/"] = page()
        answer = await read_once(server.url)
    assert is_page(answer)
    assert isinstance(answer, Page)
    assert 0 < answer.seconds < 5


async def test_how_long_a_page_took_includes_its_body() -> None:
    async with serving(metrics=silent(0.3)) as server:
        answer = await read_once(server.url)
    assert isinstance(answer, Page)
    assert 0.3 <= answer.seconds < 2


async def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    async with serving(metrics=status(200, b"caf\xe9 1\n")) as server:
        answer = await read_once(server.url)
    assert isinstance(answer, Page)
    assert answer.text == "caf� 1\n"


@pytest.mark.parametrize(
    ("behaviour", "reason", "detail"),
    [
        pytest.param(status(500), "http_status", "/metrics answers 500", id="500"),
        pytest.param(status(401), "http_status", "/metrics answers 401", id="401"),
        pytest.param(status(204), "http_status", "/metrics answers 204", id="204"),
        pytest.param(status(304), "http_status", "/metrics answers 304", id="304"),
        pytest.param(status(307), "http_status", "/metrics answers 307", id="leads nowhere"),
        pytest.param(redirect("/metrics"), "redirect", "set that URL", id="endless redirect"),
        pytest.param(
            redirect("http://localhost:1/metrics"),
            "redirect",
            "redirects to http://localhost:1/metrics; set that URL",
            id="another origin",
        ),
        pytest.param(redirect("ftp://h/"), "redirect", "ftp://h/", id="another scheme"),
        pytest.param(redirect("//["), "redirect", "", id="redirect to nonsense"),
        pytest.param(redirect("/" + "x" * 70_000), "protocol", "", id="redirect of 70 kB"),
        pytest.param(cut_off(), "closed", "closed the connection", id="cut off"),
        pytest.param(reset(), "closed", "closed the connection", id="reset"),
        pytest.param(raw(b""), "closed", "closed the connection", id="closed without answer"),
        pytest.param(raw(b"\x15\x03\x01\x00\x02\x02P"), "protocol", UNUSABLE, id="TLS alert"),
        pytest.param(raw(b"hello\r\n\r\n"), "protocol", UNUSABLE, id="garbage"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000), "protocol", UNUSABLE, id="endless head"
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"),
            "protocol",
            UNUSABLE,
            id="unreadable length",
        ),
        pytest.param(endless(), "too_large", "more than 32 MiB", id="endless body"),
        pytest.param(gzipped(PAGE.encode()), "protocol", "is compressed", id="gzip unasked for"),
    ],
)
async def test_failures(behaviour: Behaviour, reason: str, detail: str) -> None:
    async with serving(metrics=behaviour) as server:
        answer = await read_once(server.url)
    assert isinstance(answer, Failure)
    assert answer.reason == reason
    assert answer.reason in FAILURE_REASONS
    assert detail in answer.detail
    assert server.url in answer.detail
    assert len(answer.detail) < 400
    assert "\n" not in answer.detail


async def test_a_small_body_that_unpacks_to_gigabytes_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unpack(_: object, __: bytes) -> bytes:
        raise AssertionError("unpacked")

    monkeypatch.setattr("httpx._decoders.GZipDecoder.decode", unpack)
    async with serving(metrics=gzipped(b"#" * 64 * 2**20)) as server:
        answer = await read_once(server.url)
    assert isinstance(answer, Failure)
    assert answer.reason == "protocol"


async def test_the_bound_of_a_body_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "MOST_BYTES", len(PAGE))
    async with (
        serving(metrics=in_turn(page(), page(PAGE + "#"))) as server,
        asking(server.url) as source,
    ):
        assert is_page(await source.read())
        too_large = await source.read()
    assert isinstance(too_large, Failure)
    assert too_large.reason == "too_large"


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(silent(), id="silent"),
        pytest.param(trickling(), id="trickling"),
        pytest.param(redirect("/metrics/"), id="silent after a redirect"),
    ],
)
async def test_the_deadline_is_one_for_everything(behaviour: Behaviour) -> None:
    async with serving(metrics=behaviour) as server:
        server.behaviours["/metrics/"] = silent()
        started = time.monotonic()
        answer = await read_once(server.url, timeout_seconds=0.3)
        taken = time.monotonic() - started
    assert answer == Failure("timeout", f"no page from {server.url} in 0.3 s")
    assert 0.3 <= taken < 1.0


async def test_after_every_kind_of_failure_the_next_page_is_read() -> None:
    """There is a single connection: one that a failure left in use would be the last."""
    for behaviour in (
        silent(),
        trickling(),
        endless(),
        reset(),
        cut_off(),
        raw(b"hello\r\n\r\n"),
        status(500),
        gzipped(b"x"),
        redirect("http://localhost:1/"),
    ):
        async with (
            serving(metrics=in_turn(behaviour, behaviour, page())) as server,
            asking(server.url, timeout_seconds=0.3) as source,
        ):
            assert isinstance(await source.read(), Failure)
            assert isinstance(await source.read(), Failure)
            assert is_page(await source.read())


async def test_cancelling_a_read_leaves_the_source_usable() -> None:
    async with (
        serving(metrics=in_turn(silent(), page())) as server,
        asking(server.url) as source,
    ):
        reading = asyncio.create_task(source.read())
        await server.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert is_page(await source.read())


async def test_one_connection_serves_all_requests() -> None:
    async with (
        serving(
            metrics=page(), version=status(200, '{"version": "0.33.0"}'), models=status(200, "{}")
        ) as server,
        asking(server.url) as source,
    ):
        await source.read()
        await source.identify()
        await source.read()
        assert server.connections == 1
        await asyncio.gather(source.read(), source.read(), source.identify())
        assert server.most_open_connections == 1


async def test_an_idle_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vllm._KEEP_ALIVE_SECONDS < 5.0, "vLLM closes idle connections after 5 s"
    monkeypatch.setattr(vllm, "_KEEP_ALIVE_SECONDS", 0.1)
    async with serving(metrics=page()) as server, asking(server.url) as source:
        await source.read()
        await asyncio.sleep(0.2)
        assert is_page(await source.read())
        assert server.connections == 2


async def test_what_is_asked_and_what_is_not_kept() -> None:
    async with (
        serving(metrics=status(200, PAGE, {"Set-Cookie": "a=b"})) as server,
        asking(server.url, api_key=KEY) as source,
    ):
        await source.read()
        await source.read()
    for request in server.requests:
        assert request.headers["accept-encoding"] == "identity"
        assert "cookie" not in request.headers
        assert "authorization" not in request.headers


@pytest.mark.parametrize("suffix", ["", "/behind/a/proxy"])
async def test_a_base_path_is_kept(suffix: str) -> None:
    async with serving() as server:
        server.behaviours[f"{suffix}/metrics"] = page()
        assert is_page(await read_once(server.url + suffix))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_closed_port_is_refused(host: str) -> None:
    address = f"http://{host}:{closed_port()}"
    assert await read_once(address) == Failure(
        "refused", f"{address}: connection refused; nothing listens there"
    )


async def test_a_host_without_address_is_unresolved() -> None:
    address = "http://no-such-host.invalid"
    assert await read_once(address) == Failure(
        "unresolved", f"{address}: the host name cannot be resolved"
    )


async def test_speaking_tls_to_a_plain_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        failure = await read_once(f"https://127.0.0.1:{port}")
    assert isinstance(failure, Failure)
    assert failure.reason == "tls"


def raising(error: Exception) -> httpx.MockTransport:
    def handle(_: httpx.Request) -> httpx.Response:
        raise error

    return httpx.MockTransport(handle)


def connecting(*errors: OSError) -> httpx.ConnectError:
    """As the HTTP library reports several addresses that all failed."""
    outer = httpx.ConnectError("All connection attempts failed")
    outer.__cause__ = OSError("All connection attempts failed")
    outer.__cause__.__cause__ = ExceptionGroup("multiple attempts", list(errors))
    return outer


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (connecting(OSError(111, "refused"), OSError(111, "refused")), "refused"),
        (connecting(OSError(113, "No route to host")), "unreachable"),
        (connecting(OSError(101, "Network is unreachable")), "unreachable"),
        (httpx.ConnectError("what else"), "unreachable"),
        (httpx.ConnectTimeout(""), "timeout"),
        (httpx.PoolTimeout(""), "timeout"),
        (httpx.ReadTimeout(""), "timeout"),
        (httpx.WriteError("broken pipe"), "closed"),
        (httpx.CloseError(""), "closed"),
        (httpx.UnsupportedProtocol(""), "other"),
        (httpx.InvalidURL(""), "other"),
    ],
)
async def test_errors_that_no_test_server_can_cause(error: Exception, reason: str) -> None:
    source = VllmSource("http://vllm:8000", transport=raising(error))
    failure = await source.read()
    await source.close()
    assert isinstance(failure, Failure)
    assert failure.reason == reason


# ---------------------------------------------------------------------------------------------
# The key.


async def test_the_key_goes_to_the_two_endpoints_that_may_ask_for_it() -> None:
    async with serving(
        metrics=page(), version=redirect("/v"), models=status(200, '{"data": []}')
    ) as server:
        server.behaviours["/v"] = status(200, '{"version": "0.33.0"}')
        async with asking(server.url, api_key=KEY) as source:
            await source.identify()
            await source.read()
    sent = {request.path: request.headers.get("authorization") for request in server.requests}
    bearer = f"Bearer {KEY}"
    assert sent == {"/version": bearer, "/v": bearer, "/v1/models": bearer, "/metrics": None}


async def test_the_key_never_goes_to_another_server() -> None:
    async with serving(version=page(), models=page()) as elsewhere:
        away = redirect(f"{elsewhere.url}/version")
        async with serving(version=away, models=away) as server:
            assert await identify_once(server.url) == Identity()
    assert server.paths == ["/version", "/v1/models"]
    assert elsewhere.connections == 0


async def test_without_a_key_none_is_sent() -> None:
    async with (
        serving(version=status(200, '{"version": "1.2.3"}')) as server,
        asking(server.url, api_key=None) as source,
    ):
        assert await source.identify() == Identity("1.2.3")
    assert all("authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize("key", [KEY, f"{KEY}\nX-Injected: 1", f"{KEY}ключ"])
async def test_the_key_is_told_to_nobody(key: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "sidecar")
    async with (
        serving(metrics=status(401), version=status(401), models=raw(b"")) as server,
        asking(server.url, api_key=key) as source,
    ):
        answers = [
            await source.read(),
            await source._get("/version", 100, 1.0, source._key_header),
            await source._get("/v1/models", 100, 1.0, source._key_header),
        ]
    for answer in answers:
        assert isinstance(answer, Failure)
        assert "secret" not in answer.detail
        assert "ключ" not in answer.detail
    assert "secret" not in caplog.text
    assert "secret" not in repr(source)


# ---------------------------------------------------------------------------------------------
# Who answers.

MODELS = '{"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}'


@pytest.mark.parametrize(
    ("version", "models", "identity"),
    [
        (status(200, '{"version": "0.33.0"}'), status(200, MODELS), Identity("0.33.0", 4096)),
        (status(200, '{"version": "0.3"}'), status(401), Identity("0.3")),
        (status(404), status(200, MODELS), Identity(None, 4096)),
        (status(404), status(404), Identity()),
        (raw(b""), raw(b"hello\r\n\r\n"), Identity()),
        (reset(), status(200, MODELS), Identity(None, 4096)),
        (status(200, "<html>"), status(200, "[]"), Identity()),
        (status(200, b"\xff\xfe"), status(200, b""), Identity()),
        (status(200, "[" * 100_000), status(200, '{"a":' * 100_000), Identity()),
        (status(200, "1" * 10_000), status(200, "null"), Identity()),
        (endless(), endless(), Identity()),
        (gzipped(b'{"version": "0.33.0"}'), gzipped(MODELS.encode()), Identity()),
    ],
)
async def test_identity(version: Behaviour, models: Behaviour, identity: Identity) -> None:
    async with serving(version=version, models=models) as server:
        assert await identify_once(server.url) == identity


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ('"0.33.0+cpu"', "0.33.0+cpu"),
        ('""', None),
        ("33", None),
        ("null", None),
        ('["0.33.0"]', None),
        ('"0.33.0\\n# forged"', None),
        ('"\\ud800"', None),
        ('"\\u001b[31m"', None),
        (f'"{"9" * 64}"', "9" * 64),
        (f'"{"9" * 65}"', None),
    ],
)
async def test_a_version_is_short_and_printable(version: str, known: str | None) -> None:
    async with serving(version=status(200, f'{{"version": {version}}}')) as server:
        assert (await identify_once(server.url)).version == known


@pytest.mark.parametrize(
    ("models", "length"),
    [
        ('{"data": [{"max_model_len": 100}, {"max_model_len": 4096}, {}]}', 4096),
        ('{"data": [{"max_model_len": null}, {"max_model_len": "9"}, 5, null]}', None),
        ('{"data": [{"max_model_len": true}]}', None),
        ('{"data": [{"max_model_len": 4096.0}]}', None),
        ('{"data": [{"max_model_len": -1}, {"max_model_len": 0}]}', None),
        (f'{{"data": [{{"max_model_len": 1{"0" * 400}}}]}}', None),
        ('{"data": {"max_model_len": 5}}', None),
        ('{"data": null}', None),
    ],
)
async def test_a_model_length_is_a_sensible_number(models: str, length: int | None) -> None:
    async with serving(models=status(200, models)) as server:
        assert (await identify_once(server.url)).max_model_len == length


async def test_asking_who_answers_takes_no_longer_than_a_page_may() -> None:
    async with serving(version=silent(), models=trickling()) as server:
        started = time.monotonic()
        assert await identify_once(server.url, timeout_seconds=0.4) == Identity()
        assert time.monotonic() - started < 0.8
