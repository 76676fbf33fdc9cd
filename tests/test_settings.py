"""Where settings come from, which of them wins, and that mistakes are named."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sidecar.settings import PREFIX, Settings, SettingsError, Thresholds, load_settings

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.upper().startswith(PREFIX):
            monkeypatch.delenv(variable)


def refusal(**given: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_defaults() -> None:
    settings = load_settings()
    assert settings.vllm_address == "http://127.0.0.1:8000"
    assert (settings.host, settings.port) == ("127.0.0.1", 9130)
    assert settings.poll_period_seconds == 1.0
    assert settings.thresholds == Thresholds()
    assert settings.secret("vllm_api_key") is None


def test_flags_win_over_the_environment_and_it_over_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIDECAR_PORT", "1000")
    monkeypatch.setenv("SIDECAR_HOST", "::")
    settings = load_settings(port=2000, host=None)
    assert (settings.port, settings.host) == (2000, "::")
    assert settings.log_level == "info"


def test_every_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "VLLM_URL": "http://vllm:8000/",
        "VLLM_API_KEY": SECRET,
        "VLLM_API_KEY_FILE": "/run/secrets/key",
        "VLLM_CA_FILE": "/run/ca.pem",
        "WEB_TOKEN": SECRET,
        "WEB_TOKEN_FILE": "/run/secrets/token",
        "WEB_USERS_FILE": "/run/secrets/users",
        "TLS_CERTIFICATE_FILE": "/run/chain.pem",
        "TLS_KEY_FILE": "/run/key.pem",
        "HOST": "0.0.0.0",
        "PORT": "0",
        "GPUS": "0,1",
        "POLL_PERIOD_SECONDS": "2.5",
        "VLLM_TIMEOUT_SECONDS": "3",
        "RECORD": "r.jsonl.gz",
        "VLLM_LOG": "/var/log/vllm.log",
        "VLLM_ARGS": "--max-num-seqs 32",
        "LOG_LEVEL": "debug",
        "THRESHOLDS__IDLE_SECONDS": "7",
    }
    assert {name.partition("__")[0].lower() for name in given} == set(Settings.model_fields)
    for name, value in given.items():
        monkeypatch.setenv(PREFIX + name, value)
    settings = load_settings()
    untouched = {
        name
        for name, field in Settings.model_fields.items()
        if getattr(settings, name) == field.get_default(call_default_factory=True)
    }
    assert untouched == set()


@pytest.mark.parametrize("name", Thresholds.model_fields)
def test_every_threshold_can_come_from_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SIDECAR_THRESHOLDS__{name.upper()}", "0.123")
    thresholds = load_settings().thresholds
    assert getattr(thresholds, name) == 0.123
    assert thresholds.model_copy(update={name: getattr(Thresholds(), name)}) == Thresholds()


@pytest.mark.parametrize(
    "variable", ["RECORD", "VLLM_API_KEY", "VLLM_API_KEY_FILE", "PORT", "LOG_LEVEL", "VLLM_URL"]
)
def test_an_empty_variable_sets_nothing(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass `${NAME:-}`."""
    monkeypatch.setenv(PREFIX + variable, "")
    assert load_settings() == Settings()
    assert load_settings().secret("vllm_api_key") is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SIDECAR_PROT", "9130", "SIDECAR_PROT: no such setting"),
        ("SIDECAR_THRESHOLDS__IDEL_SECONDS", "1", "SIDECAR_THRESHOLDS__IDEL_SECONDS: no such"),
        ("SIDECAR_THRESHOLDS_IDLE_SECONDS", "1", "SIDECAR_THRESHOLDS_IDLE_SECONDS: no such"),
        ("SIDECAR_PORT__X", "1", "SIDECAR_PORT__X: no such"),
        ("SIDECAR_", "1", "SIDECAR_: no such"),
        ("SIDECAR_THRESHOLDS__IDLE_SECONDS", "0", "SIDECAR_THRESHOLDS__IDLE_SECONDS: input should"),
        ("SIDECAR_THRESHOLDS__KV_SATURATED_RATIO", "95", "SIDECAR_THRESHOLDS__KV_SATURATED_RATIO:"),
        ("SIDECAR_THRESHOLDS", "junk", "SIDECAR_THRESHOLDS: not a JSON object"),
        ("SIDECAR_THRESHOLDS", "[1]", "SIDECAR_THRESHOLDS"),
        ("SIDECAR_THRESHOLDS", '{"idel_seconds": 1}', "SIDECAR_THRESHOLDS__IDEL_SECONDS:"),
        ("SIDECAR_PORT", "high", "SIDECAR_PORT: input should be a valid integer"),
        ("SIDECAR_PORT", "65536", "SIDECAR_PORT: input should be less than or equal to 65535"),
        ("SIDECAR_PORT", "-1", "SIDECAR_PORT: input should be greater than or equal to 0"),
        ("SIDECAR_POLL_PERIOD_SECONDS", "0.01", "SIDECAR_POLL_PERIOD_SECONDS: input should be"),
        ("SIDECAR_POLL_PERIOD_SECONDS", "nan", "SIDECAR_POLL_PERIOD_SECONDS: input should be"),
        ("SIDECAR_VLLM_TIMEOUT_SECONDS", "0", "SIDECAR_VLLM_TIMEOUT_SECONDS: input should be"),
        ("SIDECAR_LOG_LEVEL", "loud", "SIDECAR_LOG_LEVEL: input should be 'debug'"),
        ("SIDECAR_VLLM_URL", "vllm:8000", "SIDECAR_VLLM_URL: URL scheme should be"),
        ("SIDECAR_VLLM_URL", "ftp://vllm", "SIDECAR_VLLM_URL: URL scheme should be"),
        ("SIDECAR_VLLM_URL", "http://", "SIDECAR_VLLM_URL: input should be a valid URL"),
        ("SIDECAR_VLLM_URL", "http://vllm:99999", "SIDECAR_VLLM_URL: input should be a valid URL"),
    ],
)
def test_a_mistake_in_the_environment_is_named(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal().startswith(message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"port": 70_000}, "--port: input should be less than or equal to 65535"),
        ({"poll_period_seconds": 0.01}, "--poll-period-seconds: input should be greater"),
        ({"poll_period_seconds": 61}, "--poll-period-seconds: input should be less"),
        ({"log_level": "loud"}, "--log-level: input should be"),
        ({"vllm_url": "localhost"}, "--vllm-url: input should be a valid URL"),
    ],
)
def test_a_mistake_in_a_flag_names_the_flag(given: dict[str, object], message: str) -> None:
    assert refusal(**given).startswith(message)


