"""Time functions: warm up, repeat, take the median, count what XLA compiles.

Knows no model.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from jax_lm.host.compile_clock import compile_clock
from jax_lm.reports.tables import Row

# A function to time.
Call = Callable[[], Any]
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

    row: Row
    result: Any

    @classmethod
    def of(cls, calls: Sequence[tuple[float, int]], result) -> "Timing":
        """Summarize the seconds and the compilations of a first call and of later ones."""
        seconds, compilations = map(list, zip(*calls, strict=True))
        row = {
            "first_seconds": seconds[0],
            "seconds": statistics.median(seconds[1:]),
            "all_seconds": seconds[1:],
            "compilations": compilations[0],
            "recompilations": sum(compilations[1:]),
        }
        return cls(row, result)

    @property
    def seconds(self) -> float:
        """The median of the later calls."""
        return self.row["seconds"]


def time_once(call: Call) -> tuple[tuple[float, int], Any]:
    """Call a function; returns its seconds and compilations, and its result."""
    before = compile_clock().count
    start = perf_counter()
    # JAX returns before it has computed, so wait for the result.
    result = jax.block_until_ready(call())
    return (perf_counter() - start, compile_clock().count - before), result


def time_call(call: Call, repeats: int, *, warm_up: Call | None = None) -> Timing:
    """Time a function after a first call, which `warm_up` may replace."""
    calls = []
    result = None
    for function in (warm_up or call, *[call] * repeats):
        # Free the previous result first, as logits may be large.
        result = None
        measurement, result = time_once(function)
        calls.append(measurement)
    return Timing.of(calls, result)
