"""An event loop on which waiting takes no time, and happens exactly when it is due."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, moves the time on. Without any timer, waiting would never end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: it would hang for ever")
        self.now += max(0.0, timeout)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`; `loop.time()` starts at 0 and `asyncio.sleep` returns at once."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Virtual seconds since the start; a clock to hand to what is tested."""
    return asyncio.get_running_loop().time()
