"""The wrapper that runs vLLM in a container and keeps its output for the sidecar."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "deploy" / "vllm" / "keep_log.py"


def load_script() -> ModuleType:
    # It is no part of a package: it runs by its path, in the image of the server.
    spec = importlib.util.spec_from_file_location("keep_log", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


keep_log = load_script()


def start(log: Path, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(log), sys.executable, "-u", "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(log: Path, program: str) -> tuple[int, str]:
    with start(log, program) as process:
        output, _ = process.communicate(timeout=30)
    return process.returncode, output


def test_output_of_both_streams_goes_on_and_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    program = "import sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(3)"
    assert run(log, program) == (3, "to stdout\nto stderr\n")
    assert log.read_text() == "to stdout\nto stderr\n"


def test_the_next_start_is_appended_on_a_line_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    run(log, "print('cut off', end='')")
    run(log, "print('again')")
    assert log.read_text() == "cut off\nagain\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command_and_its_last_words_are_kept(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "vllm.log"
    program = f"""
import signal, sys, time
def stop(*_):
    print("shutting down")
    sys.exit(0)
signal.signal({int(number)}, stop)
print("ready")
time.sleep(30)
"""
    with start(log, program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stdout.read() == "shutting down\n"
    assert log.read_text() == "ready\nshutting down\n"


def test_a_command_killed_by_a_signal_has_the_status_that_a_shell_gives(tmp_path: Path) -> None:
    program = "import os, signal; print('dying'); os.kill(os.getpid(), signal.SIGKILL)"
    assert run(tmp_path / "vllm.log", program) == (137, "dying\n")


def test_a_process_left_behind_does_not_hold_the_end_up(tmp_path: Path) -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '20'])"
    started = time.monotonic()
    with start(tmp_path / "vllm.log", program) as process:
        assert process.wait(15) == 0
        assert time.monotonic() - started < 10
        process.kill()


def test_without_a_place_for_the_file_the_command_still_runs(tmp_path: Path) -> None:
    status, output = run(tmp_path / "missing" / "vllm.log", "print('serving')")
    assert status == 0
    assert "keep_log: the output is no longer kept" in output
    assert output.endswith("serving\n")


def test_a_full_file_keeps_how_the_start_began_and_what_came_last(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("".join(f"earlier start, line {number}\n" for number in range(1000)))
    with closing(keep_log.BoundedLog(path, limit=4000)) as log:
        for number in range(500):
            log.write(f"line {number}\n".encode())
            assert path.stat().st_size <= 4000
    lines = path.read_text().splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 499"
    assert "earlier" not in path.read_text()
    left_out = [line for line in lines if line.startswith("... ")]
    assert len(left_out) == 1
    assert left_out[0].endswith(" bytes of output are left out here ...")


def test_the_end_of_the_start_before_is_kept_while_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("".join(f"earlier {number}\n" for number in range(1000)) + "out of memory\n")
    with closing(keep_log.BoundedLog(path, limit=4000)) as log:
        log.write(b"new start\n")
    lines = path.read_text().splitlines()
    assert lines[-2:] == ["out of memory", "new start"]
    assert path.stat().st_size <= 1010


def test_lines_without_end_do_not_break_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    with closing(keep_log.BoundedLog(path, limit=4000)) as log:
        for _ in range(100):
            log.write(b"x" * 700)
            assert path.stat().st_size <= 4000
