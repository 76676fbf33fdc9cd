"""The scheduler's rules, each on an engine small enough to follow by hand."""

from __future__ import annotations

import pytest

from sidecar.simulator.engine import Engine

from .small import request, small_deployment


def test_one_request_from_prompt_to_end() -> None:
    engine = Engine(small_deployment(block_size_tokens=4))
    only = request(prompt_tokens=5, generation_tokens=3)
    engine.submit(only)

    held_blocks = []
    while engine.has_requests:
        engine.step()
        held_blocks.append(engine.pool.held_blocks)

    # After the prefill 5 tokens are computed, then 6, then the last one ends it.
    assert held_blocks == [2, 2, 0]
    statistics = engine.statistics
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (5, 3)
    assert statistics.finished["stop"] == 1
    assert statistics.iteration_tokens.histogram().sum == 5 + 3
    assert statistics.inter_token_seconds.histogram().count == 2
    assert statistics.end_to_end_seconds.histogram().sum == pytest.approx(engine.clock_seconds)
    assert engine.busy_seconds == engine.clock_seconds


@pytest.mark.parametrize(("max_tokens", "reason"), [(3, "length"), (4, "stop")])
def test_the_reason_is_the_limit_or_the_model(max_tokens: int, reason: str) -> None:
    engine = Engine(small_deployment())
    engine.submit(request(4, 3, max_tokens=max_tokens))
    for _ in range(3):
        engine.step()
    assert {name for name, count in engine.statistics.finished.items() if count} == {reason}


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    engine = Engine(small_deployment(num_gpu_blocks=30, max_num_batched_tokens=10))
    engine.submit(request(4, 20))
    engine.step()
    long = request(25, 5)
    engine.submit(long)

    computed = []
    for _ in range(4):
        engine.step()
        computed.append(long.computed_tokens)

    assert computed == [9, 18, 25, 26]  # one token of the budget goes to the other request
    assert engine.statistics.prompt_tokens == 4 + 25
    assert engine.largest_step_tokens == 10


def test_admission_is_in_order_and_only_for_the_whole_sequence() -> None:
    engine = Engine(small_deployment(num_gpu_blocks=9, block_size_tokens=4))
    first, too_long, short = request(20, 8), request(16, 2), request(4, 2)
    for each in (first, too_long, short):
        engine.submit(each)
    engine.step()
    # Three blocks are free; the second needs four, and nobody overtakes it.
    assert engine.running == [first]
    assert list(engine.waiting) == [too_long, short]


def test_no_more_than_max_num_seqs_run() -> None:
    engine = Engine(small_deployment(num_gpu_blocks=100, max_num_seqs=3))
    for _ in range(5):
        engine.submit(request(4, 9))
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (3, 2)


def test_preemption_takes_the_youngest_and_is_counted_with_its_next_output() -> None:
    # Eight usable blocks of four tokens; both prompts fill four blocks to the brim.
    engine = Engine(small_deployment(num_gpu_blocks=9, block_size_tokens=4))
    old, young = request(16, 6), request(16, 3)
    engine.submit(old)
    engine.submit(young)

    engine.step()
    assert (engine.running, engine.pool.free_blocks) == ([old, young], 0)

    engine.step()  # the older one needs a fifth block
    assert engine.running == [old]
    assert list(engine.waiting) == [young]
    assert (young.block_ids, young.computed_tokens, young.generated_tokens) == ([], 0, 1)
    assert engine.pool.held_blocks == 5
    assert engine.statistics.preemptions == 0

    while young not in engine.running:  # 17 tokens fit only when the older one has ended
        assert engine.statistics.preemptions == 0
        engine.step()
    assert engine.statistics.finished_requests == 1
    assert engine.statistics.preemptions == 1
    while engine.has_requests:
        engine.step()

    statistics = engine.statistics
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (32, 9)  # nothing twice
    assert statistics.request_preemptions.histogram().sum == 1
    # Waiting to be resumed is a gap between tokens, not time in the queue.
    assert statistics.queue_seconds.histogram().sum == 0
    assert statistics.inter_token_seconds.histogram().count == 9 - 2


def test_the_youngest_preempts_itself() -> None:
    engine = Engine(small_deployment(num_gpu_blocks=9, block_size_tokens=4))
    old, young = request(15, 4), request(16, 4)
    engine.submit(old)
    engine.submit(young)
    engine.step()
    engine.step()
    assert engine.running == [old]
    assert list(engine.waiting) == [young]


def test_hanging_up_frees_everything_and_counts_nothing() -> None:
    engine = Engine(small_deployment(num_gpu_blocks=9, block_size_tokens=4))
    for prompt_tokens in (16, 16, 8):
        engine.submit(request(prompt_tokens, 6))
    for _ in range(2):
        engine.step()
    engine.hang_up_all()
    assert not engine.has_requests
    assert engine.pool.held_blocks == 0
    assert engine.statistics.finished_requests == 0
    assert engine.statistics.preemptions == 0


@pytest.mark.parametrize("length", [(30, 3), (999, 2)])
def test_what_can_never_fit_is_refused(length: tuple[int, int]) -> None:
    engine = Engine(small_deployment(num_gpu_blocks=9, block_size_tokens=4))
    with pytest.raises(ValueError, match="does not fit this server"):
        engine.submit(request(*length))


def test_idle_time_passes_without_work() -> None:
    engine = Engine(small_deployment())
    engine.idle_until(5.0)
    engine.idle_until(2.0)
    assert (engine.clock_seconds, engine.busy_seconds) == (5.0, 0.0)
