"""All checks of one expression, and the expression with all of its faults mended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from sidecar.rule_check.alarms import check_alarms, check_hysteresis
from sidecar.rule_check.aliases import check_aliases
from sidecar.rule_check.context import Context, Fault
from sidecar.rule_check.counters import check_counters
from sidecar.rule_check.finding import Code, Finding, Severity
from sidecar.rule_check.histograms import check_histograms
from sidecar.rule_check.macros import Reading, read
from sidecar.rule_check.matching import check_matching
from sidecar.rule_check.memory import check_memory
from sidecar.rule_check.names import check_names
from sidecar.rule_check.promql import ExpressionError, TooLargeError
from sidecar.rule_check.ratios import check_ratios
from sidecar.rule_check.source import Source
from sidecar.sources.releases import Release

CHECKS: tuple[Callable[[Context], Iterator[Fault]], ...] = (
    check_aliases,
    check_names,
    check_memory,
    check_alarms,
    check_counters,
    check_histograms,
    check_ratios,
    check_matching,
    check_hysteresis,
)
_MOST_MENDS = 25
_VLLM = re.compile("vllm", re.IGNORECASE)


def check_source(
    source: Source, release: Release, recorded: frozenset[str], *, is_about_vllm: bool
) -> list[Finding]:
    """What is wrong with one expression, the gravest first of what stands at one place."""
    try:
        reading = read(source.text, source.dialect)
    except ExpressionError as error:
        return _unread(source, error)
    context = Context(
        source, reading.tree, release, recorded, reading.numbers, is_about_vllm=is_about_vllm
    )
    try:
        faults = find_faults(context)
        corrected, obstacle = _corrected(context, reading, faults)
    except RecursionError:
        return _unread(source, TooLargeError("it is nested too deeply"))
    return [_finding(source, fault, corrected, obstacle) for fault in faults]


def find_faults(context: Context) -> list[Fault]:
    """What every check finds, each thing once."""
    if context.source.role == "variable":
        found = list(check_names(context))
    else:
        found = [fault for check in CHECKS for fault in check(context)]
    seen: set[tuple[Code, str]] = set()
    kept = []
    for fault in found:
        if (fault.code, fault.message) not in seen:
            seen.add((fault.code, fault.message))
            kept.append(fault)
    return kept


def _corrected(
    context: Context, reading: Reading, faults: list[Fault]
) -> tuple[str | None, str | None]:
    """The text after one mend at a time until nothing is left to mend, or what is in the way."""
    if not any(fault.mended for fault in faults):
        return None, None
    for _ in range(_MOST_MENDS):
        mended = next((fault.mended for fault in faults if fault.mended is not None), None)
        if mended is None:
            break
        context = replace(context, tree=mended)
        faults = find_faults(context)
    else:
        return None, f"it would take more than {_MOST_MENDS} changes"
    left = next((fault for fault in faults if fault.severity == "error"), None)
    if left is not None and left.code is not Code.SHADOWED_METRIC:
        return None, f"another fault has no correction ({left.code}): {left.reason}"
    text = reading.text(context.tree)
    try:
        read(text, context.source.dialect)
    except ExpressionError:
        return None, "the correction cannot be written down"
    return text, None


def _finding(source: Source, fault: Fault, corrected: str | None, obstacle: str | None) -> Finding:
    mends = fault.mended is not None
    return Finding(
        source.file,
        source.line,
        source.rule,
        fault.code,
        fault.severity,
        fault.message,
        source.text.strip(),
        corrected if mends else None,
        None if mends and corrected is not None else (obstacle if mends else fault.reason),
    )


def _unread(source: Source, error: ExpressionError) -> list[Finding]:
    """A rule file with one such expression is refused as a whole; a panel stays empty."""
    in_dashboard = source.dialect.has_variables
    if in_dashboard and not _VLLM.search(source.text):
        return []
    has_variables = in_dashboard and re.search(r"\$|\[\[", source.text) is not None
    code = Code.INVALID_EXPRESSION
    severity: Severity = "error"
    message = f"This is not PromQL: {error}."
    if isinstance(error, TooLargeError):
        code, severity = Code.NOT_CHECKED, "warning"
        message = f"Not checked: {error}."
    elif has_variables:
        code, severity = Code.NOT_CHECKED, "info"
        message = f"Not checked, since with its variables it does not parse: {error}."
    elif not in_dashboard:
        message += " Prometheus refuses the whole file."
    return [
        Finding(
            source.file,
            source.line,
            source.rule,
            code,
            severity,
            message,
            source.text.strip(),
            None,
            "nothing of it was understood",
        )
    ]
