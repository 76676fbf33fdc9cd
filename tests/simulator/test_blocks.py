from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.simulator.blocks import BlockPool


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert pool.usage_ratio == 1.0


@pytest.mark.parametrize("total_blocks", [-1, 0, 1])
def test_a_pool_has_a_usable_block(total_blocks: int) -> None:
    with pytest.raises(ValueError, match="null block"):
        BlockPool(total_blocks)


def test_more_than_is_free_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.take(3)
    assert (pool.free_blocks, pool.held_blocks) == (2, 1)


def test_a_block_comes_back_once() -> None:
    pool = BlockPool(4)
    taken = pool.take(2)
    pool.give_back(taken)
    with pytest.raises(KeyError):
        pool.give_back(taken)


@given(st.integers(2, 30), st.lists(st.tuples(st.booleans(), st.integers(0, 10)), max_size=40))
def test_blocks_are_conserved(total_blocks: int, actions: list[tuple[bool, int]]) -> None:
    pool = BlockPool(total_blocks)
    held: list[list[int]] = []
    for is_take, number in actions:
        if is_take:
            held.append(pool.take(min(number, pool.free_blocks)))
        elif held:
            pool.give_back(held.pop(number % len(held)))
        outside = [block for blocks in held for block in blocks]
        assert len(outside) == len(set(outside)) == pool.held_blocks
        assert pool.free_blocks + pool.held_blocks == pool.usable_blocks == total_blocks - 1
        assert 0.0 <= pool.usage_ratio <= 1.0
