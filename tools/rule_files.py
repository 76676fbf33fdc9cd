"""Read the rule files of this repository without a YAML library.

The rule files are ours and plain: two spaces a level, one key a line, block scalars for anything
long. A reader of that much fits on a page and needs no dependency. What it does not recognise it
refuses, and the check that uses it compares the number of rules with what promtool counts, so a
layout that this module misreads cannot pass unnoticed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

RULE_START = re.compile(r"^ {6}- (alert|record): (\S+)$")
RULE_KEY = re.compile(r"^ {8}(\w+):(?: (.+))?$")
NESTED_KEY = re.compile(r"^ {10}(\w+): (.+)$")
BETWEEN_RULES = re.compile(r"^(groups:| {2}- name: \S+| {4}rules:|\s*#.*|\s*)$")
BLOCK_SCALARS = ("|", ">-")


class RuleFileError(Exception):
    """A rule file has a line that this reader does not know how to take."""


@dataclass(slots=True)
class Rule:
    """One rule: `kind` is alert or record, and the rest as it stands in the file."""

    kind: str
    name: str
    fields: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name, and for an alert its severity: two alerts may share a name."""
        severity = self.labels.get("severity")
        return f"{self.name} ({severity})" if severity else self.name


def read_rules(path: Path) -> list[Rule]:
    """All rules of a file, in its order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rules: list[Rule] = []
    section: dict[str, str] | None = None
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if start := RULE_START.match(line):
            rules.append(Rule(start[1], start[2]))
            section = None
        elif BETWEEN_RULES.match(line):
            continue
        elif rules and (key := RULE_KEY.match(line)):
            name, value = key[1], key[2]
            if value is None and name in ("labels", "annotations"):
                section = rules[-1].labels if name == "labels" else rules[-1].annotations
                continue
            section = None
            rules[-1].fields[name], position = _scalar(value, lines, position, indent=10)
        elif section is not None and (key := NESTED_KEY.match(line)):
            section[key[1]], position = _scalar(key[2], lines, position, indent=12)
        else:
            raise RuleFileError(f"{path.name}:{position}: cannot read {line.strip()!r}")
    return rules


def without_annotations(text: str) -> str:
    """The text of a rule file with every `annotations` block left out, and nothing else changed."""
    return re.sub(r"^ {8}annotations:\n(?: {10}.*\n|\s*\n)*", "", text, flags=re.MULTILINE)


def _scalar(value: str | None, lines: list[str], position: int, indent: int) -> tuple[str, int]:
    """A value and the index of the line after it; a block scalar goes on over deeper lines."""
    if value not in BLOCK_SCALARS:
        return (value or "").strip("'\""), position
    block: list[str] = []
    while position < len(lines) and (
        not lines[position].strip() or lines[position].startswith(" " * indent)
    ):
        block.append(lines[position].strip())
        position += 1
    return ("\n" if value == "|" else " ").join(block).strip(), position
