"""The batch of every step from a set of samples: order, packing, variation, and the part of this process.

Follows from the seed and the step alone, and is the same for any number of processes. Knows no files.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jax_lm.data.batches import Batch, Row, collate
from jax_lm.data.order import Order

Vary = Callable[[Row, int, np.random.Generator], Row]
"""Changes a sample for a step; it may not grow."""


class SampleStream:
    """Batches of `batch_size` rows.

    Args:
        samples: to draw from.
        max_length: tokens of a row.
        batch_size: rows of a step, over all processes.
        pad_id: of the padding behind the text.
        seed: of order and variation.
        packed: whether samples share rows.
        vary: changes a sample at a step.

    Raises:
        ValueError: a sample is longer than a row, or there is none.
    """

    def __init__(
        self,
        samples: Sequence[Row],
        *,
        max_length: int,
        batch_size: int,
        pad_id: int,
        seed: int,
        packed: bool = False,
        vary: Vary | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.samples, self.max_length, self.batch_size = samples, max_length, batch_size
        self.pad_id, self.seed, self.vary = pad_id, seed, vary
        self.order = Order([len(sample.ids) for sample in samples], seed, max_length if packed else None)

    def steps(self, epochs: float) -> int:
        """Count the steps of so many epochs."""
        whole = int(epochs)
        rows = self.order.start(whole) + (epochs - whole) * len(self.order.epoch(whole))
        return max(1, math.ceil(rows / self.batch_size))

    def batch(self, step: int, *, openness: float = 1.0, process: int = 0, processes: int = 1) -> Batch:
        """Collate the rows of a process at a step (from 0).

        Raises:
            ValueError: the rows cannot be divided by the processes.
        """
        if self.batch_size % processes:
            raise ValueError(f"batch_size={self.batch_size}: must be a multiple of the {processes} processes")
        mine = self.batch_size // processes
        numbers = self.order.rows(step * self.batch_size, self.batch_size)
        before = sum(map(len, numbers[: process * mine]))
        count = before
        rows: list[list[Row]] = []
        for group in numbers[process * mine : (process + 1) * mine]:
            rows.append([self.varied(self.samples[n], step, count + i) for i, n in enumerate(group)])
            count += len(group)
        return collate(rows, self.max_length, self.pad_id, first_sample=before, openness=openness)

    def varied(self, sample: Row, step: int, number: int) -> Row:
        """Show a sample, the `number`th of its step, as that step sees it."""
        if self.vary is None:
            return sample
        return self.vary(sample, step, np.random.default_rng((self.seed, step, number)))
