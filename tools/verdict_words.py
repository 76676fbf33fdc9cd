"""One line for each verdict: what to do, for a table that has no room for the arithmetic.

The verdict itself says which flag and which value; `docs/verdicts.md` says why. A test compares
the codes with those that the sidecar can say.
"""

from __future__ import annotations

from collections.abc import Mapping

WHAT_TO_DO: Mapping[str, str] = {
    "starting": "Wait: loading a model takes minutes.",
    "idle": "Nothing: nobody asks for anything.",
    "healthy": "Nothing.",
    "asleep": "Nothing: it was put to sleep.",
    "restarted": "Nothing: figures begin again.",
    "paused": "Nothing: it was paused on request.",
    "vllm_down": "Read how its log ends; then start it.",
    "vllm_blind": "Look at the address, the proxy, the certificate.",
    "kv_exhausted": "More KV cache, then --watermark, then --max-num-seqs.",
    "kv_pressure": "Nothing yet: full, and nothing is preempted.",
    "over_reserved": "Leave it, or use the room for more or longer requests.",
    "memory_held": "Nothing: the pool is allocated once.",
    "seqs_capped": "--max-num-seqs up, one step at a time.",
    "token_budget_capped": "--max-num-batched-tokens up, or more compute.",
    "lora_capped": "--max-loras up.",
    "internal_fragmentation": "Smaller --block-size, if blocks are scarce.",
    "kv_leaked": "Restart this engine when it suits.",
    "runaway_request": "Limit max_tokens; set stop conditions.",
    "kv_unexplained": "Look at the longest requests.",
    "stalled": "Paused? Hung? Look first, then restart.",
    "co_tenant": "End or move the other process.",
    "orphan": "End the pids that are left.",
    "memory_growth": "A little less for vLLM; find what grows.",
    "headroom_low": "A little less for vLLM at the next start.",
    "host_memory_low": "Free memory on the host.",
    "metrics_missing": "Log stats on? Is this vLLM's own page?",
    "metrics_invalid": "Look at the page: a proxy that merges?",
    "gpu_unreadable": "See NVML's error in the sidecar's log.",
    "started": "Nothing.",
    "incomplete": "The log ends too early to judge.",
    "no_kv_memory": "More memory for vLLM, or a smaller model.",
    "max_len_too_long": "--max-model-len down to what fits.",
    "not_enough_free": "End the neighbour, or ask for less.",
    "graph_memory": "Fewer sizes of CUDA graphs.",
    "weights_too_big": "More GPUs, or a quantised model.",
    "activation_peak": "--max-num-batched-tokens down.",
    "single_allocation": "Another attention backend.",
    "allocator_slack": "expandable_segments.",
    "neighbour_left": "Start it again.",
    "runtime_oom": "Who held the memory? Leave more room.",
    "host_oom": "Free memory on the host.",
    "bad_argument": "Drop or replace the flag.",
    "not_memory": "No memory flag helps: read the log.",
}
