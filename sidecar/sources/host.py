"""The host, read from the kernel's files under /proc.

What the fields mean is in the kernel's documentation, filesystems/proc. Inside a container the
memory is still the whole host's: limits of the container itself are not mixed in.
"""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.model import HostReading

PROC = Path("/proc")
_MOST_BYTES = 64 * 1024
_LINE = re.compile(r"^(\w+):\s+(\d{1,15}) kB$", re.MULTILINE)


def read_host(proc: Path = PROC) -> HostReading | None:
    """Memory now, or None where the kernel does not tell all of it (`MemAvailable`: Linux 3.14)."""
    text = read_text(proc / "meminfo")
    kilobytes = {name: int(value) for name, value in _LINE.findall(text or "")}
    try:
        return HostReading(
            memory_total_bytes=kilobytes["MemTotal"] * 1024,
            memory_available_bytes=kilobytes["MemAvailable"] * 1024,
            swap_total_bytes=kilobytes["SwapTotal"] * 1024,
            swap_free_bytes=kilobytes["SwapFree"] * 1024,
        )
    except KeyError:
        return None


def is_wsl(proc: Path = PROC) -> bool:
    """Whether this is Linux inside Windows, where a driver of another kind answers for NVML."""
    return "microsoft" in (read_text(proc / "sys/kernel/osrelease") or "").lower()


def read_text(path: Path, at_most: int = _MOST_BYTES) -> str | None:
    """The beginning of a file, or None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(at_most).decode(errors="replace")
    except OSError:
        return None
