"""Feeds a case through the product and compares the outcome with the table."""

from __future__ import annotations

import re
from functools import cache

from sidecar.diagnosis import Report, diagnose_pages, diagnose_recording, explain
from sidecar.launch import LaunchFlags, parse_arguments
from sidecar.recordings import open_recording
from sidecar.settings import Thresholds
from sidecar.startlog.reader import read_log
from sidecar.startlog.start import Start

from .table import INPUTS, Case, unknown_flags


@cache
def report_of(case: Case) -> Report:
    """What the product says of a case's inputs."""
    paths = [INPUTS / name for name in case.inputs]
    logs = [path for path in paths if path.suffix == ".log"]
    start = last_start(logs[0].name) if logs else None
    if case.kind == "log":
        assert start is not None
        return explain(start, Thresholds())
    if case.kind in ("page", "pages"):
        pages = [path.read_text("utf-8") for path in paths if path.suffix == ".prom"]
        timed = [(1_000.0 + 10.0 * index, text) for index, text in enumerate(pages)]
        return diagnose_pages(timed, Thresholds(), start)
    recordings = [path for path in paths if path.name.endswith(".jsonl.gz")]
    return diagnose_recording(open_recording(recordings[0]), Thresholds(), start)


def last_start(name: str) -> Start:
    return read_log(INPUTS / name).last


def faults(case: Case) -> tuple[list[str], list[str]]:
    """What is wrong with the product's answer, and which of it is the opposite of the truth."""
    report = report_of(case)
    codes = {verdict.code for verdict in report.verdicts}
    at_end = {verdict.code for verdict in report.verdicts if verdict.until is None}
    advice = [(item, verdict) for verdict in report.verdicts for item in verdict.advice]
    flags = {_flag(item.flag) for item, _ in advice}
    wrong, opposite = [], []
    if not codes & case.accepted:
        wrong.append(f"none of {sorted(case.accepted)} among {sorted(codes)}")
    opposite += [f"says {code}" for code in sorted(codes & case.never)]
    opposite += [f"ends with {code}" for code in sorted(at_end & case.never_at_end)]
    forbidden = case.never_flags | unknown_flags(case.version)
    opposite += [f"advises {flag}" for flag in sorted(flags & forbidden)]
    if case.flag is not None and case.flag not in flags:
        wrong.append(f"does not advise {case.flag}")
    limits = {flag: (low, high) for flag, low, high in case.bounds}
    if case.flag is not None and case.interval is not None:
        limits[case.flag] = case.interval
    known = _flags_of_input(case)
    for item, verdict in advice:
        flag, to = _flag(item.flag), _number(item.to)
        if flag in limits and to is not None and not limits[flag][0] <= to <= limits[flag][1]:
            wrong.append(f"{verdict.code}: {flag} {to} outside {limits[flag]}")
        if flag == case.flag and case.interval is not None and to is None:
            wrong.append(f"{verdict.code}: {flag} without a number")
        direction = dict(case.never_moves).get(flag)
        now = _number(item.current) or known.number(flag.lstrip("-").replace("-", "_"))
        if direction is None or to is None or now is None:
            continue
        if (to > now) == (direction == "up") and to != now:
            opposite.append(f"moves {flag} {direction}: {now} -> {to}")
    return wrong, opposite


def _flag(text: str) -> str:
    return "expandable_segments" if "expandable_segments:True" in text else text


def _number(text: str | None) -> float | None:
    found = re.fullmatch(r"-?\d+(\.\d+)?", text or "")
    return float(found[0]) if found else None


def _flags_of_input(case: Case) -> LaunchFlags:
    for name in case.inputs:
        if name.endswith(".jsonl.gz"):
            return parse_arguments(open_recording(INPUTS / name).header.vllm_args)
    return LaunchFlags()
