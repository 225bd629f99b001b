"""Requests under a grammar wait in a line before the queue: preparing one takes time, so that it is done one by one.

The event loop goes on meanwhile, and so does the engine. Knows neither HTTP nor grammars.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

LONGEST_LINE = 16
"""Requests that may wait for their turn."""

Result = TypeVar("Result")


class LineFullError(Exception):
    """Too many are waiting already."""


class LeftError(Exception):
    """Whoever waited has left."""


class Line:
    """A line for work that takes seconds, on a thread of its own."""

    def __init__(self) -> None:
        self.turn, self.waiting = asyncio.Lock(), 0

    async def run(self, work: Callable[[float], Result], has_left: Callable[[], Awaitable[bool]]) -> Result:
        """Wait for a turn, then do the work, which is told how many seconds the wait took.

        Raises:
            LineFullError: the line is full.
            LeftError: nobody wants the work any more when it is its turn.
        """
        if self.waiting >= LONGEST_LINE:
            raise LineFullError
        self.waiting, arrived = self.waiting + 1, time.monotonic()
        try:
            async with self.turn:
                if await has_left():
                    raise LeftError
                return await asyncio.to_thread(work, time.monotonic() - arrived)
        finally:
            self.waiting -= 1
