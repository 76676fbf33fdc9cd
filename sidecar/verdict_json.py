"""Verdicts as JSON, in the form that `diagnose --json`, `explain --json` and the web share."""

from __future__ import annotations

from typing import Any

from sidecar.diagnosis import Report
from sidecar.model import Change, Verdict
from sidecar.startlog.start_json import start_json


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """One verdict; `from` and `to` are the unix seconds it held, null where not known."""
    return {
        "code": verdict.code,
        "severity": verdict.severity,
        "confidence": verdict.confidence,
        "scope": {
            "model_name": verdict.scope.model_name,
            "engine": verdict.scope.engine,
            "gpu": verdict.scope.gpu,
        },
        "summary": verdict.summary,
        "from": verdict.since,
        "to": verdict.until,
        "evidence": [
            {
                "name": item.name,
                "value": item.value,
                "unit": item.unit,
                "threshold": item.threshold,
            }
            for item in verdict.evidence
        ],
        "advice": [
            {
                "flag": item.flag,
                "from": item.current,
                "to": item.to,
                "expect": item.expect,
                "why": item.why,
            }
            for item in verdict.advice
        ],
        "avoid": [{"flag": item.flag, "why": item.why} for item in verdict.avoid],
        "missing": list(verdict.missing),
    }


def report_json(report: Report, starts: int | None = None) -> dict[str, Any]:
    """A report; with `starts` (of a log) also the figures of its last start."""
    found: dict[str, Any] = {
        "at": report.at,
        "verdicts": [verdict_json(verdict) for verdict in report.verdicts],
    }
    if starts is not None and report.start is not None:
        outcome = report.verdicts[0].code if report.verdicts else None
        found["start"] = start_json(report.start, starts=starts, outcome=outcome)
    return found


def change_json(change: Change) -> dict[str, Any]:
    """A verdict that began or ended."""
    return {
        "at": change.at,
        "code": change.verdict.code,
        "severity": change.verdict.severity,
        "began": change.began,
        "summary": change.verdict.summary,
    }
