"""Verdicts as JSON, in the form that `diagnose --json`, `explain --json` and the web share."""

from __future__ import annotations

from typing import Any

from sidecar.model import Verdict
from sidecar.verdicts.keeper import Change


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


def change_json(change: Change) -> dict[str, Any]:
    """A verdict that began or ended."""
    return {
        "at": change.at,
        "code": change.verdict.code,
        "severity": change.verdict.severity,
        "began": change.began,
        "summary": change.verdict.summary,
    }
