"""The endpoints: what they answer before the first poll, after it, and when vLLM is gone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from frames import REFUSED, UNIX, busy_frame, page, play
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sidecar.exposition import NAMESPACE, Board, families
from sidecar.model import Advice, Failure, Frame, Page, Verdict
from sidecar.web.application import build_application
from sidecar.web.page import render_page

ENDPOINTS = ("/metrics", "/", "/-/healthy", "/-/ready", "/api/v1/snapshot", "/api/v1/diagnosis")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


async def ask(
    path: str, frame: Frame | None, *, method: str = "GET", accept: str | None = None
) -> httpx.Response:
    board = Board()
    if frame is not None:
        board.publish(frame)
    return await ask_board(path, board, method=method, accept=accept)


async def ask_board(
    path: str, board: Board, *, method: str = "GET", accept: str | None = None
) -> httpx.Response:
    transport = httpx.ASGITransport(app=build_application(board))
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar:9130") as client:
        return await client.request(method, path, headers={"Accept": accept} if accept else None)


def read_open_metrics(text: str) -> list[Metric]:
    """Raises ValueError for whatever the standard does not allow."""
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------------------------------------
# /metrics.


@pytest.mark.parametrize("accept", [None, "*/*", "text/html", "text/plain; version=0.0.4"])
async def test_metrics_are_plain_text_unless_asked_otherwise(accept: str | None) -> None:
    answer = await ask("/metrics", busy_frame(), accept=accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert f"{NAMESPACE}kv_cache_usage_ratio" in names


@pytest.mark.parametrize("accept", [OPENMETRICS, PROMETHEUS_2, PROMETHEUS_3])
async def test_metrics_are_open_metrics_on_request(accept: str) -> None:
    answer = await ask("/metrics", busy_frame(engines=2), accept=accept)
    assert answer.headers["content-type"].startswith(
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert answer.text.endswith("# EOF\n")
    found = {family.name: family for family in read_open_metrics(answer.text)}
    assert found[f"{NAMESPACE}kv_cache_usage_ratio"].type == "gauge"
    assert found[f"{NAMESPACE}poll_overruns"].type == "counter"
    assert any(family.type == "histogram" for family in found.values())


@pytest.mark.parametrize("model_name", ['a"b', "a\\b", "Größe", "a{b}"])
async def test_open_metrics_with_odd_names(model_name: str) -> None:
    written = model_name.replace("\\", r"\\").replace('"', r"\"")
    answer = await ask("/metrics", busy_frame(written), accept=OPENMETRICS)
    names = {
        sample.labels.get("model_name")
        for family in read_open_metrics(answer.text)
        for sample in family.samples
    }
    assert model_name in names


async def test_metrics_before_the_first_poll() -> None:
    answer = await ask("/metrics", None)
    assert answer.status_code == 200
    assert NAMESPACE not in answer.text
    assert "process_cpu_seconds_total" in answer.text


async def test_ten_readers_cost_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Frame] = []

    def counting(frame: Frame) -> Iterator[Metric]:
        encoded.append(frame)
        return families(frame)

    monkeypatch.setattr("sidecar.exposition.families", counting)
    board = Board()
    board.publish(busy_frame())
    answers = {(await ask_board("/metrics", board)).content for _ in range(10)}
    assert len(answers) == 1
    assert len(encoded) == 1
    await ask_board("/metrics", board, accept=OPENMETRICS)
    assert len(encoded) == 2


# ---------------------------------------------------------------------------------------------
# Health: of the process, never of what it watches.


@pytest.mark.parametrize("answer", [REFUSED, Failure("timeout", "late"), page()])
async def test_health_does_not_depend_on_vllm(answer: Failure) -> None:
    (frame,) = play(answer, gpus=Failure("gpu_lost", "fallen off the bus"))
    for path in ("/-/healthy", "/-/ready"):
        assert (await ask(path, frame)).status_code == 200


async def test_it_is_alive_before_the_first_poll_and_ready_after_it() -> None:
    assert (await ask("/-/healthy", None)).status_code == 200
    early = await ask("/-/ready", None)
    assert (early.status_code, early.text) == (503, "no poll yet\n")
    ready = await ask("/-/ready", play(REFUSED)[0])
    assert (ready.status_code, ready.text) == (200, "ready\n")


# ---------------------------------------------------------------------------------------------
# /api/v1/snapshot.


async def test_the_snapshot_before_the_first_poll() -> None:
    answer = await ask("/api/v1/snapshot", None)
    assert answer.status_code == 503
    assert answer.json() == {"error": "no poll yet"}


async def test_the_snapshot_of_a_busy_server() -> None:
    body = (await ask("/api/v1/snapshot", busy_frame(engines=2))).json()
    assert set(body) == {"at", "vllm", "gpus", "server", "indicators", "verdicts", "unavailable"}
    assert body["at"] == UNIX + 29
    assert body["vllm"] == {"version": "0.33.0", "max_model_len": 4096, "failure": None}
    assert [(gpu["gpu"], gpu["uuid"], gpu["error"]) for gpu in body["gpus"]] == [
        ("0", "GPU-1f2e", None)
    ]
    assert body["server"] == {
        "requests_running": 6.0,
        "requests_waiting": 2.0,
        "preemptions_total": body["server"]["preemptions_total"],
        "kv_cache_usage_ratio_mean": 0.25,
        "kv_cache_usage_ratio_max": 0.25,
    }
    assert body["server"]["preemptions_total"] > 0
    running = body["indicators"]["requests_running"]
    assert running[0] == {"labels": {"model_name": "m", "engine": "0"}, "value": 3.0}
    for item in body["unavailable"]:
        assert set(item) == {"indicator", "labels", "reason"}


async def test_the_snapshot_without_vllm_and_gpus() -> None:
    (frame,) = play(REFUSED, gpus=None)
    body = (await ask("/api/v1/snapshot", frame)).json()
    assert body["vllm"]["failure"] == {"reason": "refused", "detail": REFUSED.detail}
    assert body["gpus"] is None
    assert set(body["server"].values()) == {None}
    assert "requests_running" not in body["indicators"]


async def test_the_snapshot_is_strict_json() -> None:
    """Python would read and write NaN and Infinity, which are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for frame in play(page(at=0), REFUSED, *(page(at=at) for at in range(20))):
        answer = await ask("/api/v1/snapshot", frame)
        json.loads(answer.text, parse_constant=refuse)


