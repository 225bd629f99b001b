"""Time functions: warm up, repeat, take the median, count what XLA compiles.

Knows no model.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_lm.host.compile_clock import COMPILE_EVENT

CACHE_SWITCH = "jax_enable_compilation_cache"

Result = TypeVar("Result")


class Compilations:
    """Counts the compilations of XLA in this process.

    The listener is registered once and stays: JAX has no stable way to remove it.
    """

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self.count_compilation)

    def count_compilation(self, event: str, duration_secs: float, **_: str | int) -> None:
        # JAX reports many events by this listener.
        self.count += event == COMPILE_EVENT


@functools.cache
def compilations() -> Compilations:
    """Return the counter of this process."""
    return Compilations()


@contextmanager
def without_stored_compilations() -> Iterator[None]:
    """Switch off the compilation cache on disk.

    A result from the cache would hide the time of the compilation.
    """
    before = getattr(jax.config, CACHE_SWITCH)
    jax.config.update(CACHE_SWITCH, False)
    # JAX reads the switch at the first compilation, and again after a reset.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update(CACHE_SWITCH, before)
        compilation_cache.reset_cache()


@dataclass(frozen=True, kw_only=True)
class Timing(Generic[Result]):
    """Wall times and compilations of a call.

    Attributes:
        first_seconds: time of the first call, which compiles.
        all_seconds: times of the later calls.
        compilations: compilations of the first call.
        recompilations: compilations of all later calls.
        result: result of the last call.
    """

    first_seconds: float
    all_seconds: tuple[float, ...]
    compilations: int
    recompilations: int
    result: Result

    @property
    def seconds(self) -> float:
        """The median of the later calls."""
        return statistics.median(self.all_seconds)

    @property
    def row(self) -> dict[str, Any]:
        """Times and compilations as plain data."""
        return {
            "first_seconds": self.first_seconds,
            "seconds": self.seconds,
            "all_seconds": list(self.all_seconds),
            "compilations": self.compilations,
            "recompilations": self.recompilations,
        }


def time_in_turns(
    calls: Sequence[Callable[[], Result]],
    repeats: int,
    *,
    warm_ups: Sequence[Callable[[], Any]] | None = None,
) -> list[Timing[Result]]:
    """Time functions in turns: one round to warm up, then `repeats` timed rounds.

    In turns, so that a moment in which the machine is busy slows down all of them.

    Args:
        warm_ups: replace the functions in the first round.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    compiled: list[list[int]] = [[] for _ in calls]
    results: list[Any] = [None for _ in calls]
    # Two calls, two repeats: w1 w2, a b, a b
    for turn in (warm_ups or calls, *[calls] * repeats):
        for index, call in enumerate(turn):
            # Free the previous result first, as logits may be large.
            results[index] = None
            before, start = compilations().count, time.perf_counter()
            # JAX returns before it has computed, so wait for the result.
            results[index] = jax.block_until_ready(call())
            seconds[index].append(time.perf_counter() - start)
            compiled[index].append(compilations().count - before)
    return [
        Timing(
            first_seconds=first,
            all_seconds=tuple(later),
            compilations=compiled_first,
            recompilations=sum(compiled_later),
            result=result,
        )
        for (first, *later), (compiled_first, *compiled_later), result in zip(
            seconds, compiled, results, strict=True
        )
    ]


def time_call(
    call: Callable[[], Result], repeats: int, *, warm_up: Callable[[], Any] | None = None
) -> Timing[Result]:
    """Time a function after a first call, which `warm_up` may replace."""
    return time_in_turns([call], repeats, warm_ups=[warm_up or call])[0]
