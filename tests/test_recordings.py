"""Recordings: what is written can be read again, and what cannot be read says where and why."""

from __future__ import annotations

import errno
import gzip
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model import (
    Failure,
    GpuMemory,
    GpuProcess,
    GpuReading,
    GpuReport,
    HostReading,
    Page,
    Poll,
)
from sidecar.recordings import FORMAT, Header, Recorder, RecordingError, open_recording

HEADER = Header("night-run", 1_700_000_000.0, 1.0, "0.33.0", ("--max-num-seqs", "32"))
CAPTURES = sorted((Path(__file__).parent / "captures" / "recordings").glob("*.jsonl.gz"))


def poll_at(second: float, text: str = "vllm:num_requests_running 3\n") -> Poll:
    return Poll(1_700_000_000.0 + second, Page(text, 0.005), None, "0.33.0")


# ---------------------------------------------------------------------------------------------
# There and back.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
BYTES = st.integers(0, 2**50)
PERCENT = st.integers(0, 100).map(lambda percent: percent / 100)
GPUS = st.builds(
    GpuReading,
    index=st.integers(0, 15),
    uuid=TEXTS,
    name=TEXTS,
    memory=st.none()
    | st.builds(
        GpuMemory,
        total_bytes=BYTES,
        used_bytes=BYTES,
        free_bytes=BYTES,
        reserved_bytes=st.none() | BYTES,
    ),
    utilization_ratio=PERCENT,
    memory_bandwidth_ratio=st.none() | PERCENT,
    processes=st.none()
    | st.lists(
        st.builds(GpuProcess, st.integers(1, 2**22), st.none() | BYTES, st.none() | TEXTS),
        max_size=3,
    ).map(tuple),
    error=st.none() | TEXTS,
    unified=st.booleans(),
    mig_instance=st.none() | TEXTS,
)
SECONDS = st.floats(0.0, 60.0)
POLLS = st.lists(
    st.builds(
        Poll,
        at=st.floats(0.0, 4e9),
        vllm=st.none() | st.builds(Page, TEXTS, SECONDS) | st.builds(Failure, TEXTS),
        gpus=st.none()
        | st.builds(Failure, TEXTS)
        | st.builds(GpuReport, st.lists(GPUS, max_size=3).map(tuple), st.just(0.0)),
        vllm_version=st.none() | st.text("0123456789.", min_size=1),
        max_model_len=st.none() | st.integers(1, 2**40),
        phase=st.none() | TEXTS,
        host=st.none() | st.builds(HostReading, BYTES, BYTES, BYTES, BYTES),
    ),
    max_size=6,
).map(lambda polls: sorted(polls, key=lambda poll: poll.at))


@given(POLLS, TEXTS.filter(bool), st.lists(TEXTS, max_size=3).map(tuple))
@settings(max_examples=60, deadline=None)
def test_what_is_recorded_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    polls: list[Poll],
    name: str,
    vllm_args: tuple[str, ...],
) -> None:
    path = tmp_path_factory.mktemp("r") / "r.jsonl.gz"
    header = Header(name, 5.0, 1.0, None, vllm_args)
    with Recorder(path, header) as recorder:
        for poll in polls:
            recorder.add(poll)
    recording = open_recording(path)
    assert recording.header == header
    assert list(recording.polls()) == [poll for poll in polls if poll.vllm is not None]


def test_what_a_failure_said_and_how_long_nvml_took_are_not_kept(tmp_path: Path) -> None:
    poll = Poll(1.0, Failure("refused", "http://internal:8000"), GpuReport((), 0.5, "580"))
    with Recorder(tmp_path / "r", HEADER) as recorder:
        recorder.add(poll)
    (read,) = open_recording(tmp_path / "r").polls()
    assert read.vllm == Failure("refused")
    assert read.gpus == GpuReport((), 0.0)


def test_lines_without_a_release_have_that_of_the_header(tmp_path: Path) -> None:
    polls = [replace(poll_at(0), vllm_version=None), replace(poll_at(1), vllm_version="0.9.0")]
    with Recorder(tmp_path / "r", HEADER) as recorder:
        for poll in polls:
            recorder.add(poll)
    read = [poll.vllm_version for poll in open_recording(tmp_path / "r").polls()]
    assert read == ["0.33.0", "0.9.0"]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name.partition(".")[0])
