"""A receiver for Alertmanager's messages that prints them, so that alerts need no account.

It is a process of its own and shares nothing with the sidecar: when the sidecar is down, the
message that says so still arrives here. What comes in is text from elsewhere, so its size is
bounded, and characters that could move a terminal's cursor are taken out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect

MAX_BODY_BYTES = 1024 * 1024
MAX_ALERTS = 100
MAX_HEADLINE = 400
MAX_DESCRIPTION = 2000

# The labels that say whom an alert is about, and how they are called in a printed line.
SUBJECT_LABELS = (
    ("instance", "instance"),
    ("model_name", "model"),
    ("engine", "engine"),
    ("gpu", "gpu"),
    ("source", "source"),
)


class Alert(BaseModel):
    """One alert of a message; what is not printed is not read."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}


class Message(BaseModel):
    """Alertmanager's webhook message, version 4. `left_out` are alerts that it cut off itself."""

    version: Literal["4"]
    alerts: list[Alert]
    left_out: int = Field(default=0, ge=0, alias="truncatedAlerts")


def build_webhook_application(write: Callable[[str], None]) -> FastAPI:
    """The receiver. `write` is given one line of text at a time, without a line end."""
    application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @application.post("/")
    async def receive(request: Request) -> Response:
        try:
            body = await read_body(request)
        except ClientDisconnect:
            return answer(400, "the sender went away")
        if body is None:
            return answer(413, f"the message is larger than {MAX_BODY_BYTES} bytes")
        try:
            message = Message.model_validate_json(body)
        except ValidationError as error:
            return answer(400, f"not an Alertmanager message of version 4: {first_problem(error)}")
        for line in lines(message):
            write(line)
        return answer(200, "ok")

    @application.get("/-/healthy")
    async def healthy() -> Response:
        return answer(200, "ok")

    return application


async def read_body(request: Request) -> bytes | None:
    """The body, or None once it grows too large: the rest of it is not read."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def lines(message: Message) -> Iterator[str]:
    """A headline for each alert, and below it what to do about it as long as it fires."""
    for alert in message.alerts[:MAX_ALERTS]:
        yield headline(alert)
        # What has resolved needs no advice, and the figures in it would be old.
        if alert.status == "firing" and (description := alert.annotations.get("description")):
            yield f"    {clean(description, MAX_DESCRIPTION)}"
    if (unseen := len(message.alerts[MAX_ALERTS:]) + message.left_out) > 0:
        yield f"... and {unseen} more alerts in the same message"


def headline(alert: Alert) -> str:
    """`FIRING warning VllmPreemptionSpike model=llama engine=0: The KV cache is full ...`"""
    labels = alert.labels
    words = [
        alert.status.upper(),
        labels.get("severity", ""),
        labels.get("alertname", "(no name)"),
        *(f"{word}={labels[label]}" for label, word in SUBJECT_LABELS if labels.get(label)),
    ]
    text = " ".join(word for word in words if word)
    if summary := alert.annotations.get("summary"):
        text = f"{text}: {summary}"
    return clean(text, MAX_HEADLINE)


def clean(text: str, limit: int) -> str:
    """One line of at most `limit` characters, without anything but printable text.

    Unicode's control and format characters go, too: they can reverse the order of what follows.
    """
    printable = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text[: 4 * limit])
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with a message, where and what, in one line."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return clean(f"{place}: {problem['msg']}" if place else problem["msg"], MAX_HEADLINE)


def answer(status: int, text: str) -> Response:
    """A plain answer of one line."""
    return Response(f"{text}\n", status_code=status, media_type="text/plain")
