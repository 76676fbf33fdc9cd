"""Several starts in one log, and starts that only look like several."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.startlog import LogError, LogReader, read_log
from startlog.sample_logs import gib, public_log, read_text


def api(pid: int, text: str) -> str:
    return f"(APIServer pid={pid}) INFO 01-31 12:00:00 [api_server.py:1] {text}\n"


def engine(pid: int, text: str, name: str = "EngineCore_DP0") -> str:
    return f"({name} pid={pid}) INFO 01-31 12:00:00 [core.py:1] {text}\n"


def one_start(api_pid: int, engine_pid: int, room: str) -> str:
    return (
        api(api_pid, "")
        + api(api_pid, "       █     █     █▄   ▄█")
        + api(api_pid, "▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.25.0")
        + api(api_pid, "non-default args: {'model': 'm'}")
        + engine(engine_pid, "Initializing a V1 LLM engine (v0.25.0) with config: model='m', x=1")
        + engine(engine_pid, f"Available KV cache memory: {room} GiB")
    )


@pytest.mark.parametrize(("second_api", "second_engine"), [(30, 40), (1, 20), (1, 25)])
def test_a_restart_is_a_second_start(second_api: int, second_engine: int) -> None:
    """Inside a container the process ids may be the same again."""
    text = one_start(1, 20, "5.0") + one_start(second_api, second_engine, "7.0")
    reader = read_text(text)
    assert reader.start_count == 2
    assert [start.kv_cache_bytes_per_rank for start in reader.starts] == [gib(5.0), gib(7.0)]
    assert reader.last.process_names == {second_api: "APIServer", second_engine: "EngineCore_DP0"}


def test_many_starts_are_counted_and_the_newest_kept() -> None:
    text = "".join(one_start(10 * number, 10 * number + 1, "5.0") for number in range(1, 31))
    reader = read_text(text)
    assert reader.start_count == 30
    assert len(reader.starts) == 20


def test_engines_of_one_start_are_no_second_start() -> None:
    text = (
        api(1, "vLLM API server version 0.11.0")
        + engine(20, "Initializing a V1 LLM engine (v0.11.0) with config: x=1,")
        + engine(21, "Initializing a V1 LLM engine (v0.11.0) with config: x=1,", "EngineCore_DP1")
        + engine(20, "Available KV cache memory: 5.0 GiB")
        + engine(21, "Available KV cache memory: 4.9 GiB", "EngineCore_DP1")
    )
    reader = read_text(text)
    assert reader.start_count == 1
    assert reader.last.kv_cache_bytes_per_rank == gib(4.9)


def test_a_library_that_starts_twice() -> None:
    text = (
        "INFO 01-31 12:00:00 [utils.py:1] non-default args: {'gpu_memory_utilization': 0.5}\n"
        + engine(20, "Initializing a V1 LLM engine (v0.11.0) with config: x=1,")
        + engine(20, "Available KV cache memory: 5.0 GiB")
        + "INFO 01-31 12:00:00 [utils.py:1] non-default args: {'gpu_memory_utilization': 0.6}\n"
        + engine(33, "Initializing a V1 LLM engine (v0.11.0) with config: x=1,")
    )
    reader = read_text(text)
    assert reader.start_count == 2
    assert reader.last.gpu_memory_utilization == 0.6
    assert reader.last.kv_cache_bytes_per_rank is None


def test_the_end_of_a_start_in_front_of_the_first_banner_is_its_own() -> None:
    """keep_log.py keeps the last lines of the start before, without its beginning."""
    reader = read_text("INFO:     Application startup complete.\n" + one_start(1, 20, "5.0"))
    assert reader.start_count == 2
    assert (reader.starts[0].started, reader.last.started) == (True, False)


def test_what_stands_before_the_banner_belongs_to_it() -> None:
    text = "INFO 01-31 12:00:00 [__init__.py:1] Automatically detected platform cuda.\n"
    assert read_text(text + one_start(1, 20, "5.0")).start_count == 1


def test_output_that_was_left_out_is_counted() -> None:
    text = one_start(1, 20, "5.0") + "... 4096 bytes of output are left out here ...\n"
    assert read_text(text).last.left_out_bytes == 4096


def test_a_dump_of_the_configuration_is_no_start() -> None:
    dump = engine(20, "Dumping input data for V1 LLM engine (v0.25.0) with config: model='m',")
    assert read_text(one_start(1, 20, "5.0") + dump).start_count == 1


def test_an_empty_log_has_one_empty_start() -> None:
    reader = LogReader()
    assert reader.last.outcome == "incomplete"
    assert len(reader.starts) == 1


def test_a_log_that_cannot_be_read_says_so_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.log", tmp_path):
        with pytest.raises(LogError) as caught:
            read_log(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    broken = tmp_path / "broken.log.gz"
    broken.write_bytes(b"\x1f\x8b\x08rubbish")
    with pytest.raises(LogError):
        read_log(broken)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with public_log("v0.10.0-ok").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert read_log("-").last.kv_cache_tokens == 20960
