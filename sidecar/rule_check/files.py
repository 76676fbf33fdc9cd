"""Files in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sidecar.rule_check.checker import check_source
from sidecar.rule_check.dashboards import read_dashboard
from sidecar.rule_check.finding import Finding
from sidecar.rule_check.metrics import use_of
from sidecar.rule_check.rule_files import read_rules
from sidecar.rule_check.source import Source, read_text
from sidecar.sources.releases import Release

_VLLM = re.compile("vllm", re.IGNORECASE)


def check_files(paths: Iterable[str | Path], release: Release) -> tuple[Finding, ...]:
    """Every fault in the files, in the order of the files; raises RuleFileError.

    A name that any of the files records counts as known in all of them.
    """
    read = [read_sources(Path(path)) for path in paths]
    recorded = recorded_names(source for sources in read for source in sources)
    return tuple(finding for sources in read for finding in _check(sources, release, recorded))


def read_sources(path: Path) -> list[Source]:
    """The expressions of a file: JSON that is no rule file is a dashboard."""
    text = read_text(path)
    file = str(path)
    if text.lstrip().startswith("{") and not re.search(r'"groups"\s*:', text):
        return read_dashboard(file, text)
    return read_rules(file, text)


def recorded_names(sources: Iterable[Source]) -> frozenset[str]:
    """What rules record, without names that belong to vLLM."""
    names = set()
    for source in sources:
        if source.role == "record":
            use = use_of(source.rule)
            if use is None or use.metric is None:
                names.add(source.rule)
    return frozenset(names)


def _check(sources: Sequence[Source], release: Release, recorded: frozenset[str]) -> list[Finding]:
    is_about_vllm = any(_VLLM.search(f"{one.text} {one.about} {one.rule}") for one in sources)
    found: list[Finding] = []
    for source in sources:
        found += check_source(source, release, recorded, is_about_vllm=is_about_vllm)
    return found
