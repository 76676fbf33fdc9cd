"""What a container runtime or a log collector puts around a line, and how it comes off again.

Understood: Docker's json-file lines and `docker logs -t`, docker-compose prefixes, the CRI format
of Kubernetes nodes, `kubectl logs --prefix --timestamps`, journald (short, short-iso, JSON), and
records that a JSON formatter wrote: vLLM's own (`--logging-config.formatter json`, 0.31.0 and
later: `asctime`, `levelname`, `processName`, `process`, `message`) and OpenTelemetry's
(`severity_text`, `body`). What is not understood is left as it is; nothing here raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

_ANSI = re.compile(r"(?:\x1b|#033|\^\[)\[[0-9;?]*[ -/]*[@-~]")
_PLAIN_START = ("(", " ", "\t", "INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL")

_CRI = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) ([FP]) ?")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s")
_COMPOSE = re.compile(r"\[?[A-Za-z0-9][\w.-]*\]? +\| ?")
_KUBECTL = re.compile(r"\[pod/[^\]\s]+\] ?")
_JOURNAL = re.compile(r"([A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d) \S+ [^\s:\[]+(?:\[\d+\])?: ")
_JOURNAL_UNIT = re.compile(r"\S+ [\w@.-]+\[\d+\]: ")

_MESSAGE_KEYS = ("log", "message", "body", "MESSAGE", "msg", "event", "textPayload")
_LEVEL_KEYS = ("levelname", "level", "severity_text", "severity")
_STAMP_KEYS = ("asctime", "time", "timestamp", "ts")
_EXCEPTION_KEYS = ("exc_info", "exception", "exc_text", "traceback")
_LEVEL_NAMES = {"WARN": "WARNING", "FATAL": "CRITICAL"}
# A record in a record in a record; more is nonsense, and would cost time.
_MOST_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Envelope:
    """A line without its wrapping, and what the wrapping said about it.

    `complete` is False where the runtime cut a long line and the rest follows in the next record.
    `text` may hold several lines: a JSON record keeps a whole traceback in one.
    """

    text: str
    stamp: str | None = None
    level: str | None = None
    process: str | None = None
    pid: int | None = None
    complete: bool = True


def without_colours(text: str) -> str:
    """The text without terminal escape sequences, also those that syslog has made visible."""
    if "\x1b" in text or "#033[" in text or "^[[" in text:
        return _ANSI.sub("", text)
    return text


def open_envelope(raw: str) -> Envelope:
    """Takes every layer of wrapping off one line."""
    envelope = Envelope(without_colours(raw))
    for _ in range(_MOST_LAYERS):
        inner = _one_layer(envelope)
        if inner is None:
            break
        envelope = replace(inner, text=without_colours(inner.text))
    return envelope


def _one_layer(envelope: Envelope) -> Envelope | None:
    text = envelope.text
    if text.startswith(_PLAIN_START):
        return None
    if text.startswith("{"):
        return _json_record(envelope)
    if found := _CRI.match(text):
        stamp, flag = found.groups()
        complete = envelope.complete and flag == "F"
        return replace(envelope, text=text[found.end() :], stamp=stamp, complete=complete)
    if found := _TIMESTAMP.match(text) or _JOURNAL.match(text):
        return replace(envelope, text=text[found.end() :], stamp=found.group(1))
    if found := _COMPOSE.match(text) or _KUBECTL.match(text):
        return replace(envelope, text=text[found.end() :])
    if envelope.stamp is not None and (found := _JOURNAL_UNIT.match(text)):
        return replace(envelope, text=text[found.end() :])
    return None


def _json_record(envelope: Envelope) -> Envelope | None:
    try:
        record = json.loads(envelope.text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    message = _first_text(record, _MESSAGE_KEYS)
    if message is None:
        return None
    # Only Docker ends its messages with a newline; without one, the line goes on in the next.
    complete = "log" not in record or message.endswith("\n")
    exception = _first_text(record, _EXCEPTION_KEYS)
    level = _first_text(record, _LEVEL_KEYS)
    pid = record.get("process")
    return Envelope(
        text=message.rstrip("\r\n") + (f"\n{exception}" if exception else ""),
        stamp=_first_text(record, _STAMP_KEYS) or envelope.stamp,
        level=level_name(level) or envelope.level,
        process=_first_text(record, ("processName",)) or envelope.process,
        pid=pid if isinstance(pid, int) and not isinstance(pid, bool) else envelope.pid,
        complete=envelope.complete and complete,
    )


def _first_text(record: dict[str, object], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = record.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def level_name(level: str | None) -> str | None:
    """Python's name of a level, whatever the writer calls it; None for None."""
    if level is None:
        return None
    upper = level.upper()
    return _LEVEL_NAMES.get(upper, upper)
