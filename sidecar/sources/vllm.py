"""Asks a vLLM server for its page, and never hurts it: one request at a time, all bounded."""

from __future__ import annotations

import asyncio
import errno
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from sidecar.model import Failure, Page

FAILURE_REASONS: Final = (
    "refused",
    "closed",
    "timeout",
    "unresolved",
    "unreachable",
    "tls",
    "http_status",
    "redirect",
    "too_large",
    "other",
)
MOST_BYTES = 32 * 2**20
"""A longer page is refused. The largest seen in the field was 22 MB."""
_CONNECT_SECONDS = 1.0
_MOST_IDENTITY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers. None where the server does not say, or asks for a key we do not have."""

    version: str | None = None
    max_model_len: int | None = None


class VllmSource:
    """One vLLM server over HTTP.

    `read()` fetches `/metrics`, which needs no key in any release. `identify()` asks `/version`
    (0.4.0 and later) and `/v1/models` and sends the key, if there is one; it is called once
    after each time the server came up. No error is raised for anything a server does.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float = 5.0,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._key_header = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=address,
            timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=1),
            trust_env=False,
            follow_redirects=False,
            # A page is compressed on the API server's event loop, at the cost of its users.
            headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
            transport=transport,
        )

    async def read(self) -> Page | Failure:
        started = time.monotonic()
        answer = await self._get("/metrics", MOST_BYTES)
        if isinstance(answer, Failure):
            return answer
        return Page(answer.decode("utf-8", "replace"), time.monotonic() - started)

    async def identify(self) -> Identity:
        version = _field(await self._get("/version", _MOST_IDENTITY_BYTES, self._key_header))
        models = _field(await self._get("/v1/models", _MOST_IDENTITY_BYTES, self._key_header))
        name = version.get("version")
        cards = models.get("data")
        lengths = [
            card["max_model_len"]
            for card in (cards if isinstance(cards, list) else [])
            if isinstance(card, dict) and isinstance(card.get("max_model_len"), int)
        ]
        return Identity(
            name if isinstance(name, str) and len(name) <= 64 else None, max(lengths, default=None)
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(
        self, path: str, most_bytes: int, headers: Mapping[str, str] | None = None
    ) -> bytes | Failure:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._get_following_once(path, most_bytes, headers)
        except (TimeoutError, httpx.TimeoutException):
            return Failure("timeout", f"no page from {self.address} in {self._timeout_seconds:g} s")
        except httpx.HTTPError as error:
            return _failure(error, self.address)
        except (httpx.InvalidURL, ValueError) as error:
            return Failure("other", f"{self.address}: {error}")

    async def _get_following_once(
        self, path: str, most_bytes: int, headers: Mapping[str, str] | None
    ) -> bytes | Failure:
        """vLLM 0.3.1 to 0.4.1 and some proxies send `/metrics` to `/metrics/`: one redirect is
        followed, if it stays on the same server, for a key must not go anywhere else."""
        url = path
        for attempt in (1, 2):
            async with self._client.stream("GET", url, headers=headers) as response:
                if response.is_redirect:
                    target = response.url.join(response.headers.get("location", ""))
                    here = response.url
                    same = (target.scheme, target.host, target.port) == (
                        here.scheme,
                        here.host,
                        here.port,
                    )
                    if attempt == 2 or not same:
                        return Failure("redirect", f"{here} redirects to {target}; set that URL")
                    url = str(target)
                    continue
                if response.status_code != 200:
                    return Failure("http_status", f"{response.url} answers {response.status_code}")
                return await _bounded_body(response, most_bytes)
        return Failure("redirect", f"{self.address} redirects without end")


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
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return Failure("tls", f"{address}: TLS failed: {cause.reason or cause}")
        if isinstance(cause, OSError):
            if cause.errno == errno.ECONNREFUSED:
                return Failure("refused", f"{address}: connection refused; nothing listens there")
            if cause.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                return Failure("unreachable", f"{address}: {cause.strerror}")
            if type(cause).__name__ == "gaierror":
                return Failure("unresolved", f"{address}: the host name cannot be resolved")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        text = str(error)
        if "refused" in text or "All connection attempts failed" in text:
            return Failure("refused", f"{address}: connection refused; nothing listens there")
        return Failure("unreachable", f"{address}: {text}")
    if isinstance(error, (httpx.ReadError, httpx.RemoteProtocolError, httpx.CloseError)):
        return Failure("closed", f"{address}: the connection was closed in mid-answer")
    return Failure("other", f"{address}: {type(error).__name__}: {error}")


def _field(answer: bytes | Failure) -> Mapping[str, object]:
    if isinstance(answer, Failure):
        return {}
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
