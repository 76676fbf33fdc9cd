"""The launch flags that vLLM runs with, as far as they are known.

Three places tell: the labels of `vllm:cache_config_info` (in force, so they win), the log of the
start, and the flags as somebody wrote them down (`SIDECAR_VLLM_ARGS`, a recording's header).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sidecar.model import CacheConfig, Verdict
from sidecar.sources.releases import Release

_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization"}

FLAG_RELEASES: Mapping[str, tuple[Release, Release | None]] = {
    "--watermark": ((0, 24, 0), None),
    "--kv-cache-memory-bytes": ((0, 10, 2), None),
    "--kv-offloading-size": ((0, 11, 1), None),
    "--swap-space": ((0, 0, 0), (0, 18, 0)),
    "--preemption-mode": ((0, 5, 0), (0, 11, 0)),
    "--kv-cache-dtype": ((0, 3, 0), None),
    "--cudagraph-capture-sizes": ((0, 11, 1), None),
    "--cuda-graph-sizes": ((0, 9, 0), (0, 13, 0)),
    "--max-loras": ((0, 3, 0), None),
    "--quantization": ((0, 2, 0), None),
    "--enforce-eager": ((0, 2, 6), None),
    "--cpu-offload-gb": ((0, 5, 3), None),
    "--num-gpu-blocks-override": ((0, 4, 1), None),
    "--max-num-batched-tokens": ((0, 2, 2), None),
    "--enable-chunked-prefill": ((0, 4, 0), None),
}
"""Flag -> first release that has it, and the first that no longer has it (read in the sources of
vLLM 0.2.3 to 0.33.0). Flags not listed are in all of them."""


def has_flag(flag: str, release: Release | None) -> bool:
    """Whether a release knows a flag. Where the release is not known only flags that all the
    current ones have are assumed."""
    since, until = FLAG_RELEASES.get(flag, ((0, 0, 0), None))
    if release is None:
        return until is None and since <= (0, 11, 1)
    return since <= release and (until is None or release < until)


def with_known_flags(verdict: Verdict, release: Release | None) -> Verdict:
    """A verdict without advice that this release of vLLM would refuse."""
    known = tuple(item for item in verdict.advice if has_flag(item.flag, release))
    return verdict if len(known) == len(verdict.advice) else replace(verdict, advice=known)


@dataclass(frozen=True, slots=True)
class LaunchFlags:
    """Flags by name with underscores; a value is text, and "True" for a bare switch."""

    values: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return None if value in (None, "None") else value

    def number(self, name: str) -> float | None:
        try:
            return float(self.values[name])
        except (KeyError, ValueError):
            return None

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def is_on(self, name: str) -> bool | None:
        """True or False where it is stated, None where it is not."""
        value = self.values.get(name)
        return None if value is None else value not in ("False", "false", "0")

    def merged_with(self, stronger: Mapping[str, str]) -> LaunchFlags:
        """These flags, overruled by others."""
        return LaunchFlags({**self.values, **stronger})


def parse_arguments(arguments: Iterable[str]) -> LaunchFlags:
    """Read `--max-num-seqs 32`, `--max-num-seqs=32`, `--enforce-eager` and `-tp 2`.

    Positional words are the model's name or a subcommand and are left out.
    """
    values: dict[str, str] = {}
    waiting: str | None = None
    for word in arguments:
        name = word.lstrip("-")
        is_flag = word.startswith("-") and not _is_number(word)
        if not is_flag:
            if waiting is not None:
                values[waiting] = word
            waiting = None
            continue
        name, equals, value = name.partition("=")
        name = _SHORT.get(name, name).replace("-", "_")
        if name.startswith("no_"):
            values[name.removeprefix("no_")] = "False"
            waiting = None
        else:
            values[name] = value if equals else "True"
            waiting = None if equals else name
    return LaunchFlags(values)


_LABELS = (
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "cache_dtype",
    "enable_prefix_caching",
)


def label_values(config: CacheConfig | None) -> Mapping[str, str]:
    """The flags that the page states, under the flags' own names."""
    if config is None:
        return {}
    found = {name: config.labels[name] for name in _LABELS if name in config.labels}
    if "cache_dtype" in found:
        found["kv_cache_dtype"] = found.pop("cache_dtype")
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
