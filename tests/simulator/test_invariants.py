"""What must hold after every step, whatever the clients send."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.simulator.engine import Engine
from sidecar.simulator.requests import Request
from sidecar.simulator.statistics import Statistics

from .small import request, small_deployment

LENGTHS = st.tuples(st.integers(1, 30), st.integers(1, 30))
WORKLOADS = st.lists(st.tuples(st.integers(0, 5), LENGTHS), min_size=1, max_size=25)
"""Requests: how many steps after the one before, and the tokens of prompt and answer."""


def check_blocks(engine: Engine) -> None:
    """Every block is free or held by exactly one running request, which needs all it holds."""
    pool, block_size = engine.pool, engine.deployment.block_size_tokens
    held = [block for running in engine.running for block in running.block_ids]
    assert len(held) == len(set(held)) == pool.held_blocks
    assert 0 not in held
    assert pool.free_blocks + pool.held_blocks == pool.usable_blocks
    for running in engine.running:
        assert len(running.block_ids) == -(-running.computed_tokens // block_size)
    for waiting in engine.waiting:
        assert (waiting.block_ids, waiting.computed_tokens) == ([], 0)


def totals(statistics: Statistics) -> tuple[float, ...]:
    """Everything that may only grow."""
    return (
        statistics.prompt_tokens,
        statistics.generation_tokens,
        statistics.preemptions,
        statistics.finished_requests,
        statistics.iteration_tokens.histogram().count,
        statistics.inter_token_seconds.histogram().sum,
        statistics.first_token_seconds.histogram().count,
    )


def started_tokens(engine: Engine) -> int:
    """Known tokens of the requests in the engine that have had their first token."""
    inside: list[Request] = [*engine.running, *engine.waiting]
    return sum(each.known_tokens for each in inside if each.generated_tokens)


@settings(max_examples=80, deadline=None)
@given(WORKLOADS, st.integers(16, 60), st.integers(1, 8), st.integers(1, 40), st.integers(1, 9))
def test_every_step(
    workload: list[tuple[int, tuple[int, int]]],
    num_gpu_blocks: int,
    block_size_tokens: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> None:
    blocks_for_the_longest = 60 // block_size_tokens + 2
    engine = Engine(
        small_deployment(
            num_gpu_blocks=max(num_gpu_blocks // block_size_tokens, blocks_for_the_longest),
            block_size_tokens=block_size_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
    )
    statistics = engine.statistics
    to_send = list(reversed(workload))
    pause = to_send[-1][0]
    before = totals(statistics)
    while to_send or engine.has_requests:
        while to_send and (pause == 0 or not engine.has_requests):
            engine.submit(request(*to_send.pop()[1]))
            pause = to_send[-1][0] if to_send else 0
        pause = max(0, pause - 1)
        waited, ran = [*engine.waiting], [*engine.running]
        clock_before = engine.clock_seconds
        engine.step()

        check_blocks(engine)
        assert engine.clock_seconds > clock_before
        assert len(engine.running) <= max_num_seqs
        assert engine.largest_step_tokens <= max_num_batched_tokens
        now = totals(statistics)
        assert all(later >= earlier for earlier, later in zip(before, now, strict=True))
        before = now
        # Tokens that came in less those that went out are those that are inside.
        finished_tokens = (
            statistics.request_prompt_tokens.histogram().sum
            + statistics.request_generation_tokens.histogram().sum
        )
        flow = statistics.prompt_tokens + statistics.generation_tokens - finished_tokens
        assert flow == started_tokens(engine)
        # Only a request that ran can come back to the queue, and then in front of the others.
        still_waiting = [each for each in engine.waiting if each in waited]
        preempted_count = len(engine.waiting) - len(still_waiting)
        assert list(engine.waiting)[preempted_count:] == still_waiting
        # And a step that throws somebody out lets nobody in.
        if preempted_count:
            assert all(each in ran for each in engine.running)

    assert engine.pool.held_blocks == 0
    assert statistics.finished_requests == len(workload)
    assert statistics.prompt_tokens == sum(prompt for _, (prompt, _) in workload)
    assert statistics.generation_tokens == sum(answer for _, (_, answer) in workload)
    # Nobody hung up, so in the end every preemption has been reported.
    assert statistics.request_preemptions.histogram().sum == statistics.preemptions


class WatchedEngine(Engine):
    """Notes, at each preemption, how many blocks were wanted and how many were free."""

    def __init__(self, num_gpu_blocks: int) -> None:
        super().__init__(small_deployment(num_gpu_blocks=num_gpu_blocks))
        self.preempted_at: list[tuple[int, int]] = []

    def _make_room(self, request: Request, blocks: int) -> bool:
        if self.pool.free_blocks < blocks:
            self.preempted_at.append((blocks, self.pool.free_blocks))
        return super()._make_room(request, blocks)


@settings(max_examples=40, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=20), st.integers(17, 400))
def test_preemption_only_when_the_pool_is_exhausted(
    lengths: list[tuple[int, int]], num_gpu_blocks: int
) -> None:
    engine = WatchedEngine(num_gpu_blocks)
    for each in lengths:
        engine.submit(request(*each))
    while engine.has_requests:
        engine.step()
    assert bool(engine.statistics.preemptions) == bool(engine.preempted_at)
    assert all(free < wanted for wanted, free in engine.preempted_at)
    blocks_at_most = sum(-(-(prompt + answer) // 4) for prompt, answer in lengths)
    if blocks_at_most < num_gpu_blocks:
        assert engine.statistics.preemptions == 0
