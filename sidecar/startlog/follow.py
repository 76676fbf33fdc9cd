"""Follows a log that is still being written, without a thread: it reads when it is asked to.

What happens to such a file:

- it does not exist yet, or goes away for a while: nothing is read, and what is known stays;
- it grows, and its last line is not finished yet: the reader waits for the newline;
- it is cut to nothing in place (`copytruncate`, a shell's `>`): reading goes on at its beginning;
- it is replaced by an empty or a new one (`logrotate`): the rest of the old file is read, then the
  new one, and what the server said at its start stays known;
- it is replaced by a shortened copy of itself, which is how `keep_log.py` bounds its file (the
  middle is left out): then everything is read again, or lines would be counted twice.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from sidecar.startlog.reader import LogReader

_CHUNK_BYTES = 64 * 1024
# Enough of a beginning to recognise a file by: a line of vLLM with its time and process.
_HEAD_BYTES = 512
# A shorter beginning may stand in two files by chance.
_TELLING_BYTES = 200
# How much of the old file is searched for the beginning of the new one; keep_log.py's limit.
_SEARCHED_BYTES = 16 * 1024 * 1024


class LogFollower:
    """Reads what is new in a file into a `LogReader`.

    `error` is one line for people while the file cannot be read, else None; a file that does not
    exist yet is no error. After a rewrite `reader` is another object: ask for it each time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._offset = 0
        self._head = b""
        self.reader = LogReader()
        self.error: str | None = None
        self.caught_up = False

    def read_new(self, budget_bytes: int = 1024 * 1024) -> bool:
        """Reads up to `budget_bytes` of what is new; True if there was anything.

        `caught_up` tells afterwards whether the end of the file was reached.
        """
        try:
            read = self._read_new(budget_bytes)
        except OSError as error:
            self.error = f"cannot read the log {self._path}: {error.strerror or error}"
            self._close()
            return False
        self.error = None
        return read

    def close(self) -> None:
        """Lets the file go; what was read stays."""
        self._close()

    def _read_new(self, budget: int) -> bool:
        read = self._read_open_file(budget)
        budget -= read
        if budget > 0 and self._take_the_next_file():
            read += self._read_open_file(budget)
        return read > 0

    def _read_open_file(self, budget: int) -> int:
        if self._file is None:
            return 0
        self._begin_again_if_cut(self._file)
        read = 0
        self.caught_up = False
        while read < budget:
            chunk = os.pread(self._file.fileno(), min(_CHUNK_BYTES, budget - read), self._offset)
            if not chunk:
                self.caught_up = True
                break
            if self._offset < _HEAD_BYTES:
                self._head = (self._head[: self._offset] + chunk)[:_HEAD_BYTES]
            self._offset += len(chunk)
            read += len(chunk)
            self.reader.feed(chunk)
        return read

    def _begin_again_if_cut(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        if size >= self._offset and _head_of(file)[: len(self._head)] == self._head:
            return
        self.reader.forget_partial_line()
        self._offset, self._head = 0, b""

    def _take_the_next_file(self) -> bool:
        """Opens the file that the path names now, if it is another than the open one."""
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False
        if self._file is not None:
            held = os.fstat(self._file.fileno())
            if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                return False
        if not stat.S_ISREG(named.st_mode):
            raise OSError(0, "it is not a regular file")
        following = self._path.open("rb")
        former = self._file
        self._file, self._offset, self._head = following, 0, b""
        if former is not None:
            with former:
                if _is_copy(following, former):
                    self.reader = LogReader()
                else:
                    self.reader.finish()
        return True

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._offset, self._head = None, 0, b""


def _head_of(file: BinaryIO) -> bytes:
    return os.pread(file.fileno(), _HEAD_BYTES, 0)


def _is_copy(new: BinaryIO, old: BinaryIO) -> bool:
    """Whether the new file begins with something that stands in the old one."""
    head = _head_of(new)
    if b"\n" in head:
        head = head[: head.rindex(b"\n") + 1]
    if not head.strip():
        return False
    if _head_of(old).startswith(head):
        return True
    if len(head) < _TELLING_BYTES:
        return False  # one access-log line is like another
    size = os.fstat(old.fileno()).st_size
    start = max(0, size - _SEARCHED_BYTES)
    return head in os.pread(old.fileno(), _SEARCHED_BYTES, start)
