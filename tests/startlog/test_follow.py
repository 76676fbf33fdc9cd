"""A log that is still being written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from test_keep_log import keep_log

from sidecar.startlog import LogFollower
from startlog.sample_logs import gib, read_text
from startlog.test_starts import one_start

UP = "INFO:     Application startup complete.\n"
LOAD = "Running: {} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%\n"


Follow = Callable[[Path], LogFollower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    with ExitStack() as opened:
        yield lambda path: opened.enter_context(closing(LogFollower(path)))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def replace(path: Path, text: str) -> None:
    """As keep_log.py does it: a new file takes the name of the old one."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_file_that_appears_later(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    follower = follow(path)
    assert follower.read_new() is False
    assert follower.error is None
    path.write_text(one_start(1, 20, "5.0"))
    assert follower.read_new() is True
    assert follower.caught_up
    assert follower.reader.last.kv_cache_bytes_per_rank == gib(5.0)
    assert follower.read_new() is False


def test_growth_and_a_line_that_is_not_finished(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    append(path, "Available KV cache memory: 5")
    follower = follow(path)
    assert follower.read_new() is True
    assert follower.reader.last.kv_cache_bytes_per_rank is None
    append(path, "4.90 GiB\n")
    assert follower.read_new() is True
    assert follower.reader.last.kv_cache_bytes_per_rank == gib(54.9)


def test_the_budget_of_a_call(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(LOAD.format(1) * 10_000)
    follower = follow(path)
    calls = 0
    while follower.read_new(budget_bytes=100_000):
        calls += 1
    assert calls == -(-len(LOAD.format(1)) * 10_000 // 100_000)
    assert follower.caught_up
    assert follower.reader.last.serving.load_lines == 10_000


def test_a_file_that_is_cut_in_place(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(one_start(1, 20, "5.0") + "half a li")
    follower = follow(path)
    follower.read_new()
    os.truncate(path, 0)
    append(path, UP)
    assert follower.read_new() is True
    last = follower.reader.last
    assert last.started
    assert last.kv_cache_bytes_per_rank == gib(5.0)
    assert follower.reader.start_count == 1


def test_a_file_that_is_cut_and_has_outgrown_its_old_size(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(UP)
    follower = follow(path)
    follower.read_new()
    path.write_text(one_start(1, 20, "5.0"))
    assert follower.read_new() is True
    assert follower.reader.last.kv_cache_bytes_per_rank == gib(5.0)
    assert follower.reader.start_count == 2


def test_a_rotated_file_keeps_what_the_start_said(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(one_start(1, 20, "5.0") + LOAD.format(1))
    follower = follow(path)
    follower.read_new()
    append(path, LOAD.format(2))
    path.rename(tmp_path / "vllm.log.1")
    path.write_text(LOAD.format(3))
    assert follower.read_new() is True
    last = follower.reader.last
    assert last.kv_cache_bytes_per_rank == gib(5.0)
    assert last.serving.load_lines == 3
    assert last.serving.last_load is not None
    assert last.serving.last_load.running_requests == 3


def test_a_file_whose_middle_is_left_out_is_not_counted_twice(
    tmp_path: Path, follow: Follow
) -> None:
    path = tmp_path / "vllm.log"
    beginning, middle = one_start(1, 20, "5.0"), LOAD.format(1) * 100
    path.write_text(beginning + middle)
    follower = follow(path)
    follower.read_new()
    note = f"... {len(middle)} bytes of output are left out here ...\n"
    replace(path, beginning + note + LOAD.format(2))
    assert follower.read_new() is True
    last = follower.reader.last
    assert follower.reader.start_count == 1
    assert last.kv_cache_bytes_per_rank == gib(5.0)
    assert last.serving.load_lines == 1
    assert last.left_out_bytes == len(middle)


def test_a_new_start_behind_the_last_lines_of_the_old_one(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(one_start(1, 20, "5.0") + LOAD.format(1) * 50)
    follower = follow(path)
    follower.read_new()
    replace(path, LOAD.format(1) * 10 + one_start(1, 20, "7.0"))
    assert follower.read_new() is True
    assert follower.reader.start_count == 2
    assert follower.reader.last.kv_cache_bytes_per_rank == gib(7.0)
    assert follower.reader.starts[0].serving.load_lines == 10


def test_a_file_that_goes_away_for_a_while(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(one_start(1, 20, "5.0"))
    follower = follow(path)
    follower.read_new()
    path.unlink()
    assert follower.read_new() is False
    assert follower.error is None
    path.write_text(UP)
    assert follower.read_new() is True
    assert follower.reader.last.started


def test_what_cannot_be_read_is_an_error_and_not_the_end(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    path.mkdir()
    follower = follow(path)
    assert follower.read_new() is False
    assert follower.error is not None
    assert str(path) in follower.error
    path.rmdir()
    path.write_text(UP)
    assert follower.read_new() is True
    assert follower.error is None


def test_the_file_that_keep_log_writes(tmp_path: Path, follow: Follow) -> None:
    """Whatever the moment at which it is read, the result is that of the file as it is."""
    path = tmp_path / "vllm.log"
    follower = follow(path)
    for pids in ((1, 20), (1, 21)):
        with closing(keep_log.BoundedLog(path, limit=4096)) as log:
            log.write(one_start(*pids, "5.0").encode())
            for number in range(150):
                log.write(LOAD.format(number).encode())
                if number % 7 == 0:
                    follower.read_new()
        while follower.read_new():
            pass
        whole = read_text(path.read_bytes())
        assert follower.reader.starts == whole.starts
        assert whole.last.kv_cache_bytes_per_rank == gib(5.0)
        assert whole.last.serving.last_load is not None
        assert whole.last.serving.last_load.running_requests == 149


def test_a_rotated_file_that_begins_with_a_common_line(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "vllm.log"
    health = '127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK\n'
    path.write_text(one_start(1, 20, "5.0") + health * 3)
    follower = follow(path)
    follower.read_new()
    path.rename(tmp_path / "vllm.log.1")
    path.write_text(health)
    follower.read_new()
    assert follower.reader.last.kv_cache_bytes_per_rank == gib(5.0)
