"""How much of a stretch of time JAX spent tracing, lowering and compiling (or reading a stored compilation)."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

EVENTS = "/jax/core/compile/"
COMPILE_EVENT = f"{EVENTS}backend_compile_duration"
"""Of the compiler alone, without tracing and lowering."""


class CompileClock:
    """Hears every piece of a compilation in this process.

    One listener for good: JAX cannot be relied on to take it back.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self.hear)

    def hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith(EVENTS):
            now = time.perf_counter()
            self.pieces.append((now - duration_secs, now))


@functools.cache
def compile_clock() -> CompileClock:
    """Return the clock of this process."""
    return CompileClock()


@contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Yield what tells the seconds of compilation since the block began."""
    clock, start = compile_clock(), time.perf_counter()
    clock.pieces.clear()
    yield lambda: union_seconds([(max(begin, start), end) for begin, end in clock.pieces if end > start])


def union_seconds(pieces: list[tuple[float, float]]) -> float:
    """Measure the union of intervals: tracing a function counts what is traced inside it again."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(pieces):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
