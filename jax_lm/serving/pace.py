"""Prediction of how long a call on the device takes. Knows neither the model nor sequences."""

import jax

from jax_lm.planning.serving import FIXED_ROWS, FIXED_ROWS_CPU

# Seconds that a call of several steps may take. A request that arrives or is cancelled during a
# call waits for its end.
CALL_SECONDS = 0.2
# Weight of the last call in the moving average.
WEIGHT = 0.2


class Pace:
    """Predicts the time of a step from the number of token rows that it computes.

    Attributes:
        fixed_rows: the fixed cost of a step, as the number of rows that take the same time.
        seconds_per_row: moving average over the observed calls; 0 before the first one.
    """

    def __init__(self):
        self.fixed_rows = FIXED_ROWS_CPU if jax.default_backend() == "cpu" else FIXED_ROWS
        self.seconds_per_row = 0.0

    def seconds(self, rows: int) -> float:
        """Predict the seconds of a step over `rows` rows; 0 if no call was observed."""
        return (self.fixed_rows + rows) * self.seconds_per_row

    def observe(self, rows: int, steps: int, seconds: float):
        """Update the average with a call of `steps` steps over `rows` rows each."""
        if steps:
            measured = seconds / steps / (self.fixed_rows + rows)
            weight = WEIGHT if self.seconds_per_row else 1.0
            self.seconds_per_row += weight * (measured - self.seconds_per_row)

    def steps(self, rows: int, limit: int) -> int:
        """Return how many steps fit into a call, at most `limit`; 1 if no call was observed."""
        step_seconds = self.seconds(rows)
        return max(1, min(limit, int(CALL_SECONDS / step_seconds))) if step_seconds else 1
