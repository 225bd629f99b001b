"""Prepare requests with a grammar, one at a time on a thread, before they are queued.

A preparation may take seconds, during which the event loop and the engine continue. Knows neither
HTTP nor grammars.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jax_lm.serving.queue import RejectedError

# Requests that may wait for their turn.
MAX_WAITING = 16

Result = TypeVar("Result")


class Preparation:
    """Prepares requests one after another.

    Args:
        retry_after: returns the seconds after which a rejected request may be sent again.
    """

    def __init__(self, retry_after: Callable[[], int]) -> None:
        self.turn, self.waiting, self.retry_after = asyncio.Lock(), 0, retry_after

    async def run(
        self, prepare: Callable[[], Result], has_left: Callable[[], Awaitable[bool]]
    ) -> Result:
        """Wait for a turn, then call `prepare` on a thread.

        Args:
            prepare: called on the thread.
            has_left: returns whether the client has disconnected.

        Raises:
            RejectedError: too many requests wait already, or the client has disconnected.
        """
        # those that wait, and the one being prepared
        if self.waiting >= MAX_WAITING:
            raise RejectedError("queue_full", self.retry_after())
        self.waiting += 1
        try:
            # The lock is fair: requests are prepared in order of arrival.
            async with self.turn:
                if await has_left():
                    raise RejectedError("cancelled")
                return await asyncio.to_thread(prepare)
        finally:
            self.waiting -= 1
