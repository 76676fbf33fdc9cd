"""`diagnose` of a server that is there, is not, or is another program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fault_server import Behaviour, page, raw, serving, status

from sidecar import live_diagnosis
from sidecar.live_diagnosis import run_live_diagnosis
from sidecar.settings import load_settings

PAGES = Path(__file__).parent / "captures" / "pages"
IDLE = (PAGES / "vllm-0.32.0-cpu-idle.prom").read_text("utf-8")
MAIL = raw(b"220 mail\r\n\r\n")


async def diagnose(address: str, *, as_json: bool = False) -> int:
    settings = load_settings(vllm_url=address, gpus="none", poll_period_seconds=0.2)
    return await run_live_diagnosis(settings, None, as_json=as_json, watch=False)


@pytest.fixture(autouse=True)
def a_short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # As long as a page must have failed before the server is called blind, and a poll more.
    monkeypatch.setattr(live_diagnosis, "LOOK_SECONDS", 4.0)


@pytest.mark.parametrize(
    ("metrics", "health", "exit_status", "code"),
    [
        pytest.param(page(IDLE), page(""), 0, "idle", id="a good page"),
        pytest.param(status(500), page(""), 1, "vllm_blind", id="an error"),
        pytest.param(status(502), status(502), 3, "starting", id="a proxy before nobody"),
        pytest.param(MAIL, MAIL, 1, "vllm_blind", id="another program"),
    ],
)
async def test_what_answers_is_judged(
    metrics: Behaviour,
    health: Behaviour,
    exit_status: int,
    code: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(metrics=metrics, health=health) as server:
        assert await diagnose(server.url, as_json=True) == exit_status
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [verdict["code"] for verdict in verdicts] == [code]


async def test_nobody_there_is_no_good_news(capsys: pytest.CaptureFixture[str]) -> None:
    assert await diagnose("http://127.0.0.1:1") == 3
    shown = capsys.readouterr().out
    assert "starting" in shown
    assert "the address may be wrong" in shown
