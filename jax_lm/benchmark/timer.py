"""Time functions: warm up, repeat, take the median, count what XLA compiles.

Knows no model.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_lm.host.compile_clock import compile_clock

CACHE_SWITCH = "jax_enable_compilation_cache"


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


class Timing(NamedTuple):
    """Wall times and compilations of a call.

    Attributes:
        row: `first_seconds` of the first call, which compiles; `all_seconds` of the later calls,
            and their median `seconds`; `compilations` of the first call, `recompilations` of all
            later ones.
        result: result of the last call.
    """

    row: dict[str, Any]
    result: Any

    @property
    def seconds(self) -> float:
        """The median of the later calls."""
        return self.row["seconds"]


def time_in_turns(
    calls: Sequence[Callable[[], Any]],
    repeats: int,
    *,
    warm_ups: Sequence[Callable[[], Any]] | None = None,
) -> list[Timing]:
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
            before, start = compile_clock().count, time.perf_counter()
            # JAX returns before it has computed, so wait for the result.
            results[index] = jax.block_until_ready(call())
            seconds[index].append(time.perf_counter() - start)
            compiled[index].append(compile_clock().count - before)
    timings = []
    for all_seconds, counts, result in zip(seconds, compiled, results, strict=True):
        row = {
            "first_seconds": all_seconds[0],
            "seconds": statistics.median(all_seconds[1:]),
            "all_seconds": all_seconds[1:],
            "compilations": counts[0],
            "recompilations": sum(counts[1:]),
        }
        timings.append(Timing(row, result))
    return timings


def time_call(
    call: Callable[[], Any], repeats: int, *, warm_up: Callable[[], Any] | None = None
) -> Timing:
    """Time a function after a first call, which `warm_up` may replace."""
    return time_in_turns([call], repeats, warm_ups=[warm_up or call])[0]
