"""A load generator for a vLLM server: closed-loop clients, lengths exact, everything counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

# Prompts are token ids drawn from here: past the tokenizer's special tokens, below its end.
TOKEN_IDS = range(2, 512)


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do: each sends a completion, waits for its end, and sends the next.

    Lengths are drawn evenly from inclusive ranges; `ignore_eos` makes outputs exactly as long
    as asked for.
    """

    clients: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    model: str = "tiny"
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was answered. Tokens are the server's own count in its answers (`usage`)."""

    requests: int
    prompt_tokens: int
    generated_tokens: int
    errors: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    errors: list[str] = field(default_factory=list)


class LoadGenerator:
    """The clients, on an event loop in a thread of their own."""

    def __init__(self, url: str, load: Load) -> None:
        self._url = url
        self._load = load
        self._tally = _Tally()
        self._stopping = threading.Event()
        self._started = time.monotonic()
        self._ended: float | None = None
        self._thread = threading.Thread(target=self._run, name="load generator", daemon=True)
        self._thread.start()

    def report(self) -> LoadReport:
        """What was answered so far."""
        tally = self._tally
        return LoadReport(
            requests=tally.requests,
            prompt_tokens=tally.prompt_tokens,
            generated_tokens=tally.generated_tokens,
            errors=tuple(tally.errors),
            seconds=(self._ended or time.monotonic()) - self._started,
        )

    def drain(self, seconds: float = 60) -> LoadReport:
        """Send nothing new and wait for the answers that are still out.

        Requests that are let finish keep the server's token counters equal to the report's:
        vLLM counts the tokens of a request that was cut off, and its client never sees them.
        """
        self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the clients had no answer {seconds:.0f} s after the last request")
        return self.report()

    def _run(self) -> None:
        asyncio.run(self._run_clients())
        self._ended = time.monotonic()

    async def _run_clients(self) -> None:
        connections = httpx.Limits(max_connections=self._load.clients)
        timeout = httpx.Timeout(120, connect=5)
        async with (
            httpx.AsyncClient(
                base_url=self._url, limits=connections, timeout=timeout, trust_env=False
            ) as client,
            asyncio.TaskGroup() as clients,
        ):
            for number in range(self._load.clients):
                clients.create_task(self._run_client(client, number))

    async def _run_client(self, client: httpx.AsyncClient, number: int) -> None:
        # Each client draws from a generator of its own, so that what is sent does not depend on
        # the order in which answers happen to come.
        draw = random.Random(f"{self._load.seed}/{number}")
        while not self._stopping.is_set():
            request = {
                "model": self._load.model,
                "prompt": draw.choices(TOKEN_IDS, k=draw.randint(*self._load.prompt_tokens)),
                "max_tokens": draw.randint(*self._load.output_tokens),
                "ignore_eos": True,
            }
            try:
                answer = await client.post("/v1/completions", json=request)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                self._tally.errors.append(f"{type(error).__name__}: {error}")
                # A server that is gone refuses at once: do not spin on it.
                await asyncio.sleep(0.2)
                continue
            usage = answer.json()["usage"]
            self._tally.requests += 1
            self._tally.prompt_tokens += usage["prompt_tokens"]
            self._tally.generated_tokens += usage["completion_tokens"]


@contextlib.contextmanager
def load_on(url: str, load: Load) -> Iterator[LoadGenerator]:
    """The load while the block runs; whatever happens in it, no client outlives it for long."""
    generator = LoadGenerator(url, load)
    try:
        yield generator
    finally:
        generator.drain()
