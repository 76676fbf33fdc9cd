"""A small paged-KV engine with continuous batching, on a virtual clock.

It follows the V1 scheduler of vLLM 0.33 in what the memory figures depend on: running requests
first and in order, chunked prefill under one token budget, first come first served, preemption
by recompute, and admission only when the whole known sequence would fit. Left out: prefix
caching, priorities, speculative tokens, the overlap of scheduling and execution.

The arithmetic is all there is: no figure is set, every one follows from the blocks.
"""

from __future__ import annotations

from collections import deque

from sidecar.simulator.blocks import BlockPool
from sidecar.simulator.deployment import Deployment
from sidecar.simulator.requests import Request
from sidecar.simulator.statistics import Statistics

Batch = list[tuple[Request, int]]
"""One step's work: requests, each with the number of tokens to compute."""


class Engine:
    """Requests in, tokens out, one step at a time. Between steps its state is what vLLM shows."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.pool = BlockPool(deployment.num_gpu_blocks)
        self.statistics = Statistics()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.clock_seconds = 0.0
        self.busy_seconds = 0.0
        self.largest_step_tokens = 0
        self._block_size = deployment.block_size_tokens

    @property
    def has_requests(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    def submit(self, request: Request) -> None:
        """Queue a request. One that could never fit is refused, as vLLM refuses it."""
        length = request.prompt_tokens + request.generation_tokens
        capacity = self.pool.usable_blocks * self._block_size
        if length > min(self.deployment.max_model_len_tokens, capacity):
            raise ValueError(f"a request of {length} tokens does not fit this server")
        self.waiting.append(request)

    def hang_up_all(self) -> None:
        """All clients disconnect: their blocks are free at once and nothing is counted."""
        for request in self.running:
            self._release(request)
        self.running.clear()
        self.waiting.clear()

    def idle_until(self, now_seconds: float) -> None:
        """Let time pass without work."""
        self.clock_seconds = max(self.clock_seconds, now_seconds)

    def step(self) -> list[Request]:
        """Run one step, move the clock to its end, and return the requests that finished in it."""
        started_at_seconds = self.clock_seconds
        batch = self._schedule()
        # A chunk of one token costs what a decoded token costs, whatever it is called.
        decoded = sum(1 for _, tokens in batch if tokens == 1)
        scheduled = sum(tokens for _, tokens in batch)
        seconds = self.deployment.step_cost.seconds(decoded, scheduled - decoded)
        self.clock_seconds += seconds
        self.busy_seconds += seconds
        self.largest_step_tokens = max(self.largest_step_tokens, scheduled)
        return self._collect(batch, started_at_seconds)

    # -- scheduling -------------------------------------------------------------------------------

    def _schedule(self) -> Batch:
        batch: Batch = []
        budget = self.deployment.max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            tokens = min(request.known_tokens - request.computed_tokens, budget)
            missing = self._missing_blocks(request, tokens)
            if missing:
                if not self._make_room(request, missing):
                    break
                request.block_ids += self.pool.take(missing)
            batch.append((request, tokens))
            budget -= tokens
            position += 1
        # After a preemption this admits nobody: the last victim heads the queue, and the blocks
        # that it needs back are those that are no longer free.
        self._admit(batch, budget)
        return batch

    def _admit(self, batch: Batch, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.deployment.max_num_seqs:
            request = self.waiting[0]
            if self._missing_blocks(request, request.known_tokens) > self.pool.free_blocks:
                break
            self.waiting.popleft()
            self.running.append(request)
            tokens = min(request.known_tokens, budget)
            request.block_ids += self.pool.take(self._missing_blocks(request, tokens))
            if request.first_scheduled_at_seconds is None:
                request.first_scheduled_at_seconds = self.clock_seconds
            batch.append((request, tokens))
            budget -= tokens

    def _missing_blocks(self, request: Request, tokens: int) -> int:
        """Blocks that `request` lacks for computing so many more tokens."""
        wanted_tokens = request.computed_tokens + tokens
        return -(-wanted_tokens // self._block_size) - len(request.block_ids)

    def _make_room(self, request: Request, blocks: int) -> bool:
        """Preempt the youngest until `blocks` are free; False if `request` itself had to go."""
        while self.pool.free_blocks < blocks:
            victim = self.running.pop()
            self._release(victim)
            victim.unreported_preemptions += 1
            self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _release(self, request: Request) -> None:
        self.pool.give_back(request.block_ids)
        request.block_ids = []
        request.computed_tokens = 0

    # -- output -----------------------------------------------------------------------------------

    def _collect(self, batch: Batch, started_at_seconds: float) -> list[Request]:
        now_seconds = self.clock_seconds
        statistics = self.statistics
        finished: list[Request] = []
        new_prompt_tokens = 0
        new_tokens = 0
        in_pace = 0
        for request, tokens in batch:
            request.computed_tokens += tokens
            if request.computed_tokens < request.known_tokens:
                continue  # a prefill that needs more steps
            new_tokens += 1
            request.generated_tokens += 1
            if request.unreported_preemptions:
                statistics.preemptions += request.unreported_preemptions
                request.preemptions += request.unreported_preemptions
                request.unreported_preemptions = 0
            last_token_at_seconds = request.last_token_at_seconds
            request.last_token_at_seconds = now_seconds
            if last_token_at_seconds is None:
                request.first_token_at_seconds = now_seconds
                new_prompt_tokens += request.prompt_tokens
                statistics.first_token_seconds.observe(now_seconds - request.arrived_at_seconds)
            elif last_token_at_seconds == started_at_seconds:
                in_pace += 1  # nearly all of them: observed together below
            else:
                statistics.inter_token_seconds.observe(now_seconds - last_token_at_seconds)
            if request.is_complete:
                finished.append(request)
        statistics.inter_token_seconds.observe(now_seconds - started_at_seconds, in_pace)
        statistics.prompt_tokens += new_prompt_tokens
        statistics.generation_tokens += new_tokens
        if new_tokens:
            statistics.iteration_tokens.observe(new_prompt_tokens + new_tokens)
        for request in finished:
            self._release(request)
            self._observe_finished(request)
        if finished:
            self.running = [request for request in self.running if not request.is_complete]
        return finished

    def _observe_finished(self, request: Request) -> None:
        scheduled_at = request.first_scheduled_at_seconds
        first_token_at = request.first_token_at_seconds
        if scheduled_at is None or first_token_at is None:
            raise AssertionError("a finished request was scheduled and has had a first token")
        now_seconds = self.clock_seconds
        statistics = self.statistics
        statistics.finished[request.finish_reason] += 1
        statistics.request_prompt_tokens.observe(request.prompt_tokens)
        statistics.request_generation_tokens.observe(request.generated_tokens)
        statistics.request_max_tokens.observe(request.max_tokens)
        statistics.request_samples.observe(1)
        statistics.request_preemptions.observe(request.preemptions)
        statistics.end_to_end_seconds.observe(now_seconds - request.arrived_at_seconds)
        statistics.queue_seconds.observe(scheduled_at - request.arrived_at_seconds)
        statistics.inference_seconds.observe(now_seconds - scheduled_at)
        statistics.prefill_seconds.observe(first_token_at - scheduled_at)
        decode_seconds = now_seconds - first_token_at
        statistics.decode_seconds.observe(decode_seconds)
        # vLLM leaves the first token out of the mean; a request of one token has none.
        following_tokens = request.generated_tokens - 1
        statistics.request_token_seconds.observe(
            decode_seconds / following_tokens if following_tokens else 0.0
        )
