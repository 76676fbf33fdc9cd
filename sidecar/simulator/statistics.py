"""What the engine counts, under the rules by which vLLM's V1 engine counts it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from sidecar.model import Histogram

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error", "repetition")
"""All values of `finished_reason` that vLLM 0.32 and later preset to zero."""

Bounds = tuple[float, ...]
"""Upper bounds of a histogram's buckets, ascending, without the infinite one."""


def _bounds(text: str) -> Bounds:
    return tuple(float(bound) for bound in text.split())


# The bounds of vLLM 0.33. Those of request sizes follow its 1-2-5 rule and end below the model's
# maximum length (here 4,096 tokens).
_SECONDS_OF_A_REQUEST = _bounds(
    "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
)
_SECONDS_TO_FIRST_TOKEN = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
_SECONDS_PER_TOKEN = _bounds(
    "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
)
_TOKENS_OF_A_STEP = _bounds("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")
_TOKENS_OF_A_REQUEST = _bounds("1 2 5 10 20 50 100 200 500 1000 2000")
_PARALLEL_SAMPLES = _bounds("1 2 5 10 20")
_PREEMPTIONS_OF_A_REQUEST = _bounds("1 2 3 4 5 10 20")


class Tally:
    """A histogram under construction: counts between given upper bounds, and a sum."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`; `times` for many equal ones, such as the pace of a whole batch."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def histogram(self) -> Histogram:
        """The cumulative form, closed by the infinite bound, as a page shows it."""
        buckets: list[tuple[float, float]] = []
        count = 0
        for bound, inside in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += inside
            buckets.append((bound, float(count)))
        return Histogram(buckets=tuple(buckets), sum=self._sum, count=float(count))


class Statistics:
    """Totals since the engine started.

    A prompt is counted once, whole, when its first token arrives, and generated tokens once each:
    work that a preemption made the engine repeat is in neither (vLLM 0.7.1 and later).
    A preemption is counted when the next output of the preempted request arrives, so late, and
    never if that request is gone by then (vLLM 0.8.0 to 0.33.0). Requests whose client hung up
    are counted nowhere.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished: dict[FinishReason, int] = dict.fromkeys(FINISH_REASONS, 0)

        # One observation a step that brought output, a token, a request's first token.
        self.iteration_tokens = Tally(_TOKENS_OF_A_STEP)
        self.inter_token_seconds = Tally(_SECONDS_PER_TOKEN)
        self.first_token_seconds = Tally(_SECONDS_TO_FIRST_TOKEN)

        # One observation a finished request.
        self.request_prompt_tokens = Tally(_TOKENS_OF_A_REQUEST)
        self.request_generation_tokens = Tally(_TOKENS_OF_A_REQUEST)
        self.request_max_tokens = Tally(_TOKENS_OF_A_REQUEST)
        self.request_samples = Tally(_PARALLEL_SAMPLES)
        self.request_preemptions = Tally(_PREEMPTIONS_OF_A_REQUEST)
        self.request_token_seconds = Tally(_SECONDS_PER_TOKEN)
        self.end_to_end_seconds = Tally(_SECONDS_OF_A_REQUEST)
        self.queue_seconds = Tally(_SECONDS_OF_A_REQUEST)
        self.inference_seconds = Tally(_SECONDS_OF_A_REQUEST)
        self.prefill_seconds = Tally(_SECONDS_OF_A_REQUEST)
        self.decode_seconds = Tally(_SECONDS_OF_A_REQUEST)

    @property
    def finished_requests(self) -> int:
        """Requests that ended by themselves, for whatever reason."""
        return sum(self.finished.values())
