"""Asks a vLLM server for its page, and never hurts it: one request at a time, all bounded."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Final

import httpx

from sidecar.model import Failure, Page
from sidecar.sources.http_causes import likely_cause

FAILURE_REASONS: Final = (
    "refused",
    "closed",
    "timeout",
    "unresolved",
    "unreachable",
    "tls",
    "protocol",
    "http_status",
    "redirect",
    "too_large",
    "other",
)
MOST_BYTES = 32 * 2**20
"""A longer page is refused. The largest seen in the field was 22 MB."""
_CONNECT_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 3.0
"""An idle connection is not used again after this: vLLM closes it after five seconds, and a
request that meets the close looks like a server that died."""
_MOST_IDENTITY_BYTES = 2**20
_MOST_ERROR_BYTES = 2**16
_ERROR_BODY_SECONDS = 0.5
_MOST_VERSION_CHARACTERS = 64
_MOST_MODEL_LEN = 2**40
_MOST_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers. None where the server does not say, or asks for a key we do not have."""

    version: str | None = None
    max_model_len: int | None = None


class VllmSource:
    """One vLLM server over HTTP.

    `read()` fetches `/metrics`, which needs no key in any release. `identify()` asks `/version`
    (0.4.0 and later) and `/v1/models` and sends the key, if there is one; both together take no
    longer than one page may. It is called once after each time the server came up. No error is
    raised for anything a server does.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float = 5.0,
        api_key: str | None = None,
        trust: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._key_header = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=address,
            timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_ALIVE_SECONDS),
            trust_env=False,
            verify=trust,
            follow_redirects=False,
            # A page is compressed on the API server's event loop, at the cost of its users.
            headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
            transport=transport,
        )
        # Nothing that a server says is kept for the next request.
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    async def read(self) -> Page | Failure:
        started = time.monotonic()
        answer = await self._get("/metrics", MOST_BYTES, self._timeout_seconds)
        if isinstance(answer, Failure):
            return answer
        return Page(answer.decode("utf-8", "replace"), time.monotonic() - started)

    async def identify(self) -> Identity:
        return Identity(
            version=_version(await self._ask("/version")),
            max_model_len=_max_model_len(await self._ask("/v1/models")),
        )

    async def is_healthy(self) -> bool:
        """Whether `/health` answers 200 (all releases; 503 where the engine is dead, V1)."""
        seconds = self._timeout_seconds / 2
        return not isinstance(await self._get("/health", _MOST_IDENTITY_BYTES, seconds), Failure)

    async def is_paused(self) -> bool | None:
        """What `/is_paused` says: 0.12.0 to 0.15.0, later in development mode only. None where
        it is not there."""
        answer = (await self._ask("/is_paused")).get("is_paused")
        return answer if isinstance(answer, bool) else None

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, path: str) -> Mapping[str, object]:
        return _fields(
            await self._get(path, _MOST_IDENTITY_BYTES, self._timeout_seconds / 2, self._key_header)
        )

    async def _get(
        self,
        path: str,
        most_bytes: int,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes | Failure:
        try:
            async with asyncio.timeout(seconds):
                return await self._get_following_once(path, most_bytes, headers)
        except httpx.ConnectTimeout:
            return Failure("timeout", f"no connection to {self.address}: it does not react")
        except (TimeoutError, httpx.TimeoutException):
            return Failure("timeout", f"no page from {self.address} in {seconds:g} s")
        except httpx.HTTPError as error:
            return _failure(error, self.address)
        except (httpx.InvalidURL, ValueError) as error:
            # The text is left out: of a header that cannot be sent, it would quote the key.
            return Failure("other", f"{self.address}: cannot be asked ({type(error).__name__})")

    async def _get_following_once(
        self, path: str, most_bytes: int, headers: Mapping[str, str] | None
    ) -> bytes | Failure:
        """vLLM 0.3.1 to 0.4.1 and some proxies send `/metrics` to `/metrics/`: one redirect is
        followed, if it stays on the same server, for a key must not go anywhere else."""
        url = path
        for attempt in (1, 2):
            async with self._client.stream("GET", url, headers=headers) as response:
                if response.has_redirect_location:
                    target = response.url.join(response.headers.get("location", ""))
                    here = response.url
                    same = (target.scheme, target.host, target.port) == (
                        here.scheme,
                        here.host,
                        here.port,
                    )
                    if attempt == 2 or not same:
                        shown = str(target)[:_MOST_SHOWN_CHARACTERS]
                        return Failure("redirect", f"{here} redirects to {shown}; set that URL")
                    url = str(target)
                    continue
                if response.status_code != 200:
                    cause = likely_cause(response.status_code, await _start_of_body(response))
                    said = f"{response.url} answers {response.status_code}"
                    return Failure("http_status", f"{said}: {cause}" if cause else said)
                if response.headers.get("content-encoding", "identity") != "identity":
                    # A few bytes may unpack to gigabytes, and we asked for plain text.
                    return Failure("protocol", f"{response.url} is compressed, unlike asked for")
                return await _bounded_body(response, most_bytes)
        return Failure("redirect", f"{self.address} redirects without end")


async def _start_of_body(response: httpx.Response) -> bytes:
    """What an error page begins with, if it comes soon and plain: it may name its cause."""
    if response.headers.get("content-encoding", "identity") != "identity":
        return b""
    start = b""
    with contextlib.suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_SECONDS):
            async for part in response.aiter_bytes():
                start += part
                if len(start) >= _MOST_ERROR_BYTES:
                    break
    return start[:_MOST_ERROR_BYTES]


async def _bounded_body(response: httpx.Response, most_bytes: int) -> bytes | Failure:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most_bytes:
            return Failure("too_large", f"{response.url}: more than {most_bytes >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _failure(error: httpx.HTTPError, address: str) -> Failure:
    """Tell apart what a person would act on differently."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            return Failure("tls", f"{address}: TLS failed: {cause.reason or cause}")
        if isinstance(cause, socket.gaierror):
            return Failure("unresolved", f"{address}: the host name cannot be resolved")
        if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
            return Failure("refused", f"{address}: connection refused; nothing listens there")
        if isinstance(cause, OSError) and cause.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return Failure("unreachable", f"{address}: {cause.strerror}")
    text = str(error)
    if isinstance(error, httpx.ConnectError):
        return Failure("unreachable", f"{address}: {text}")
    if isinstance(error, httpx.NetworkError) or (
        isinstance(error, httpx.RemoteProtocolError)
        and ("disconnected" in text or "closed connection" in text)
    ):
        return Failure("closed", f"{address}: closed the connection before the answer ended")
    if isinstance(error, httpx.RemoteProtocolError):
        return Failure("protocol", f"{address}: the answer is not HTTP; is this the right port?")
    # The text is left out: of a header that cannot be sent, it would quote the key.
    return Failure("other", f"{address}: {type(error).__name__}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came from, and so on; of a host with several addresses, all of them."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            for part in cause.exceptions:
                yield from _causes(part)
        cause = cause.__cause__ or cause.__context__


def _fields(answer: bytes | Failure) -> Mapping[str, object]:
    if isinstance(answer, Failure):
        return {}
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _version(fields: Mapping[str, object]) -> str | None:
    """It goes to logs and labels, so it must be short and printable."""
    name = fields.get("version")
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _MOST_VERSION_CHARACTERS:
        return name
    return None


def _max_model_len(fields: Mapping[str, object]) -> int | None:
    cards = fields.get("data")
    lengths = [
        length
        for card in (cards if isinstance(cards, list) else [])
        if isinstance(card, dict)
        and type(length := card.get("max_model_len")) is int  # a bool is an int, too
        and 0 < length <= _MOST_MODEL_LEN
    ]
    return max(lengths, default=None)
