"""How long calls of a device take, as measured so far. Knows neither model nor sequences."""

import jax

from jax_lm.planning.serving import FIXED_ROWS, FIXED_ROWS_CPU

# Seconds that a call of several steps may take: a request that arrives, or is cancelled, during a
# call waits for its end.
CALL_SECONDS = 0.2
# Weight of the last call in the moving average.
WEIGHT = 0.2


class Pace:
    """Predicts the time of a call from the number of token rows that each step computes.

    Attributes:
        fixed_rows: the fixed cost of a step, as the number of rows that take the same time.
        seconds_per_row: moving average; 0 until a call was observed.
    """

    def __init__(self, fixed_rows: int | None = None):
        is_cpu = jax.default_backend() == "cpu"
        self.fixed_rows = fixed_rows or (FIXED_ROWS_CPU if is_cpu else FIXED_ROWS)
        self.seconds_per_row = 0.0

    def seconds(self, rows: int) -> float:
        """Predict the seconds of a step; 0 if none was observed."""
        return (self.fixed_rows + rows) * self.seconds_per_row

    def observe(self, rows: int, steps: int, seconds: float) -> None:
        """Update the average with the time of a call."""
        if steps:
            now = seconds / steps / (self.fixed_rows + rows)
            weight = WEIGHT if self.seconds_per_row else 1.0
            self.seconds_per_row += weight * (now - self.seconds_per_row)

    def steps(self, rows: int, most: int) -> int:
        """Return how many of `most` steps fit into a call; 1 until a call was observed."""
        step = self.seconds(rows)
        return max(1, min(most, int(CALL_SECONDS / step))) if step else 1
