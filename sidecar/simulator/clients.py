"""Clients that wait for an answer before they ask again."""

from __future__ import annotations

from collections import deque
from random import Random

from sidecar.simulator.requests import Request
from sidecar.simulator.scenarios import Load

TURNAROUND_SECONDS = 0.005
"""From a client's decision to its request in the queue: the way through the API server."""


class ClosedLoopClients:
    """As many clients as the load asks for, each with one request in flight or about to be sent.

    When the load falls, surplus clients leave as their requests end; when it rises, new ones
    join at once. Clients are interchangeable, so only the times of the next requests are kept.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._load: Load | None = None
        self._present = 0
        self._send_at_seconds: deque[float] = deque()

    @property
    def next_send_at_seconds(self) -> float | None:
        """When the next request leaves; None while every client waits for an answer."""
        return self._send_at_seconds[0] if self._send_at_seconds else None

    def set_load(self, load: Load | None, now_seconds: float) -> None:
        """Follow another load from now on; None: nobody sends any more."""
        self._load = load
        wanted = load.concurrency if load else 0
        while self._present < wanted:
            self._present += 1
            self._send_at_seconds.append(now_seconds + TURNAROUND_SECONDS)

    def hang_up_all(self) -> None:
        """Every client leaves without waiting for its answer."""
        self._present = 0
        self._send_at_seconds.clear()

    def answered(self, now_seconds: float) -> None:
        """A client has its whole answer and is going to send the next request."""
        self._send_at_seconds.append(now_seconds + TURNAROUND_SECONDS)

    def due(self, now_seconds: float) -> list[Request]:
        """The requests that have been sent up to now."""
        requests: list[Request] = []
        while self._send_at_seconds and self._send_at_seconds[0] <= now_seconds:
            sent_at_seconds = self._send_at_seconds.popleft()
            if self._load is None or self._present > self._load.concurrency:
                self._present -= 1
                continue
            prompt, generation = self._load.prompt_tokens, self._load.generation_tokens
            requests.append(
                Request(
                    prompt_tokens=self._random.randint(prompt.low, prompt.high),
                    generation_tokens=self._random.randint(generation.low, generation.high),
                    max_tokens=generation.high,
                    arrived_at_seconds=sent_at_seconds,
                )
            )
        return requests
