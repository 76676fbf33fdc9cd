"""From history to verdicts: puts a moment together, asks all rules, and remembers what changed."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.history import History
from sidecar.launch import LaunchFlags, label_values
from sidecar.lifecycle import Lifecycle
from sidecar.model import Change, Snapshot, Verdict
from sidecar.settings import Thresholds
from sidecar.startlog.start import Start
from sidecar.verdicts import RULES
from sidecar.verdicts.keeper import Keeper, sort_by_gravity
from sidecar.verdicts.situation import Situation
from sidecar.verdicts.start import judge_start
from sidecar.verdicts.states import steady

_FIELDS = (
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
)


class Judge:
    """Judges one server, moment after moment.

    `flags` are those that somebody wrote down; `start` is the last start in vLLM's log and may
    be set whenever more of it was read. With `instant` a single page is judged by itself. With
    `log_is_complete` the log also tells of later than the moment judged, so how it ends is not
    news of that moment.
    """

    def __init__(
        self,
        flags: LaunchFlags | None = None,
        thresholds: Thresholds | None = None,
        *,
        instant: bool = False,
        log_is_complete: bool = False,
    ) -> None:
        self._flags = flags or LaunchFlags()
        self._log_is_complete = log_is_complete
        self._keeper = Keeper(RULES, instant=instant)
        self._thresholds = thresholds or Thresholds()
        self.lifecycle = Lifecycle(self._thresholds)
        self.start: Start | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The newest verdicts that began or ended, oldest first."""
        return tuple(self._keeper.changes)

    def judge(self, snapshot: Snapshot, history: History) -> tuple[Verdict, ...]:
        """The verdicts that hold after this snapshot, the gravest first."""
        self.lifecycle.add(snapshot, history)
        situation = Situation(
            snapshot, history, self.lifecycle, self.flags_in_force(history), self.start
        )
        held = self._keeper.judge(situation)
        return sort_by_gravity((*held, *steady(situation, held), *self._from_log(snapshot)))

    def _from_log(self, snapshot: Snapshot) -> tuple[Verdict, ...]:
        """Why the server is not there, if its log says so. A server that answers needs no such
        explanation."""
        start = self.start
        if start is None or self._log_is_complete or snapshot.server is not None:
            return ()
        if self.lifecycle.up or start.decisive_failure is None:
            return ()
        return tuple(v for v in judge_start(start, self._thresholds) if v.code != "started")

    def flags_in_force(self, history: History) -> LaunchFlags:
        """The page wins over the log, the log over what somebody wrote down."""
        flags = self._flags
        if self.start is not None:
            flags = flags.merged_with(start_values(self.start))
        for engine in history.engines:
            if engine.reading is not None and engine.reading.cache is not None:
                return flags.merged_with(label_values(engine.reading.cache))
        return flags


def start_values(start: Start) -> Mapping[str, str]:
    """The flags of a logged start: what was printed, and what the start says of itself."""
    printed = {name: str(value) for name, value in start.arguments.items()}
    fields = {name: getattr(start, name) for name in _FIELDS}
    return {**printed, **{name: str(value) for name, value in fields.items() if value is not None}}
