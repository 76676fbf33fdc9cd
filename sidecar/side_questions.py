"""The rare requests beside the page: is the server alive, is it paused?

They share the page's one connection and are asked one at a time, so that the server never has
more than one request of ours.
"""

from __future__ import annotations

import asyncio

from sidecar.sources.vllm import VllmSource

FROZEN_SECONDS = 5.0
"""A batch that has not moved for this long may be paused, and is asked about once."""


class SideQuestions:
    """`healthy` and `paused` are the last answers to a question that still stands, else None.

    `/health` is asked after a page that failed without the connection being refused. `/is_paused`
    is asked once after the server came up and once in each freeze; where it does not exist, which
    is the rule, it is not asked again until the server comes up anew.
    """

    def __init__(self, vllm: VllmSource) -> None:
        self._vllm = vllm
        self._health: asyncio.Task[bool] | None = None
        self._pause: asyncio.Task[bool | None] | None = None
        self._pause_exists = True
        self._asked_in_this_freeze = False
        self.healthy: bool | None = None
        self.paused: bool | None = None

    @property
    def pending(self) -> asyncio.Task[bool] | asyncio.Task[bool | None] | None:
        """The question that is being asked just now."""
        return self._health or self._pause

    def came_up(self) -> None:
        """A new life of the server: ask about a pause once."""
        self._pause_exists = True
        self._asked_in_this_freeze = False

    def page_came(self, *, frozen: bool) -> None:
        """A page was read; `frozen` if requests run on it and nothing has moved for a while."""
        self.healthy = None
        if not frozen:
            self._asked_in_this_freeze, self.paused = False, None
        elif self._pause_exists and not self._asked_in_this_freeze and self.pending is None:
            self._asked_in_this_freeze = True
            self._pause = asyncio.create_task(self._vllm.is_paused())

    def page_failed(self, *, gone: bool) -> None:
        """A page failed; `gone` if nobody listens, which needs no further question."""
        self.paused = None
        if gone:
            self.healthy = None
        elif self.pending is None:
            self._health = asyncio.create_task(self._vllm.is_healthy())

    def collect(self) -> None:
        """Take the answers that have come."""
        if self._health is not None and self._health.done():
            self.healthy, self._health = self._health.result(), None
        if self._pause is not None and self._pause.done():
            self.paused, self._pause = self._pause.result(), None
            self._pause_exists = self.paused is not None

    def cancel(self) -> None:
        """Ask nothing more."""
        if self.pending is not None:
            self.pending.cancel()
