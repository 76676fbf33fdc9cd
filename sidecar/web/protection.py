"""Optional protection of the sidecar's own port: who may read, and TLS.

Off by default, since the default address is loopback. Passwords and tokens come from files or the
environment only, are compared in constant time, and never reach a log, a label or an answer.
"""

from __future__ import annotations

import base64
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.settings import Settings, SettingsError, read_secret_file

OPEN_PATHS = frozenset({"/-/healthy", "/-/ready"})
"""What container health checks ask for: it says nothing but that the process lives."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Which `Authorization` headers are accepted (none: anybody may read), and the TLS files."""

    authorizations: frozenset[bytes] = frozenset()
    certificate: Path | None = None
    key: Path | None = None


def protection_of(settings: Settings) -> Protection:
    """What the settings ask for. Raises `SettingsError` with one line that names the variable."""
    accepted = set(_bearer(settings)) | set(_basic(settings))
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if (certificate is None) != (key is None):
        raise SettingsError(
            "SIDECAR_TLS_CERTIFICATE_FILE and SIDECAR_TLS_KEY_FILE: give both or neither"
        )
    if certificate is not None:
        _check_certificate(certificate, key)
    return Protection(frozenset(accepted), certificate, key)


def _bearer(settings: Settings) -> Iterable[bytes]:
    token = settings.secret("web_token")
    if token is not None:
        yield b"Bearer " + token.encode("ascii")


def _basic(settings: Settings) -> Iterable[bytes]:
    """Lines of `user:password`; empty ones and those that begin with # are left out."""
    if settings.web_users_file is None:
        return
    variable = "SIDECAR_WEB_USERS_FILE"
    lines = read_secret_file(variable, settings.web_users_file).splitlines()
    users = [line for line in lines if line.strip() and not line.startswith("#")]
    if not users:
        raise SettingsError(f"{variable}: {settings.web_users_file} names nobody")
    for number, line in enumerate(users, start=1):
        if not line.partition(":")[2]:
            raise SettingsError(f"{variable}: entry {number} is not `user:password`")
        yield b"Basic " + base64.b64encode(line.encode("utf-8"))


def _check_certificate(certificate: Path, key: Path | None) -> None:
    """Fail now and in one line rather than at the first connection."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unusable"
        raise SettingsError(
            f"SIDECAR_TLS_CERTIFICATE_FILE, SIDECAR_TLS_KEY_FILE: {certificate}, {key}: {reason}"
        ) from None


class Authentication:
    """Answers 401 to whoever shows none of the accepted authorizations."""

    def __init__(self, app: ASGIApp, *, authorizations: frozenset[bytes]) -> None:
        self._app = app
        self._authorizations = authorizations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._knows(scope):
            answer = PlainTextResponse(
                "authorization required\n",
                status_code=401,
                headers={"www-authenticate": 'Bearer, Basic realm="vllm-sidecar"'},
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        shown = Headers(scope=scope).get("authorization", "").encode("latin-1", "replace")
        # All are compared, so that the time tells nothing about which one was nearly right.
        matches = [secrets.compare_digest(shown, known) for known in self._authorizations]
        return any(matches)
