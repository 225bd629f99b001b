"""Work is timed in turns after a warm-up, and what it compiles is counted."""

import jax
import numpy as np

from experiments.turns import time_in_turns
from jax_lm.benchmark import timer
from jax_lm.host.compile_clock import compile_clock


def test_a_compilation_is_counted_once():
    counter = compile_clock()
    double, values = jax.jit(lambda values: values * 2), np.ones(17, np.float32)
    before = counter.count
    double(values)
    assert counter.count > before
    after = counter.count
    double(values + 1)
    assert counter.count == after


def test_the_compilation_cache_is_as_it_was():
    before = jax.config.jax_enable_compilation_cache
    with timer.without_stored_compilations():
        assert not jax.config.jax_enable_compilation_cache
    assert jax.config.jax_enable_compilation_cache == before


def test_calls_take_turns_after_their_warm_ups():
    calls = []

    def call(name):
        return lambda: calls.append(name) or name

    a, b = time_in_turns([call("a"), call("b")], 2, warm_ups=[call("short a"), call("b")])
    assert calls == ["short a", "b", "a", "b", "a", "b"]
    assert (a.result, b.result) == ("a", "b")
    later = a.row["all_seconds"]
    assert len(later) == 2
    assert min(later) <= a.seconds <= max(later)


def test_the_first_call_compiles_and_later_ones_may_not():
    triple = jax.jit(lambda values: values * 3)
    sizes = iter((3, 3, 4))
    timing = timer.time_call(lambda: triple(np.ones(next(sizes), np.float32)), 2)
    assert timing.row["compilations"] > 0
    assert timing.row["recompilations"] > 0
    again = timer.time_call(lambda: triple(np.ones(3, np.float32)), 2)
    assert again.row["recompilations"] == 0
