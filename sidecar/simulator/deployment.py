"""The one server that is simulated: its model, its device, its flags, and what follows from them.

Nothing here changes while the simulation runs, so a tour through the scenarios needs no restart:
the load alone differs.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one engine step takes: a constant, and a part for each token that is worked on.

    A decode step reads all weights once (16 GB at 2 TB/s is 8 ms) and, for every running
    sequence, its KV (1,000 tokens of 128 KiB at the same speed are about 0.06 ms). A prompt token
    costs arithmetic instead: 16 GFLOP at some 500 TFLOP/s are 0.03 ms. A batch of 50 sequences
    so takes about 10 ms a step and one of 120 about 14 ms, near what recordings of an 8B model
    under vLLM 0.25 show (10 ms at 32 running, 16-18 ms at 40-110).
    """

    base_seconds: float = 0.008
    decoded_token_seconds: float = 0.00005
    prefilled_token_seconds: float = 0.00003

    def seconds(self, decoded_tokens: int, prefilled_tokens: int) -> float:
        """The duration of a step that works on so many tokens of each kind."""
        return (
            self.base_seconds
            + decoded_tokens * self.decoded_token_seconds
            + prefilled_tokens * self.prefilled_token_seconds
        )


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Llama-8B-shaped model in bfloat16 on one 80 GiB device, and the launch flags.

    The number of KV blocks is not chosen: it is what the flags leave, as vLLM computes it
    (utilisation times what the driver lets programs have, less weights, profiled activations and
    the context, cut down to whole blocks). `driver_bytes` are in use but belong to no process.
    """

    vllm_version: str = "0.33.0"
    model_name: str = "simulated/llama-8b"
    block_size_tokens: int = 16
    max_model_len_tokens: int = 4096
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    gpu_memory_utilization: float = 0.33
    kv_bytes_per_token: int = 131_072  # 32 layers x 8 KV heads x (128 + 128) values x 2 bytes
    weights_bytes: int = 8_030_261_248 * 2
    activation_peak_bytes: int = 1126 * MIB  # a step at the full token budget
    context_bytes: int = 350 * MIB  # CUDA context, libraries, captured graphs
    device_total_bytes: int = 80 * GIB
    device_reserved_bytes: int = 615 * MIB
    driver_bytes: int = 9 * MIB
    step_cost: StepCost = StepCost()

    @property
    def launch_arguments(self) -> tuple[str, ...]:
        """What a real server would have been started with to be this one."""
        return (
            *("--model", self.model_name),
            *("--gpu-memory-utilization", str(self.gpu_memory_utilization)),
            *("--max-model-len", str(self.max_model_len_tokens)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            *("--block-size", str(self.block_size_tokens)),
            "--no-enable-prefix-caching",
        )

    @property
    def bytes_per_block(self) -> int:
        """KV bytes of one block: 2 MiB with the defaults."""
        return self.block_size_tokens * self.kv_bytes_per_token

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks in the pool, the null block included, as vLLM's `num_gpu_blocks` counts them."""
        allowed_bytes = int(
            self.gpu_memory_utilization * (self.device_total_bytes - self.device_reserved_bytes)
        )
        kv_bytes = (
            allowed_bytes - self.weights_bytes - self.activation_peak_bytes - self.context_bytes
        )
        return kv_bytes // self.bytes_per_block

    @property
    def kv_cache_bytes(self) -> int:
        """Device bytes of the KV pool; taken whole at the start."""
        return self.num_gpu_blocks * self.bytes_per_block

    @property
    def kv_cache_size_tokens(self) -> int:
        """What vLLM 0.24 and later print under this name: the null block counts too."""
        return self.num_gpu_blocks * self.block_size_tokens
