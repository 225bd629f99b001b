"""Time functions in turns: a moment in which the machine is busy slows down all of them."""

from collections.abc import Callable, Sequence
from typing import Any

from jax_lm.benchmark.timer import Timing, time_once


def time_in_turns(
    calls: Sequence[Callable[[], Any]],
    repeats: int,
    *,
    warm_ups: Sequence[Callable[[], Any]] | None = None,
) -> list[Timing]:
    """Time functions in turns: one round to warm up, then `repeats` timed rounds.

    Args:
        warm_ups: replace the functions in the first round.
    """
    timed: list[list[tuple[float, int]]] = [[] for _ in calls]
    results: list[Any] = [None for _ in calls]
    # Two calls, two repeats: w1 w2, a b, a b
    for turn in (warm_ups or calls, *[calls] * repeats):
        for index, call in enumerate(turn):
            # Free the previous result first, as logits may be large.
            results[index] = None
            once, results[index] = time_once(call)
            timed[index].append(once)
    return [Timing.of(*each) for each in zip(timed, results, strict=True)]
