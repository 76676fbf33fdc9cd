"""The way of the host's memory and of process titles from the kernel's files to /metrics."""

from __future__ import annotations

from pathlib import Path

from fake_pynvml import one_gpu

from sidecar.exposition import Board
from sidecar.model import GpuReport
from sidecar.pipeline import Pipeline
from sidecar.poller import Poller
from sidecar.sources.host import read_host
from sidecar.sources.nvml import NvmlSource
from sidecar.sources.processes import HOST_NAMESPACE
from sidecar.sources.vllm import VllmSource


async def test_each_poll_reads_the_host_anew(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    vllm = VllmSource("http://127.0.0.1:1")
    gpus = NvmlSource(library=one_gpu(), proc=tmp_path)
    board = Board()
    poller = Poller(vllm, gpus, Pipeline(), board, read_host=lambda: read_host(tmp_path))
    try:
        for available in (500, 300):
            meminfo.write_text(
                f"MemTotal: 1000 kB\nMemAvailable: {available} kB\n"
                "SwapTotal: 100 kB\nSwapFree: 90 kB\n"
            )
            await poller.poll_once()
            text = board.render("")[0].decode()
            assert f"vllm_sidecar_host_memory_available_bytes {available * 1024:.1f}" in text
            assert "vllm_sidecar_host_swap_used_bytes 10240.0" in text
        meminfo.unlink()
        await poller.poll_once()
        assert "vllm_sidecar_host_" not in board.render("")[0].decode()
    finally:
        await vllm.close()
        await gpus.close()


async def test_processes_of_a_gpu_have_titles(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(HOST_NAMESPACE)
    (tmp_path / "4242").mkdir()
    (tmp_path / "4242/stat").write_text(f"4242 (VLLM::EngineCor) S 1 {'0 ' * 17}7 0\n")
    (tmp_path / "4242/cmdline").write_bytes(b"VLLM::EngineCore\0\0\0")
    gpus = NvmlSource(library=one_gpu(), proc=tmp_path)
    report = await gpus.read()
    await gpus.close()
    assert isinstance(report, GpuReport)
    processes = report.gpus[0].processes
    assert processes is not None
    assert [process.title for process in processes] == ["VLLM::EngineCore"]
