"""The NVML source's thread: hangs, deadlines, closing, and the real binding without a GPU."""

from __future__ import annotations

import asyncio
import ctypes.util
import logging
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from fake_pynvml import FakePynvml, one_gpu

from sidecar.model import Failure, GpuReport
from sidecar.sources.nvml import NvmlSource, parse_selection


class Gate:
    """Blocks the named call until it is opened."""

    def __init__(self, library: FakePynvml, name: str) -> None:
        self._name = name
        self._opened = threading.Event()
        self.entered = 0
        library.on_call = self._enter

    def _enter(self, name: str) -> None:
        if name == self._name:
            self.entered += 1
            assert self._opened.wait(30)

    def open(self) -> None:
        self._opened.set()


async def failure_of(source: NvmlSource) -> Failure:
    answer = await source.read()
    assert isinstance(answer, Failure), answer
    return answer


async def until_it_answers(source: NvmlSource) -> None:
    for _ in range(2000):
        if isinstance(await source.read(), GpuReport):
            return
        await asyncio.sleep(0.005)
    pytest.fail("the source did not come back")


async def test_a_stuck_call_times_out_and_does_not_pile_up() -> None:
    library = one_gpu()
    source = NvmlSource(library=library, deadline_seconds=0.1)
    assert isinstance(await source.read(), GpuReport)
    gate = Gate(library, "utilization")
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    heartbeat = asyncio.create_task(heart())
    failure = await failure_of(source)
    heartbeat.cancel()
    assert failure.reason == "timeout"
    assert "utilisation of GPU 0" in failure.detail
    assert beats > 5, "the event loop must go on while the call is stuck"
    began = time.monotonic()
    for _ in range(20):
        assert (await failure_of(source)).reason == "timeout"
    assert time.monotonic() - began < 0.1, "while it is stuck, reads fail at once"
    assert gate.entered == 1
    gate.open()
    await until_it_answers(source)
    await source.close()
    assert library.calls["nvmlInit"] == 1
    assert gate.entered == 2, "reads that timed out must not have queued up"


async def test_a_start_that_takes_long_is_a_timeout_then_a_report() -> None:
    library = one_gpu()
    gate = Gate(library, "nvmlInit")
    source = NvmlSource(library=library, deadline_seconds=0.05)
    failure = await failure_of(source)
    assert (failure.reason, "nvmlInit" in failure.detail) == ("timeout", True)
    gate.open()
    await until_it_answers(source)
    await source.close()
    assert library.calls["nvmlInit"] == 1


async def test_a_cancelled_read_leaves_the_source_usable() -> None:
    library = one_gpu()
    gate = Gate(library, "memory_v2")
    source = NvmlSource(library=library)
    task = asyncio.create_task(source.read())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await until_it_answers(source)
    await source.close()


async def test_every_call_is_made_on_one_daemon_thread() -> None:
    library = one_gpu()
    threads: set[threading.Thread] = set()
    library.on_call = lambda name: threads.add(threading.current_thread())
    source = NvmlSource(library=library)
    await source.read()
    await source.read()
    await source.close()
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert library.calls["nvmlShutdown"] == 1
    thread.join(5)
    assert not thread.is_alive()


async def test_closing_twice_or_before_the_first_read_is_fine() -> None:
    library = one_gpu()
    unread = NvmlSource(library=library)
    await unread.close()
    await unread.close()
    assert not library.calls
    assert (await failure_of(unread)).detail == "the NVML source is closed"
    source = NvmlSource(library=library)
    await source.read()
    await source.close()
    await source.close()
    assert library.calls["nvmlShutdown"] == 1


async def test_close_survives_what_shutdown_says() -> None:
    library = one_gpu()
    library.errors["nvmlShutdown"] = 1
    source = NvmlSource(library=library)
    assert isinstance(await source.read(), GpuReport)
    began = time.monotonic()
    await source.close()
    assert time.monotonic() - began < 0.4


async def test_close_does_not_wait_for_a_stuck_call() -> None:
    library = one_gpu()
    gate = Gate(library, "memory_v2")
    source = NvmlSource(library=library, deadline_seconds=0.02)
    assert (await failure_of(source)).reason == "timeout"
    began = time.monotonic()
    await source.close()
    assert time.monotonic() - began < 1.5
    gate.open()


def test_an_answer_after_the_loop_has_ended_is_dropped() -> None:
    library = one_gpu()
    gate = Gate(library, "memory_v2")
    source = NvmlSource(library=library, deadline_seconds=0.02)
    failure = asyncio.run(source.read())
    assert isinstance(failure, Failure)
    gate.open()
    deadline = time.monotonic() + 5
    while not library.calls["processes_v3"] and time.monotonic() < deadline:
        time.sleep(0.005)
    asyncio.run(source.close())
    assert library.calls["nvmlShutdown"] == 1, "the thread must survive an unwanted answer"


def test_a_stuck_call_does_not_hold_the_interpreter() -> None:
    script = """
        import asyncio, threading
        from fake_pynvml import FakeGpu, FakePynvml
        from sidecar.sources.nvml import NvmlSource

        async def main():
            library = FakePynvml(FakeGpu("GPU-a"))
            library.on_call = lambda name: threading.Event().wait()
            source = NvmlSource(library=library, deadline_seconds=0.05)
            print((await source.read()).reason)
            await source.close()

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")


# -- The real binding -----------------------------------------------------------------------------


def test_importing_the_source_does_not_import_the_binding() -> None:
    script = "import sys, sidecar.sources.nvml; print('pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "False\n"


@pytest.mark.skipif(
    ctypes.util.find_library("nvidia-ml") is not None, reason="this host has an NVIDIA driver"
)
async def test_the_real_binding_on_a_host_without_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = NvmlSource()
    assert await source.read() is None
    assert await source.read() is None
    await source.close()
    assert len(caplog.messages) == 1
    assert "libnvidia-ml.so.1 is not here" in caplog.messages[0]
    named = NvmlSource(parse_selection("0"))
    assert (await failure_of(named)).reason == "library_missing"
    await named.close()


def test_the_real_binding_has_every_name_that_the_fake_has() -> None:
    import pynvml

    names = [name for name in dir(FakePynvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert pynvml.nvmlMemory_v2 == FakePynvml.nvmlMemory_v2
    assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)
    assert pynvml.NVMLError(15).value == 15
