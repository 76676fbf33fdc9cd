"""Findings as text for a person and as one JSON document, and the command's exit status."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from sidecar.rule_check.files import check_files
from sidecar.rule_check.finding import SEVERITIES, Finding
from sidecar.rule_check.metric_table import NEWEST
from sidecar.rule_check.source import RuleFileError
from sidecar.sources.releases import Release, parse_release


def run(paths: Iterable[str | Path], version_text: str | None, as_json: bool, out: TextIO) -> int:
    """Check files and print what is wrong; 0: no error, 1: errors, 2: something was not readable.

    What is not readable is said in one line on standard error.
    """
    release = parse_release(version_text) if version_text is not None else NEWEST
    if release is None:
        sys.stderr.write(f"vllm-sidecar: --vllm-version: {version_text!r} is not like 0.25.1\n")
        return 2
    names = [Path(path) for path in paths]
    try:
        findings = check_files(names, release)
    except RuleFileError as error:
        sys.stderr.write(f"vllm-sidecar: {error}\n")
        return 2
    if as_json:
        json.dump(report_json(findings, names, release), out, indent=2, allow_nan=False)
        out.write("\n")
    else:
        _print(findings, len(names), release, out)
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def report_json(
    findings: Sequence[Finding], paths: Sequence[Path], release: Release
) -> dict[str, Any]:
    """The report of a check as plain values; the order of keys and findings is fixed."""
    counts = Counter(finding.severity for finding in findings)
    return {
        "vllm_version": _text(release),
        "files": [str(path) for path in paths],
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "findings": [
            {
                "file": finding.file,
                "line": finding.line,
                "rule": finding.rule,
                "code": finding.code.value,
                "severity": finding.severity,
                "message": finding.message,
                "expression": finding.expression,
                "corrected": finding.corrected,
                "reason": finding.reason,
            }
            for finding in findings
        ],
    }


def _print(findings: Sequence[Finding], files: int, release: Release, out: TextIO) -> None:
    def place(finding: Finding) -> tuple[str, int, str, str]:
        return finding.file, finding.line, finding.rule, finding.expression

    for (file, line, rule, _), found in groupby(findings, key=place):
        group = list(found)
        out.write(f"{_plain(file)}:{line}: {_plain(rule) or 'without a name'}\n")
        for finding in group:
            out.write(f"  {finding.severity} {finding.code}: {_plain(finding.message)}\n")
            if finding.corrected is None and finding.reason:
                out.write(f"    no correction: {_plain(finding.reason)}\n")
        corrected = next((one.corrected for one in group if one.corrected is not None), None)
        if corrected is not None:
            out.write(f"  better: {_plain(corrected)}\n")
        out.write("\n")
    counts = Counter(finding.severity for finding in findings)
    told = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES)
    noun = "file" if files == 1 else "files"
    out.write(f"{files} {noun} checked against vLLM {_text(release)}: {told}.\n")


def _plain(text: str) -> str:
    """Text of somebody else's file without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _text(release: Release) -> str:
    return ".".join(str(part) for part in release)
