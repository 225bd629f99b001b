"""Measurement of the time that JAX spends tracing, lowering and compiling.

Reading an executable from the compilation cache counts as compiling.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import jax

# Start and end of each interval.
Intervals = list[tuple[float, float]]
EVENTS = "/jax/core/compile/"
# The event of the compiler alone, without tracing and lowering.
COMPILE_EVENT = f"{EVENTS}backend_compile_duration"


class CompileClock:
    """Records the compilations of this process.

    There is one permanent listener, because removing a listener is not reliable in JAX.

    Attributes:
        intervals: start and end of tracing, lowering and compiling.
        count: number of programs compiled.
    """

    def __init__(self):
        self.intervals: Intervals = []
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self.record_event)

    def record_event(self, event: str, duration_secs: float, **_: str | int):
        if event.startswith(EVENTS):
            # Events are reported when they end.
            now = perf_counter()
            self.intervals.append((now - duration_secs, now))
            self.count += event == COMPILE_EVENT


@functools.cache
def compile_clock() -> CompileClock:
    """Return the clock of this process."""
    return CompileClock()


@contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent compiling since the block began."""
    clock = compile_clock()
    start = perf_counter()
    clock.intervals.clear()
    yield lambda: union_seconds(
        [(max(begin, start), end) for begin, end in clock.intervals if end > start]
    )


def union_seconds(intervals: Intervals) -> float:
    """Return the length of the union of time intervals.

    The intervals are nested: tracing a function includes tracing the functions that it calls.
    """
    # [(0, 3), (1, 2), (5, 6)] -> 3 + 0 + 1 = 4
    total = 0.0
    covered_until = float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, covered_until))
        covered_until = max(covered_until, end)
    return total
