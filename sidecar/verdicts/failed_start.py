"""A start that failed, or a run that did, with all that it is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.settings import Thresholds
from sidecar.sources.releases import Release
from sidecar.startlog.failures import LogFailure
from sidecar.startlog.out_of_memory import OutOfMemory
from sidecar.startlog.start import Start


@dataclass(frozen=True, slots=True)
class FailedStart:
    """What the log says of the start, the failure that ended it, and the limits in force.

    `release` is None where the log does not name a release that can be compared.
    """

    start: Start
    failure: LogFailure
    release: Release | None
    thresholds: Thresholds

    @property
    def message(self) -> OutOfMemory | None:
        """PyTorch's figures, where the failure has them."""
        return self.failure.out_of_memory
