"""Finds out what the processes are that NVML names by number.

The driver counts processes as the host does. A container counts its own, so that the same number
may be another process there. Therefore two rules:

* In the host's own process namespace, which the kernel always gives the same inode number
  (`PROC_PID_INIT_INO` of linux/proc_ns.h; containers share it with `pid: host`), a number is the
  process that has it, and its title stands.
* In any other namespace a title stands only where it says vLLM, as with containers of one pod that
  share their processes. Anything else is a coincidence or proves nothing.

`/proc/PID/stat` and `cmdline` are readable by every user unless /proc is mounted with `hidepid`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sidecar.process_titles import CHILD_OF, classify, says_vllm
from sidecar.sources.host import PROC, read_text

HOST_NAMESPACE = f"pid:[{0xEFFFFFFC}]"
_MOST_ANCESTORS = 8
_MOST_KEPT = 512
_MOST_COMMAND_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Stat:
    """The little of `/proc/PID/stat` that tells one process from the next with its number."""

    name: str
    parent: int
    started: str


class ProcessTitles:
    """Titles by pid, remembered as long as the process and its name are the same."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        try:
            self._of_host = os.readlink(proc / "self/ns/pid") == HOST_NAMESPACE
        except OSError:
            self._of_host = False
        self._known: dict[int, tuple[str, str, str | None]] = {}

    def title_of(self, pid: int) -> str | None:
        """What the process is, or None where that is not known for sure."""
        stat = self._stat(pid)
        if stat is None:
            self._known.pop(pid, None)
            return None
        # vLLM names its workers after they have taken memory: a new name is a new look.
        started, name, title = self._known.get(pid, ("", "", None))
        if (started, name) != (stat.started, stat.name):
            title = self._look(pid, stat)
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[pid] = (stat.started, stat.name, title)
        return title if self._of_host or says_vllm(title) else None

    def _look(self, pid: int, stat: _Stat) -> str | None:
        own = self._own_title(pid, stat)
        if says_vllm(own):
            return own
        ancestor = stat
        for _ in range(_MOST_ANCESTORS):
            parent = ancestor.parent
            found = self._stat(parent) if parent > 0 else None
            if found is None:
                break
            title = self._own_title(parent, found)
            if says_vllm(title):
                return f"{CHILD_OF}{title}"
            ancestor = found
        return own

    def _own_title(self, pid: int, stat: _Stat) -> str | None:
        line = read_text(self._proc / str(pid) / "cmdline", _MOST_COMMAND_LINE_BYTES) or ""
        return classify(line.rstrip("\0").split("\0") if line else [], stat.name)

    def _stat(self, pid: int) -> _Stat | None:
        """None for a process that is not there or has ended."""
        text = read_text(self._proc / str(pid) / "stat") or ""
        # The name stands in parentheses and may hold some itself.
        name, _, rest = text.partition("(")[2].rpartition(") ")
        fields = rest.split()
        if len(fields) < 20 or fields[0] in "ZX" or not fields[1].isdecimal():
            return None
        return _Stat(name, int(fields[1]), fields[19])
