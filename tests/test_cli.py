"""The command line: what it accepts, and that every refusal is one line that helps."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import clean_environment, invoke, refuse
from fault_server import FaultServer, silent, status

from sidecar import __version__
from sidecar.settings import PREFIX

RECORDINGS = Path(__file__).parent / "captures" / "recordings"
STORM = RECORDINGS / "preempt-storm.jsonl.gz"
SHORT = RECORDINGS / "fail-no-kv.jsonl.gz"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(PREFIX):
            monkeypatch.delenv(variable)


# ---------------------------------------------------------------------------------------------
# Help.


def test_version() -> None:
    assert invoke("--version").stdout == f"vllm-sidecar {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    outcome = invoke()
    assert "Usage: " in outcome.stdout + outcome.stderr
    for command in ("run", "demo", "record", "replay", "healthcheck", "webhook"):
        assert f"  {command} " in invoke("--help").stdout


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("run", "--vllm-url --host --port --gpus --poll-period-seconds --record --log-level"),
        ("demo", "--scenario --host --port --simulator-host --simulator-port --log-level"),
        ("record", "--out --vllm-url --gpus --poll-period-seconds --seconds --log-level"),
        ("replay", "--json --serve --speed --host --port"),
        ("webhook", "--host --port"),
        ("healthcheck", "--url --timeout-seconds"),
    ],
)
def test_help_of_each_command(command: str, flags: str) -> None:
    text = invoke(command, "--help").stdout
    assert set(flags.split()) <= set(re.findall(r"--[a-z-]+", text))
    assert "Traceback" not in text


def test_help_does_not_load_what_only_the_work_needs() -> None:
    code = (
        "import sys; from sidecar.cli import application\n"
        "try: application(['run', '--help'])\n"
        "finally: print(*{'fastapi', 'uvicorn', 'httpx', 'sidecar.model'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--nonsense"],
        ["nonsense"],
        ["replay"],
        ["record"],
        ["run", "--port", "high"],
        ["record", "--out", "x", "--seconds", "0"],
        ["webhook", "--port", "70000"],
        ["demo", "--simulator-port", "-1"],
        ["healthcheck", "--timeout-seconds", "0"],
    ],
)
def test_bad_usage(arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 2
    assert "Error: " in outcome.stderr
    assert outcome.stdout == ""


# ---------------------------------------------------------------------------------------------
# Settings.

UNWRITABLE = ("--record", "/missing/r.gz")
"""Were a mistake not refused, this would be, so that no test starts to serve."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vllm-url", "vllm:8000"], "--vllm-url: URL scheme should be 'http' or 'https'"),
        (["--vllm-url", "http://"], "--vllm-url: input should be a valid URL"),
        (["--port", "65536"], "--port: input should be less than or equal to 65535"),
        (["--port", "-1"], "--port: input should be greater than or equal to 0"),
        (["--poll-period-seconds", "0.01"], "--poll-period-seconds: input should be greater"),
        (["--log-level", "loud"], "--log-level: input should be 'debug', 'info'"),
        (["--gpus", "cuda:0"], "--gpus (SIDECAR_GPUS): 'cuda:0' is no GPU; use `all`, `none`"),
        (["--host", "no-such-host.invalid"], "--host no-such-host.invalid --port 9130: cannot"),
        (["--host", "x" * 70 + ".org"], "--host xxx"),
        (["--port", "0"], "/missing/r.gz: cannot be written: No such file or directory"),
    ],
)
def test_flags_that_run_refuses(arguments: list[str], message: str) -> None:
    assert refuse("run", *UNWRITABLE, *arguments).startswith(message)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SIDECAR_PROT", "9130"),
        ("SIDECAR_PORT", "70000"),
        ("SIDECAR_THRESHOLDS__IDEL_SECONDS", "1"),
        ("SIDECAR_THRESHOLDS__IDLE_SECONDS", "-1"),
        ("SIDECAR_THRESHOLDS", "junk"),
        ("SIDECAR_VLLM_API_KEY_FILE", "/missing/key"),
        ("SIDECAR_VLLM_API_KEY", "two\nlines"),
    ],
)
def test_variables_that_run_refuses(variable: str, value: str) -> None:
    assert refuse("run", *UNWRITABLE, **{variable: value}).startswith(f"{variable}: ")