# ---------------------------------------------------------------------------------------------
# The page.

SCRIPT = "<script>alert(1)</script>"


async def test_the_page_escapes_what_others_wrote() -> None:
    named = await ask("/", busy_frame(SCRIPT))
    assert "&lt;script&gt;" in named.text
    (failed,) = play(Failure("redirect", f"redirects to {SCRIPT}"))
    refused = await ask("/", failed)
    assert "redirects to &lt;script&gt;" in refused.text
    for answer in (named, refused):
        assert "<script" not in answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (None, "No poll yet."),
        (play(REFUSED)[-1], "vLLM does not answer: http://vllm:8000: connection refused"),
        (play(Failure("refused"))[-1], "vLLM does not answer: refused"),
        (play(page())[-1], "<td>KV cache in use</td><td>m, 0</td><td>25.0%</td>"),
        (busy_frame(), "<td>2.00</td>"),
    ],
)
def test_the_page_says_what_is_known(frame: Frame | None, text: str) -> None:
    assert text in render_page(frame)


def test_the_page_of_something_that_is_no_vllm() -> None:
    (frame,) = play(Page("up 1\n", 0.01), gpus=None)
    assert "its page holds no engine series" in render_page(frame)


async def test_every_link_of_the_page_leads_somewhere() -> None:
    frame = busy_frame()
    links = re.findall(r'href="([^"]+)"', render_page(frame))
    assert len(links) >= 4
    for link in links:
        assert (await ask(link, frame)).status_code == 200


# ---------------------------------------------------------------------------------------------
# Nothing else.


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(path: str, method: str) -> None:
    assert (await ask(path, busy_frame(), method=method)).status_code == 405


@pytest.mark.parametrize(
    "path", ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect", "/-/reload", "/api/v1"]
)
async def test_there_is_nothing_else(path: str) -> None:
    assert (await ask(path, busy_frame())).status_code == 404


async def test_the_page_says_what_is_concluded_and_escapes_it() -> None:
    verdict = Verdict(
        "kv_exhausted",
        "critical",
        "high",
        "<b>full</b>",
        advice=(Advice("--watermark", "0.3", "half of the <preemptions>", "because"),),
    )
    body = (await ask("/", replace(busy_frame(), verdicts=(verdict,)))).text
    assert "<b>critical</b> kv_exhausted: &lt;b&gt;full&lt;/b&gt;" in body
    assert "First: <code>--watermark 0.3</code>, half of the &lt;preemptions&gt;" in body


async def test_the_diagnosis_of_a_busy_server() -> None:
    body = (await ask("/api/v1/diagnosis", busy_frame())).json()
    assert set(body) == {"at", "verdicts", "changes"}
    assert (await ask("/api/v1/diagnosis", None)).status_code == 503
