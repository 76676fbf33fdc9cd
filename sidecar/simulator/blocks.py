"""The pool of KV blocks: who holds which, and nothing else."""

from __future__ import annotations


class BlockPool:
    """Numbered, equal, interchangeable blocks. Block 0 is vLLM's null block and is never given out.

    A block is either free or held once; handing back one that is not held is an error, so that a
    bug in the scheduler cannot pass as a usage figure.
    """

    def __init__(self, total_blocks: int) -> None:
        if total_blocks < 2:
            raise ValueError(f"a pool needs the null block and one more, not {total_blocks} blocks")
        self.usable_blocks = total_blocks - 1
        self._free = list(range(total_blocks - 1, 0, -1))
        self._held: set[int] = set()

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def held_blocks(self) -> int:
        """Blocks that requests hold."""
        return len(self._held)

    @property
    def usage_ratio(self) -> float:
        """Held blocks among the usable ones: `vllm:kv_cache_usage_perc` since vLLM 0.10.2."""
        return len(self._held) / self.usable_blocks

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks; the caller has made sure that so many are free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        self._held.update(taken)
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks that were handed out, each exactly once."""
        for block in blocks:
            self._held.remove(block)
            self._free.append(block)
