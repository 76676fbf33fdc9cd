"""The shape of a verdict's rule: what it may say, how long it must hold, and a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from sidecar.model import Severity, Verdict
from sidecar.verdicts.situation import Situation


@dataclass(frozen=True, slots=True)
class Hold:
    """A condition counts once it was true for `seconds` of the last `window_seconds`."""

    seconds: float = 8.0
    window_seconds: float = 10.0


SHORT = Hold()
TWO_POLLS = Hold(1.5, 4.0)
AT_ONCE = Hold(0.0, 1.0)
"""For conditions that look back by themselves."""

TROUBLE_LINGERS_SECONDS = 15.0
Level = Literal["engine", "gpu", "server"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One code, the severities it may take, and how it is judged.

    `judge` is pure and says what is true at this moment; patience is not its business. It yields
    at most one verdict for each scope and nothing where a signal is missing, unless the verdict
    is about that. `level` says what its scope names.
    """

    code: str
    severities: tuple[Severity, ...]
    judge: Callable[[Situation], Iterable[Verdict]]
    hold: Hold = SHORT
    linger_seconds: float = TROUBLE_LINGERS_SECONDS
    level: Level = "engine"
