"""Finds and reads the sample logs of the tests."""

from __future__ import annotations

from pathlib import Path

from sidecar.startlog import LogReader, Start

CAPTURES = Path(__file__).parents[1] / "captures"
GIB = 1024**3


def public_log(name: str) -> Path:
    return CAPTURES / "logs" / f"log-{name}.log"


def recorded_log(name: str) -> Path:
    return CAPTURES / "recordings" / f"{name}.vllm.log.gz"


def read_text(text: str | bytes) -> LogReader:
    reader = LogReader()
    reader.feed(text)
    reader.finish()
    return reader


def start_of(text: str) -> Start:
    return read_text(text).last


def gib(number: float) -> int:
    return round(number * GIB)