def test_recordings_of_real_servers_are_read_to_the_end(path: Path) -> None:
    recording = open_recording(path)
    assert recording.header.vllm_version == "0.25.0"
    polls = list(recording.polls())
    assert len(polls) >= 60
    assert all(isinstance(poll.gpus, GpuReport) for poll in polls)
    assert all(poll.phase for poll in polls)


# ---------------------------------------------------------------------------------------------
# Writing.


def test_an_existing_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_text("precious")
    with pytest.raises(RecordingError, match=r"r\.jsonl\.gz: already exists; choose another"):
        Recorder(path, HEADER)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/r.gz", "No such file or directory"), ("plain/r.gz", "Not a directory")],
)
def test_a_file_that_cannot_be_made(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(RecordingError, match=f"{name}: cannot be written: {reason}$"):
        Recorder(tmp_path / name, HEADER)


def read_until_it_breaks(path: Path) -> tuple[list[Poll], str | None]:
    polls: list[Poll] = []
    try:
        for poll in open_recording(path).polls():
            polls.append(poll)  # noqa: PERF402 - those before the fault are wanted
    except RecordingError as error:
        return polls, str(error)
    return polls, None


def test_a_writer_that_is_killed_loses_at_most_ten_seconds(tmp_path: Path) -> None:
    path, copy = tmp_path / "r.gz", tmp_path / "copy.gz"
    with Recorder(path, HEADER) as recorder:
        for second in range(26):
            recorder.add(poll_at(second))
        shutil.copy(path, copy)  # what is on disk at this moment
    polls, error = read_until_it_breaks(copy)
    assert [poll.at - 1_700_000_000 for poll in polls] == list(range(21))
    assert error == f"{copy}: ends in the middle, after line 22; the writer was interrupted"
    assert read_until_it_breaks(path) == ([poll_at(second) for second in range(26)], None)


def test_the_header_is_on_disk_at_once(tmp_path: Path) -> None:
    path, copy = tmp_path / "r.gz", tmp_path / "copy.gz"
    with Recorder(path, HEADER):
        shutil.copy(path, copy)
    assert open_recording(copy).header == HEADER


class FullDisk(io.FileIO):
    """Takes so many bytes and then no more."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "xb")
        self._room = room

    def write(self, data: Any, /) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FullDisk]]:
    disks: list[FullDisk] = []

    def open_on_full_disk(path: Path, *_: object, **__: object) -> io.TextIOWrapper:
        disks.append(FullDisk(path, room=5_000))
        return io.TextIOWrapper(gzip.GzipFile(fileobj=disks[-1], mode="wb"), write_through=False)

    monkeypatch.setattr("sidecar.recordings.gzip.open", open_on_full_disk)
    yield disks
    for disk in disks:
        disk.close()


def test_a_full_disk_is_told_once_and_what_was_written_stays(
    tmp_path: Path, full_disk: list[FullDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.gz"
    recorder = Recorder(path, HEADER)

    def fill() -> None:
        for second in range(10_000):
            noise = "".join(chr(32 + (second * second * i) % 90) for i in range(200))
            recorder.add(poll_at(second, noise))

    with pytest.raises(RecordingError, match=r"r\.gz: cannot be written: No space left on device"):
        fill()
    recorder.close()
    recorder.close()
    assert len(full_disk) == 1
    monkeypatch.undo()
    polls, error = read_until_it_breaks(path)
    assert len(polls) >= 10
    assert error is not None
    assert "ends in the middle" in error


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, full_disk: list[FullDisk]) -> None:
    recorder = Recorder(tmp_path / "r.gz", HEADER)
    recorder.add(poll_at(0))
    full_disk[0]._room = 0
    with pytest.raises(RecordingError, match="No space left on device"):
        recorder.close()
    recorder.close()


# ---------------------------------------------------------------------------------------------
# Reading what is no recording, or a damaged one.

GOOD_HEADER = {"format": FORMAT, "version": 1, "name": "n", "started_at": 1, "period_seconds": 1}
GOOD_LINE = {"at": 5, "vllm": {"text": "", "seconds": 0.1}}


def written(path: Path, *lines: object) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode("utf-8", "surrogatepass")))
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "line 1: not JSON"),
        ("[]", "line 1: not a JSON object"),
        ("3", "line 1: not a JSON object"),
        ("{}", "line 1: not a recording of vllm-sidecar"),
        ({**GOOD_HEADER, "format": "asciicast"}, "line 1: not a recording of vllm-sidecar"),
        ({**GOOD_HEADER, "version": 2}, "line 1: format version 2; only 1 is read"),
        ({**GOOD_HEADER, "version": None}, "line 1: format version None; only 1 is read"),
        ({"format": FORMAT, "version": 1}, "line 1: header without usable 'started_at'"),
        ({**GOOD_HEADER, "started_at": "now"}, "line 1: header without usable"),
        ({**GOOD_HEADER, "started_at": float("nan")}, "line 1: header without usable"),
        ({**GOOD_HEADER, "period_seconds": float("inf")}, "line 1: header without usable"),
        ({**GOOD_HEADER, "vllm_args": 5}, "line 1: header without usable"),
        ('{"format": "vllm-side', "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON that can be read"),
        ("\ud800", "cannot be read"),
    ],
)
def test_headers_that_are_refused(tmp_path: Path, header: object, message: str) -> None:
    path = written(tmp_path / "r.gz", header)
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"plain text", "not gzip, so not a recording of vllm-sidecar"),
        (json.dumps(GOOD_HEADER).encode(), "not gzip, so not a recording of vllm-sidecar"),
        (gzip.compress(json.dumps(GOOD_HEADER).encode())[:30], "ends in the middle"),
        (gzip.compress(b"x" * 999)[:12] + b"\xff" * 20, "cannot be read"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.gz"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"/gone: no such file$"):
        open_recording(tmp_path / "gone")
    with pytest.raises(RecordingError, match=r"Is a directory$"):
        open_recording(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        {},
        {"at": 5},
        {"at": 5, "vllm": None},
        {"at": 5, "vllm": []},
        {"at": 5, "vllm": {"text": ""}},
        {"at": 5, "vllm": {"text": "", "seconds": None}},
        {"at": 5, "vllm": {"text": "", "seconds": "nan"}},
        {"at": "now", "vllm": {"error": "refused"}},
        {"at": None, "vllm": {"error": "refused"}},
        {"at": float("nan"), "vllm": {"error": "refused"}},
        {"at": float("-inf"), "vllm": {"error": "refused"}},
        {"at": 4.9, "vllm": {"error": "refused"}},
        {**GOOD_LINE, "gpus": 3},
        {**GOOD_LINE, "gpus": [3]},
        {**GOOD_LINE, "gpus": [{"index": 0}]},
        {**GOOD_LINE, "gpus": [{"index": 0, "uuid": "u", "memory": {"total": 1}}]},
        {**GOOD_LINE, "gpus": [{"index": float("inf"), "uuid": "u"}]},
        {**GOOD_LINE, "gpus": [{"index": 0, "uuid": "u", "utilization": 5}]},
        {**GOOD_LINE, "gpus": [{"index": 0, "uuid": "u", "processes": [{}]}]},
        {**GOOD_LINE, "gpus": [{"index": 0, "uuid": "u", "processes": 7}]},
    ],
)
def test_a_line_that_is_no_poll_is_named_after_those_before_it(
    tmp_path: Path, line: object
) -> None:
    path = written(tmp_path / "r.gz", GOOD_HEADER, GOOD_LINE, line, GOOD_LINE)
    polls, error = read_until_it_breaks(path)
    assert len(polls) == 1
    assert error is not None
    assert error.startswith(f"{path}: line 3: not ")
    assert "\n" not in error


POLL_KEYS = ("at", "vllm", "text", "seconds", "error", "gpus", "gpus_error", "phase", "uuid")
GPU_KEYS = ("memory", "total", "used", "free", "reserved", "utilization", "gpu", "processes", "pid")
OTHER_KEYS = ("index", "name", "vllm_version", "max_model_len", "vllm_args", "started_at")
KEYS = st.sampled_from([*POLL_KEYS, *GPU_KEYS, *OTHER_KEYS])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_recording_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("r") / "r.gz"
    values: st.SearchStrategy[Any] = st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=6,
    )
    line = {**GOOD_LINE, **data.draw(st.dictionaries(KEYS, values, max_size=3))}
    header = {**GOOD_HEADER, **data.draw(st.dictionaries(KEYS, values, max_size=2))}
    content = bytearray(written(path, header, GOOD_LINE, line).read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(10, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    read_until_it_breaks(path)
