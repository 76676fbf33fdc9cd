"""The settings that vLLM shows as labels of `vllm:cache_config_info`."""

from __future__ import annotations

from sidecar.simulator.deployment import Deployment

ENGINE_INDEX = "0"
"""The value of every `engine` label: the server has one engine."""


def cache_config_labels(deployment: Deployment) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` as vLLM 0.33 has them: every setting as text."""
    tokens = deployment.kv_cache_size_tokens
    return {
        "_block_size_resolved": "True",
        "block_size": str(deployment.block_size_tokens),
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": "None",
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": "False",
        "engine": ENGINE_INDEX,
        "gpu_memory_utilization": str(deployment.gpu_memory_utilization),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(tokens / deployment.max_model_len_tokens),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "auto",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(deployment.num_gpu_blocks),
        "num_gpu_blocks_override": "None",
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "simple_cpu_offload_num_blocks": "None",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "False",
    }
