"""How long calls of a device take, as measured so far. Knows neither model nor sequences."""

import jax

from jax_lm.planning.serving import FIXED_ROWS, FIXED_ROWS_CPU

# Seconds that a call may take, if more than one step is wanted: a request that arrives during a
# call, or that is cancelled, waits for its end.
CALL_SECONDS = 0.2
# Weight of the last call in the moving average.
WEIGHT = 0.2


class Pace:
    """Predicts the time of a call from the rows of tokens that a step of it computes.

    Attributes:
        fixed_rows: rows whose arithmetic takes as long as the fixed part of a call.
        seconds_per_row: moving average; 0 until a call was observed.
    """

    def __init__(self, fixed_rows: int | None = None) -> None:
        is_cpu = jax.default_backend() == "cpu"
        self.fixed_rows = fixed_rows or (FIXED_ROWS_CPU if is_cpu else FIXED_ROWS)
        self.seconds_per_row = 0.0

    def seconds(self, rows: int) -> float:
        """Predict the seconds of a step; 0 if none was observed."""
        return (self.fixed_rows + rows) * self.seconds_per_row

    def observe(self, rows: int, steps: int, seconds: float) -> None:
        """Learn from a call."""
        if steps:
            now = seconds / steps / (self.fixed_rows + rows)
            weight = WEIGHT if self.seconds_per_row else 1.0
            self.seconds_per_row += weight * (now - self.seconds_per_row)

    def steps(self, rows: int, most: int) -> int:
        """Return how many of `most` steps fit into a call; 1 until a call was observed."""
        step = self.seconds(rows)
        return max(1, min(most, int(CALL_SECONDS / step))) if step else 1
