"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.simulator.statistics import FinishReason


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked for, and how far the engine has come with it. Times are engine seconds.

    `generation_tokens` is what the model is going to generate, which the engine does not know;
    `max_tokens` is the limit that the client set. `computed_tokens` are those whose keys and
    values lie in `block_ids`: while decoding, all but the newest.
    """

    prompt_tokens: int
    generation_tokens: int
    max_tokens: int
    arrived_at_seconds: float

    computed_tokens: int = 0
    generated_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)

    first_scheduled_at_seconds: float | None = None
    first_token_at_seconds: float | None = None
    last_token_at_seconds: float | None = None

    # A preemption travels with the next output: first unreported, then counted.
    unreported_preemptions: int = 0
    preemptions: int = 0

    @property
    def known_tokens(self) -> int:
        """Prompt and generated so far: what has to be computed before the next token can come."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def is_complete(self) -> bool:
        """Whether the last token has been generated."""
        return self.generated_tokens >= self.generation_tokens

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ends: the client's limit, or the model's own end of text."""
        return "length" if self.generation_tokens >= self.max_tokens else "stop"