@pytest.mark.parametrize("command", [["run"], ["record", "--out", "r.gz"]])
def test_credentials_in_an_address_are_refused_and_not_repeated(command: list[str]) -> None:
    message = refuse(*command, "--vllm-url", "http://user:sk-secret@vllm:8000")
    assert message.startswith("--vllm-url: must not hold a user name or password")
    assert "secret" not in message


def test_an_unknown_scenario_names_those_that_exist() -> None:
    message = refuse("demo", "--scenario", "apocalypse")
    assert message.startswith("--scenario: ")
    assert "preemption-storm" in message


def test_record_never_overwrites(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl.gz"
    out.write_text("precious")
    assert refuse("record", "--out", str(out)) == f"{out}: already exists; choose another file"
    assert out.read_text() == "precious"


# ---------------------------------------------------------------------------------------------
# Replay.


def damaged(path: Path, name: str) -> Path:
    lines = gzip.decompress(SHORT.read_bytes()).splitlines(keepends=True)
    if name == "garbage":
        lines.insert(5, b"garbage\n")
    elif name == "version":
        lines[0] = lines[0].replace(b'"version":1', b'"version":7')
    elif name == "empty":
        lines = []
    content = gzip.compress(b"".join(lines))
    if name == "truncated":
        whole = gzip.compress(b"".join(lines), compresslevel=0)
        content = whole[: len(whole) // 2]
    elif name == "plain":
        content = b"".join(lines)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain", "not gzip, so not a recording of vllm-sidecar"),
        ("version", "line 1: format version 7; only 1 is read"),
        ("empty", "is empty"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"], ["--serve", "--port", "0"]])
def test_files_that_replay_refuses(
    name: str, message: str, flags: list[str], tmp_path: Path
) -> None:
    path = damaged(tmp_path / "r.gz", name)
    assert refuse("replay", str(path), *flags) == f"{path}: {message}"


def test_replay_of_what_is_not_there(tmp_path: Path) -> None:
    assert refuse("replay", str(tmp_path / "gone")) == f"{tmp_path}/gone: no such file"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("garbage", "line 6: not JSON (Expecting value)"),
        ("truncated", "ends in the middle, after line "),
    ],
)
def test_what_precedes_the_damage_is_played(name: str, complaint: str, tmp_path: Path) -> None:
    path = damaged(tmp_path / "r.gz", name)
    as_json = invoke("replay", str(path), "--json")
    assert as_json.status == 2
    assert len(as_json.stdout.splitlines()) >= 4
    assert all(json.loads(line)["at"] for line in as_json.stdout.splitlines())
    summary = invoke("replay", str(path))
    assert summary.status == 2
    assert len(summary.stdout.splitlines()) == 3, "a header of two lines, and the last poll"
    for outcome in (as_json, summary):
        assert outcome.stderr.startswith(f"vllm-sidecar: {path}: {complaint}")
        assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf", "fast", ""])
def test_speeds_that_make_no_sense(speed: str) -> None:
    message = refuse("replay", str(SHORT), "--speed", speed)
    assert message == f"--speed: {speed!r} is neither a positive number nor max"


def test_replay_prints_a_line_for_each_phase() -> None:
    outcome = invoke("replay", str(STORM), "--speed", "max")
    assert outcome.status == 0
    title, columns, *phases = outcome.stdout.splitlines()
    assert title == "preempt-storm, vLLM 0.25.0"
    assert columns.split()[:2] == ["seconds", "phase"]
    assert len(phases) >= 3
    storm = next(line.split() for line in phases if "c128" in line)
    assert float(storm[2]) > 0.9, "the KV cache is full"


def test_replay_prints_json() -> None:
    lines = invoke("replay", str(STORM), "--json").stdout.splitlines()
    frames = [json.loads(line) for line in lines]
    assert len(frames) == len(gzip.decompress(STORM.read_bytes()).splitlines()) - 1
    assert set(frames[0]) == {"at", "phase", "indicators", "verdicts"}
    assert not any("source_up" in frame["indicators"] for frame in frames)
    last = max(frames, key=lambda frame: len(frame["indicators"]))
    assert set(last["indicators"]["requests_running"][0]) == {"labels", "value"}


def test_replay_takes_as_long_as_the_speed_says() -> None:
    code = (
        "import time; slept = []; time.sleep = slept.append\n"
        "from sidecar.cli import application\n"
        f"try: application(['replay', {str(SHORT)!r}, '--speed', '10'])\n"
        "finally: print(sum(slept))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    polls = invoke("replay", str(SHORT), "--json").stdout.splitlines()
    lasted = json.loads(polls[-1])["at"] - json.loads(polls[0])["at"]
    assert float(found.stdout.splitlines()[-1]) == pytest.approx(lasted / 10)


def test_a_reader_that_has_seen_enough_is_no_trouble() -> None:
    script = f"set -o pipefail; {sys.executable} -m sidecar replay {STORM} --json | head -1"
    found = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=clean_environment(), check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert len(found.stdout.splitlines()) == 1


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_reader_that_has_gone_is_no_trouble(flags: list[str]) -> None:
    """Also where everything is still in the buffer when the command ends."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "sidecar", "replay", str(SHORT), *flags],
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            check=False,
        )
    finally:
        os.close(write_end)
    assert (found.returncode, found.stderr) == (0, b"")


# ---------------------------------------------------------------------------------------------
# Healthcheck.


@pytest.mark.parametrize(
    ("code", "exit_status", "said"), [(200, 0, "healthy\n"), (503, 1, "answers 503\n")]
)
async def test_healthcheck_of_a_server(code: int, exit_status: int, said: str) -> None:
    server = FaultServer({"/-/healthy": status(code, "healthy\n")})
    await server.start()
    try:
        outcome = await asyncio.to_thread(invoke, "healthcheck", "--url", f"{server.url}/")
        port = server.url.rpartition(":")[2]
        configured = await asyncio.to_thread(
            invoke, "healthcheck", SIDECAR_PORT=port, SIDECAR_HOST="0.0.0.0"
        )
    finally:
        await server.stop()
    for each in (outcome, configured):
        assert each.status == exit_status
        assert (each.stdout + each.stderr).endswith(said)


async def test_healthcheck_waits_no_longer_than_told() -> None:
    server = FaultServer({"/-/healthy": silent()})
    await server.start()
    try:
        outcome = await asyncio.to_thread(
            invoke, "healthcheck", "--url", server.url, "--timeout-seconds", "0.2"
        )
    finally:
        await server.stop()
    assert outcome.status == 1
    assert outcome.stderr == f"vllm-sidecar: no sidecar answers at {server.url}: ReadTimeout\n"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://[", "nonsense", "ftp://h", ""]
)
def test_healthcheck_of_nothing(url: str) -> None:
    outcome = invoke("healthcheck", "--url", url)
    assert outcome.status == 1
    assert outcome.stderr.startswith(f"vllm-sidecar: no sidecar answers at {url}: ")
    assert outcome.stderr.count("\n") == 1


def test_healthcheck_of_an_ipv6_address() -> None:
    outcome = invoke("healthcheck", SIDECAR_HOST="::", SIDECAR_PORT="1")
    assert outcome.stderr.startswith("vllm-sidecar: no sidecar answers at http://[::1]:1: Connect")
