"""The host's memory, as the kernel's files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.model import HostReading
from sidecar.sources.host import is_wsl, read_host

# A DGX Spark, shortened: github.com/XuehaiPan/nvitop/pull/208.
GB10 = """\
MemTotal:       127600748 kB
MemFree:         3012204 kB
MemAvailable:   118566368 kB
Buffers:          204800 kB
SwapTotal:      16777212 kB
SwapFree:       16191484 kB
HugePages_Total:       0
DirectMap4k:     1234567 kB
"""


def test_memory_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(GB10)
    assert read_host(tmp_path) == HostReading(
        memory_total_bytes=127_600_748 * 1024,
        memory_available_bytes=118_566_368 * 1024,
        swap_total_bytes=16_777_212 * 1024,
        swap_free_bytes=16_191_484 * 1024,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\xff",
        GB10.replace("MemAvailable", "MemSomething"),
        GB10.replace("SwapFree", "Swap"),
        GB10.replace("127600748 kB", "many kB"),
        GB10.replace("127600748 kB", "-1 kB"),
        GB10.replace("127600748 kB", "127600748 MB"),
    ],
)
def test_what_is_not_told_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    assert read_host(tmp_path) is None


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_host(tmp_path) is None
    (tmp_path / "meminfo").mkdir()
    assert read_host(tmp_path) is None


def test_the_host_that_runs_this() -> None:
    host = read_host()
    assert host is not None
    assert 0 < host.memory_available_bytes < host.memory_total_bytes


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("5.15.167.4-microsoft-standard-WSL2", True),
        ("4.4.0-19041-Microsoft", True),
        ("6.17.0-1008-nvidia", False),
        (None, False),
    ],
)
def test_wsl_is_known_by_its_kernel(tmp_path: Path, release: str | None, expected: bool) -> None:
    if release is not None:
        (tmp_path / "sys/kernel").mkdir(parents=True)
        (tmp_path / "sys/kernel/osrelease").write_text(release + "\n")
    assert is_wsl(tmp_path) is expected
