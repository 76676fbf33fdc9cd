"""The sidecar's own port, protected: who may read, TLS, and that no secret gets out."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from command import refuse, running
from frames import busy_frame

from sidecar.exposition import Board
from sidecar.settings import Settings, SettingsError, load_settings
from sidecar.web.application import build_application
from sidecar.web.protection import protection_of

TOKEN = "a-token-nobody-should-see"
PASSWORD = "a-password-nobody-should-see"


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(f"# who may read\nprometheus:{PASSWORD}\n\nada:other\n", "utf-8")
    return path


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def ask(settings: Settings, path: str, authorization: str | None) -> httpx.Response:
    board = Board()
    board.publish(busy_frame())
    application = build_application(board, protection_of(settings))
    transport = httpx.ASGITransport(app=application)
    headers = {} if authorization is None else {"Authorization": authorization}
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"bearer {TOKEN}", 401),
        (TOKEN, 401),
        (basic("prometheus", "wrong"), 401),
        (basic("nobody", PASSWORD), 401),
        (f"Bearer {TOKEN}", 200),
        (basic("prometheus", PASSWORD), 200),
        (basic("ada", "other"), 200),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/", "/api/v1/snapshot", "/api/v1/diagnosis"])
async def test_who_may_read(
    path: str, authorization: str | None, status: int, users_file: Path
) -> None:
    settings = load_settings(web_token=TOKEN, web_users_file=users_file)
    answer = await ask(settings, path, authorization)
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) == (status == 401)
    assert TOKEN not in answer.text
    assert PASSWORD not in answer.text


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
async def test_health_checks_need_no_secret(path: str) -> None:
    assert (await ask(load_settings(web_token=TOKEN), path, None)).status_code == 200


async def test_without_protection_anybody_on_this_machine_may_read() -> None:
    assert (await ask(load_settings(), "/metrics", None)).status_code == 200


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n", "utf-8")
    found = protection_of(load_settings(web_token_file=path))
    assert found.authorizations == {f"Bearer {TOKEN}".encode()}


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of our own for a name that is not loopback's."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=sidecar.example"
    files = ["-keyout", str(key), "-out", str(chain)]
    subprocess.run([*made.split(), *files], check=True, capture_output=True)
    return chain, key


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"web_token_file": "nowhere"}, "SIDECAR_WEB_TOKEN_FILE: cannot read nowhere"),
        ({"web_users_file": "nowhere"}, "SIDECAR_WEB_USERS_FILE: cannot read nowhere"),
        ({"tls_key_file": "key"}, "give both or neither"),
        ({"tls_certificate_file": "a", "tls_key_file": "b"}, "SIDECAR_TLS_CERTIFICATE_FILE"),
        ({"web_token": "two\nlines"}, "SIDECAR_WEB_TOKEN: a key is one line"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(fields: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        protection_of(load_settings(**fields))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "# nobody\n", "prometheus\n", "prometheus:\n"])
def test_users_without_passwords_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match="SIDECAR_WEB_USERS_FILE"):
        protection_of(load_settings(web_users_file=path))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="Debian's `openssl` is not installed")
async def test_a_running_sidecar_speaks_tls_and_keeps_its_secrets(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    environment = {
        "SIDECAR_TLS_CERTIFICATE_FILE": str(chain),
        "SIDECAR_TLS_KEY_FILE": str(key),
        "SIDECAR_WEB_TOKEN": TOKEN,
        "SIDECAR_LOG_LEVEL": "debug",
    }
    arguments = ("run", "--port", "0", "--gpus", "none", "--vllm-url", "http://127.0.0.1:1")
    with running(*arguments, environment=environment) as command:
        address = await asyncio.to_thread(command.address)
        assert address.startswith("https://")
        trust = ssl.create_default_context(cafile=str(chain))
        trust.check_hostname = False
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.get(f"{address}/metrics")).status_code == 401
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = await client.get(f"{address}/metrics", headers=headers)
        assert answer.status_code == 200
        assert TOKEN not in answer.text
    assert not any(TOKEN in line for line in command.lines)


def test_help_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from command import invoke

    monkeypatch.setenv("SIDECAR_WEB_TOKEN", TOKEN)
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY", PASSWORD)
    shown = invoke("run", "--help").stdout
    assert TOKEN not in shown
    assert PASSWORD not in shown
    assert TOKEN not in repr(load_settings())
    logging.getLogger(__name__).debug("%s", load_settings())


def test_a_private_authority_that_cannot_be_read_is_refused() -> None:
    said = refuse("record", "--out", "r.jsonl.gz", SIDECAR_VLLM_CA_FILE="/nowhere")
    assert said.startswith("SIDECAR_VLLM_CA_FILE: /nowhere")