def test_a_flag_is_not_blamed_for_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_PORT", "70000")
    assert refusal(host="0.0.0.0").startswith("SIDECAR_PORT: ")
    assert load_settings(port=1).port == 1, "the flag wins, and the variable does not matter"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://vllm:8000", "http://vllm:8000"),
        ("http://vllm:8000/", "http://vllm:8000"),
        ("http://vllm:8000/metrics", "http://vllm:8000"),
        ("http://vllm:8000/metrics/", "http://vllm:8000"),
        ("https://host/behind/a/proxy/", "https://host/behind/a/proxy"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_the_address_of_the_server(url: str, address: str) -> None:
    assert load_settings(vllm_url=url).vllm_address == address


# ---------------------------------------------------------------------------------------------
# Secrets.


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@vllm:8000", f"http://{SECRET}@vllm:8000"])
def test_a_url_with_credentials_is_refused_without_repeating_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(vllm_url=url)
    assert message.startswith("--vllm-url: must not hold a user name or password")
    assert SECRET not in message
    monkeypatch.setenv("SIDECAR_VLLM_URL", url)
    assert SECRET not in refusal()


def test_a_url_that_is_wrong_in_another_way_is_not_repeated_either() -> None:
    assert SECRET not in refusal(vllm_url=f"http://user:{SECRET}@vllm:99999")


def test_the_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY", SECRET)
    assert load_settings().secret("vllm_api_key") == SECRET


def test_the_file_wins_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {SECRET}\n")
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY", "another")
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY_FILE", str(file))
    assert load_settings().secret("vllm_api_key") == SECRET


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read .*No such file or directory"),
        (b"\xff\xfe", "cannot read .*codec can't decode"),
        (b"", "a key is one line of printable ASCII characters"),
        (b" \n", "a key is one line of printable ASCII characters"),
        (f"{SECRET}\nsecond line".encode(), "a key is one line of printable ASCII characters"),
        (f"{SECRET}-ключ".encode(), "a key is one line of printable ASCII characters"),
    ],
)
def test_a_key_file_that_cannot_be_used(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY_FILE", str(file))
    with pytest.raises(SettingsError, match=rf"^SIDECAR_VLLM_API_KEY_FILE: {reason}") as caught:
        load_settings().secret("vllm_api_key")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["two\nlines", "ключ", " "])
def test_a_key_that_cannot_be_sent(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY", key)
    with pytest.raises(SettingsError, match=r"^SIDECAR_VLLM_API_KEY: a key is one line"):
        load_settings().secret("vllm_api_key")


def test_the_key_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SIDECAR_VLLM_API_KEY", SECRET)
    settings = load_settings()
    logging.getLogger("sidecar").warning("%s %r", settings, settings)
    assert "**********" in caplog.text
    for shown in (str(settings), repr(settings), caplog.text, settings.model_dump_json()):
        assert SECRET not in shown


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        load_settings().thresholds.idle_seconds = 1  # type: ignore[misc]


@pytest.mark.parametrize("model", [Settings, Thresholds])
def test_every_setting_is_described(model: type[Settings] | type[Thresholds]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
