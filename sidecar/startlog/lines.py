"""A raw line of a log, taken apart: who wrote it, when, from which file, and what it says.

vLLM's prefix has changed with its releases (vLLM 0.2.3 to 0.33.0):

    up to 0.7.3      INFO 01-31 12:00:00 file.py:123] message
    0.8.0 - 0.10.0   INFO 01-31 12:00:00 [file.py:123] message
    0.10.1 and later (EngineCore_0 pid=97) INFO 01-31 12:00:00 [file.py:123] message

`VLLM_LOGGING_PREFIX` may stand in front of all of it. Lines without a prefix are common: what
other libraries print, tracebacks, progress bars, uvicorn's access log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.startlog.envelopes import Envelope, level_name, open_envelope

_HEAD = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:(\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? )?"
    r"\[?([\w./-]+):\d+\](?: |$)"
)
_PROCESS = re.compile(r"\(([\w.:-]+) pid=(\d+)(?:, ip=[^)\s]+)?\) ?")
_UVICORN = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL): +")
# A prefix does not start later than this, whatever stands in front of it.
_HEAD_WITHIN = 600


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, understood as far as it says; everything but the text may be None.

    `text` keeps its indentation, which tells the frames of a traceback from its last line.
    `stamp` is what the log says: month, day and local time without a year where vLLM wrote it, else
    the container runtime's timestamp. `process` and `pid` are None where two processes wrote into
    the same line. Process ids are those of the server's own container.
    """

    text: str
    level: str | None = None
    process: str | None = None
    pid: int | None = None
    stamp: str | None = None
    file: str | None = None


def parse_lines(raw: str) -> tuple[LogLine, ...]:
    """Takes a raw line apart; a record may hold several, and an empty one none."""
    return lines_of(open_envelope(raw))


def lines_of(envelope: Envelope) -> tuple[LogLine, ...]:
    """The lines of a message whose wrapping is off already.

    A progress bar redraws itself with carriage returns: each drawing counts as a line.
    """
    text = envelope.text
    if "\r" not in text and "\n" not in text:
        return _parts(text, envelope) if text.strip() else ()
    found: list[LogLine] = []
    for part in text.replace("\n", "\r").split("\r"):
        if part.strip():
            found.extend(_parts(part, envelope))
    return tuple(found)


def _parts(text: str, envelope: Envelope) -> tuple[LogLine, ...]:
    head = _HEAD.search(text, 0, _HEAD_WITHIN)
    if head is None:
        return (_headless(text, envelope),)
    front = text[: head.start()]
    process, pid = _writer(front, envelope)
    level, stamp, file = head.groups()
    line = LogLine(text[head.end() :], level, process, pid, stamp or envelope.stamp, file)
    leftover = _PROCESS.sub("", front).strip()
    if not leftover:
        return (line,)
    # Another process had not ended its line yet, or a progress bar stands there.
    return (LogLine(leftover), line)


def _headless(text: str, envelope: Envelope) -> LogLine:
    process, pid, level = envelope.process, envelope.pid, envelope.level
    if text.startswith("("):
        end = 0
        while found := _PROCESS.match(text, end):
            end = found.end()
        if end:
            process, pid = _writer(text[:end], envelope)
            text = text[end:]
    if found := _UVICORN.match(text):
        level, text = found.group(1), text[found.end() :]
    return LogLine(text, level_name(level), process, pid, envelope.stamp)


def _writer(front: str, envelope: Envelope) -> tuple[str | None, int | None]:
    writers = set(_PROCESS.findall(front)) if "(" in front else set()
    if not writers:
        return envelope.process, envelope.pid
    if len(writers) > 1:
        return None, None
    name, pid = writers.pop()
    return name, int(pid[:12])
