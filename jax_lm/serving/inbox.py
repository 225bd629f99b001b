"""From the engine's thread to the event loop, neither of which waits for the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from jax_lm.serving.jobs import Event


class Inbox:
    """Events of some jobs, carried from the engine's thread to the event loop."""

    def __init__(self, *, hears_progress: bool) -> None:
        self.hears_progress = hears_progress
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Event]()

    def listen(self, event: Event) -> None:
        """Called on the engine's thread."""
        if self.hears_progress or event.reason:
            # The loop may be gone when the server stops.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def events(self, count: int) -> AsyncIterator[Event]:
        """Until so many jobs have ended."""
        while count:
            event = await self.queue.get()
            count -= event.reason is not None
            yield event
