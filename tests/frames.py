"""Frames as the real pipeline makes them, from a handful of lines."""

from __future__ import annotations

from sidecar.model import Failure, Frame, GpuMemory, GpuReading, GpuReport, Page, Poll
from sidecar.pipeline import Pipeline

UNIX = 1_700_000_000.0
REFUSED = Failure("refused", "http://vllm:8000: connection refused; nothing listens there")
GPUS = GpuReport(
    (
        GpuReading(
            0,
            "GPU-1f2e",
            "NVIDIA H200",
            GpuMemory(143 * 2**30, 120 * 2**30, 22 * 2**30, 2**30),
            utilization_ratio=0.97,
        ),
    ),
    seconds=0.001,
)


def page(model_name: str = "m", *, engines: int = 1, at: float = 0.0) -> Page:
    """What a busy server shows; its counters grow with `at`."""
    names = {
        "num_requests_running": 3,
        "num_requests_waiting": 1,
        "kv_cache_usage_perc": 0.25,
        "num_preemptions_total": at * 2,
        "prompt_tokens_total": at * 100,
        "generation_tokens_total": at * 50,
        'request_success_total{FINISHED_REASON="stop",': at,
    }
    lines = []
    for engine in range(engines):
        for name, value in names.items():
            name, _, rest = name.partition("{")
            labels = f'{rest.lower()}engine="{engine}",model_name="{model_name}"'
            lines.append(f"vllm:{name}{{{labels}}} {value}")
        lines.append(
            f'vllm:cache_config_info{{block_size="16",engine="{engine}",'
            f'num_gpu_blocks="1000",gpu_memory_utilization="0.9"}} 1'
        )
    return Page("\n".join((*lines, "process_start_time_seconds 1.7e9\n")), 0.005)


def play(*answers: Page | Failure | None, gpus: GpuReport | Failure | None = GPUS) -> list[Frame]:
    """One frame a second from the answers of vLLM."""
    pipeline = Pipeline()
    return [
        pipeline.advance(Poll(UNIX + second, answer, gpus, "0.33.0", 4096))
        for second, answer in enumerate(answers)
    ]


def busy_frame(model_name: str = "m", *, engines: int = 1, seconds: int = 30) -> Frame:
    """After half a minute of work, when every rate is known."""
    return play(*(page(model_name, engines=engines, at=at) for at in range(seconds)))[-1]
