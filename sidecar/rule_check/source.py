"""The expressions of a file, each with the place where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sidecar.rule_check.macros import DASHBOARD, PLAIN, Dialect

MOST_BYTES = 2 * 1024 * 1024
"""Of the largest file that is read."""
MOST_EXPRESSIONS = 5000
"""In the largest file that is checked; aliases can make a small file hold millions."""

Role = Literal["alert", "record", "panel", "variable"]


class RuleFileError(ValueError):
    """A file that cannot be read as rules or as a dashboard; the text names file and line."""


@dataclass(frozen=True, slots=True)
class Source:
    """One expression of a file. `about` is all else that is said of it, for a human reader."""

    file: str
    line: int
    rule: str
    role: Role
    text: str
    waits: bool = False
    keeps_firing: bool = False
    about: str = ""

    @property
    def dialect(self) -> Dialect:
        return DASHBOARD if self.role in ("panel", "variable") else PLAIN


def read_text(path: Path) -> str:
    """The text of a file of a bearable size."""
    try:
        with path.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise RuleFileError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MOST_BYTES:
        size = MOST_BYTES // 1024 // 1024
        raise RuleFileError(f"{path}: larger than {size} MiB, the most that is read")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RuleFileError(f"{path}:{line}: not text in UTF-8") from None
