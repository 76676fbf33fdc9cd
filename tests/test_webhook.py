"""The receiver of Alertmanager's messages: what it prints, and what it refuses."""

import json
from typing import Any

import httpx
import pytest

from sidecar.webhook import (
    MAX_ALERTS,
    MAX_BODY_BYTES,
    MAX_DESCRIPTION,
    MAX_HEADLINE,
    build_webhook_application,
)

SPIKE = {
    "status": "firing",
    "labels": {
        "alertname": "VllmPreemptionSpike",
        "severity": "warning",
        "instance": "vllm:8000",
        "job": "vllm-sidecar",
        "model_name": "llama",
        "engine": "0",
    },
    "annotations": {
        "summary": "The KV cache is full and running requests are being preempted.",
        "description": "Engine 0 of llama preempts 1.5 requests a second.",
        "runbook_url": "https://example.org/runbooks.md#vllmpreemptionspike",
    },
    "startsAt": "2026-11-29T21:00:00Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus:9090/graph",
    "fingerprint": "0123456789abcdef",
}


def message(*alerts: dict[str, Any], **fields: object) -> dict[str, Any]:
    """A message as Alertmanager sends it."""
    return {
        "version": "4",
        "groupKey": '{}:{alertname="VllmPreemptionSpike"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "webhook",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "alerts": list(alerts),
    } | fields


async def post(content: bytes | str | dict[str, Any]) -> tuple[httpx.Response, list[str]]:
    """Send a body, or a message as JSON; what was answered and what was printed."""
    printed: list[str] = []
    transport = httpx.ASGITransport(app=build_webhook_application(printed.append))
    body = json.dumps(content) if isinstance(content, dict) else content
    async with httpx.AsyncClient(transport=transport, base_url="http://webhook") as client:
        return await client.post("/", content=body), printed


async def test_prints_a_headline_and_the_description() -> None:
    response, printed = await post(message(SPIKE))

    assert response.status_code == 200
    assert printed == [
        "FIRING warning VllmPreemptionSpike instance=vllm:8000 model=llama engine=0: "
        "The KV cache is full and running requests are being preempted.",
        "    Engine 0 of llama preempts 1.5 requests a second.",
    ]


async def test_a_resolved_alert_brings_no_advice() -> None:
    _, printed = await post(message(SPIKE | {"status": "resolved"}))

    assert len(printed) == 1
    assert printed[0].startswith("RESOLVED warning VllmPreemptionSpike ")


async def test_an_alert_without_any_of_the_usual_labels() -> None:
    _, printed = await post(message({"status": "firing", "labels": {"gpu": "1"}}))

    assert printed == ["FIRING (no name) gpu=1"]


async def test_an_empty_message_prints_nothing() -> None:
    response, printed = await post(message())

    assert response.status_code == 200
    assert printed == []


async def test_says_how_many_alerts_it_does_not_show() -> None:
    alert = {"status": "firing", "labels": {"alertname": "A"}}

    _, printed = await post(message(*[alert] * (MAX_ALERTS + 2), truncatedAlerts=3))

    assert len(printed) == MAX_ALERTS + 1
    assert printed[-1] == "... and 5 more alerts in the same message"


async def test_lines_are_bounded_and_hold_only_printable_text() -> None:
    annotations = {
        "summary": "one\r\ntwo\x1b[2J\u202ethree\u2028four" + "x" * 10_000,
        "description": "word " * 10_000,
    }

    _, printed = await post(message(SPIKE | {"annotations": annotations}))

    headline, description = printed
    assert "one two [2J three four" in headline
    assert len(headline) == MAX_HEADLINE
    assert headline.endswith("x…")
    assert len(description.strip()) <= MAX_DESCRIPTION
    assert all(line.isprintable() for line in printed)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (rb'{"version": "\ud800"}', "Invalid JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"{}", "version: Field required"),
        (json.dumps(message(version="3")), "version: "),
        (json.dumps(message() | {"alerts": None}), "alerts: "),
        (json.dumps(message({"status": "firing"})), "alerts.0.labels: Field required"),
        (json.dumps(message(SPIKE, {**SPIKE, "status": "odd"})), "alerts.1.status: "),
        (json.dumps(message({**SPIKE, "labels": {"gpu": 1}})), "alerts.0.labels.gpu: "),
        (json.dumps(message({**SPIKE, "labels": {"a\nb": 1}})), "alerts.0.labels.a b: "),
    ],
)
async def test_refuses_what_is_no_message_with_one_line(body: bytes | str, problem: str) -> None:
    response, printed = await post(body)

    assert response.status_code == 400
    assert response.text.startswith("not an Alertmanager message of version 4: ")
    assert problem in response.text
    assert response.text.endswith("\n")
    assert len(response.text.splitlines()) == 1
    assert printed == []


async def test_refuses_a_body_that_is_too_large() -> None:
    response, printed = await post(b" " * (MAX_BODY_BYTES + 1))

    assert response.status_code == 413
    assert response.text == f"the message is larger than {MAX_BODY_BYTES} bytes\n"
    assert printed == []


async def test_accepts_a_body_of_just_the_allowed_size() -> None:
    response, _ = await post(json.dumps(message(SPIKE)).ljust(MAX_BODY_BYTES))

    assert response.status_code == 200


async def test_is_healthy_and_shows_nothing_else() -> None:
    transport = httpx.ASGITransport(app=build_webhook_application(lambda _line: None))
    async with httpx.AsyncClient(transport=transport, base_url="http://webhook") as client:
        assert (await client.get("/-/healthy")).status_code == 200
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert (await client.get(path)).status_code == 404
