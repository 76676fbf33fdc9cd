"""What one start of a vLLM server said about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidecar.startlog.failures import FailureKind, LogFailure, decisive
from sidecar.startlog.serving import Serving

EngineKind = Literal["V0", "V1"]
Outcome = FailureKind | Literal["started", "incomplete"]


@dataclass(frozen=True, slots=True)
class Start:
    """One start, from its first line to the last before the next start. None: not said.

    Memory figures are bytes on one rank (one GPU), as vLLM rounded them, mostly to 0.01 GiB. Where
    ranks differ, the largest use and the smallest room are kept, since the tightest rank decides.

    arguments          the flags as printed: those that differ from the defaults (0.8 and later) or
                       all (before); never None values, secrets hidden. The configuration line adds
                       model, dtype, parallel sizes and the like.
    vllm_version       as the banner or the engine says, with its local part (`0.13.0+nv26.01`).
    kv_cache_bytes_per_rank         what was left for the cache; negative when the rest exceeds the
                       budget. V0 engines before 0.6.4 and V1 before 0.9.1 do not say it.
    kv_cache_tokens    per engine. 0.8 to 0.10: blocks x block size; 0.11 to 0.21: divided by the
                       groups of layers; 0.22 and later: max_concurrency x max_model_len.
    activation_bytes_per_rank       the peak of PyTorch while profiling, above the weights.
    consumed_bytes_per_rank         weights and non-torch memory in one figure (0.27 and later).
    cuda_graph_bytes_per_rank       what capturing took; may be negative where other memory was
                       freed meanwhile. Outside the budget before 0.20.
    cuda_graph_estimated_bytes_per_rank   the estimate before capturing; within the budget from
                       0.20.
    equivalent_utilization          the same budget without counting graphs (0.20 and later).
    suggested_utilization           what would restore the KV cache that the graphs took.
    kv_cache_to_fit_bytes, kv_cache_to_fill_bytes   values that vLLM suggests for
                       `--kv-cache-memory-bytes`: within the utilization, and of the whole device.
    total, free, desired bytes      the device as the check at start-up saw it.
    padding_waste_ratio             the worst share of KV memory that padding layers may waste.
    world_size, ranks  as the workers name themselves; often only rank 0 does.
    process_names      the server's own processes by id, as its log names them.
    started            it has served: its HTTP server was up, or it printed its load.
    engine_ready       the engine finished profiling, caches and warm-up.
    capturing_graphs   it began to capture CUDA graphs and has not finished.
    shut_down          it was asked to stop.
    first_stamp, last_stamp, last_text    of its lines; the text is shortened.
    left_out_bytes     what `keep_log.py` left out in the middle.
    survived_failures  how many of the failures were printed before the last sign of life.
    last_exception     the last line of the newest traceback that was not only a warning.
    """

    vllm_version: str | None = None
    engine: EngineKind | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    model: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None

    weights_bytes_per_rank: int | None = None
    activation_bytes_per_rank: int | None = None
    non_torch_bytes_per_rank: int | None = None
    consumed_bytes_per_rank: int | None = None
    cuda_graph_bytes_per_rank: int | None = None
    cuda_graph_estimated_bytes_per_rank: int | None = None
    cuda_graph_capture_seconds: float | None = None
    kv_cache_bytes_per_rank: int | None = None
    kv_cache_tokens: int | None = None
    gpu_blocks: int | None = None
    cpu_blocks: int | None = None
    max_concurrency: float | None = None
    equivalent_utilization: float | None = None
    suggested_utilization: float | None = None
    kv_cache_to_fit_bytes: int | None = None
    kv_cache_to_fill_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    desired_bytes: int | None = None
    padding_waste_ratio: float | None = None

    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    process_names: Mapping[int, str] = field(default_factory=dict)
    started: bool = False
    engine_ready: bool = False
    shut_down: bool = False
    capturing_graphs: bool = False
    first_stamp: str | None = None
    last_stamp: str | None = None
    last_text: str | None = None
    last_exception: str | None = None
    left_out_bytes: int = 0
    serving: Serving = field(default_factory=Serving)
    failures: tuple[LogFailure, ...] = ()
    survived_failures: int = 0

    @property
    def capacity_tokens(self) -> int | None:
        """KV tokens as said, else from the blocks of a V0 engine and their size."""
        if self.kv_cache_tokens is not None:
            return self.kv_cache_tokens
        if self.gpu_blocks is not None and self.block_size is not None:
            return self.gpu_blocks * self.block_size
        if self.max_concurrency is not None and self.max_model_len is not None:
            return round(self.max_concurrency * self.max_model_len)
        return None

    @property
    def reached_engine(self) -> bool:
        """Whether this start got beyond reading its arguments, or failed."""
        said = (self.weights_bytes_per_rank, self.kv_cache_tokens, self.gpu_blocks)
        return (
            self.started
            or self.engine_ready
            or bool(self.failures)
            or self.kv_cache_bytes_per_rank is not None
            or any(figure is not None for figure in said)
        )

    @property
    def decisive_failure(self) -> LogFailure | None:
        """The failure that ended this start or this run; None if the server went on after all."""
        dead = any(failure.kind in ("engine_dead", "killed") for failure in self.failures)
        if not dead and self.survived_failures >= len(self.failures):
            return None
        return decisive(self.failures)

    @property
    def outcome(self) -> Outcome:
        """The kind of the decisive failure, else `started`, else `incomplete`.

        A failure of a server that had been up is told from one that never was by `started`.
        """
        failure = self.decisive_failure
        if failure is not None:
            return failure.kind
        return "started" if self.started or self.engine_ready else "incomplete"
