"""The batch of every step from a set of samples: order, packing, variation, and the part of this process.

Follows from the seed and the step alone, and is the same for any number of processes. Knows no files.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jax_lm.data.batches import Batch, Row, collate
from jax_lm.data.order import Order

Vary = Callable[[Row, int, np.random.Generator], Row]
"""A sample as it is shown at a step; may not grow."""


class SampleStream:
    """Batches of `rows` rows.

    Args:
        samples: what to draw from.
        length: tokens of a row.
        rows: of a batch, over all processes.
        pad_id: of what is behind the text.
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
        length: int,
        rows: int,
        pad_id: int,
        seed: int,
        packed: bool = False,
        vary: Vary | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows={rows}: must be at least 1")
        self.samples, self.length, self.rows, self.pad_id, self.seed = samples, length, rows, pad_id, seed
        self.order = Order([len(sample.ids) for sample in samples], seed, length if packed else None)
        self.vary = vary

    def steps(self, epochs: float) -> int:
        """Steps that so many epochs take."""
        whole = int(epochs)
        rows = self.order.start(whole) + (epochs - whole) * len(self.order.epoch(whole))
        return max(1, math.ceil(rows / self.rows))

    def batch(self, step: int, *, openness: float = 1.0, process: int = 0, processes: int = 1) -> Batch:
        """The rows of a process at a step (from 0).

        Raises:
            ValueError: the rows cannot be divided by the processes.
        """
        if self.rows % processes:
            raise ValueError(f"rows={self.rows}: must be a multiple of the {processes} processes")
        mine = self.rows // processes
        numbers = self.order.rows(step * self.rows, self.rows)
        before = sum(map(len, numbers[: process * mine]))
        chosen = numbers[process * mine : (process + 1) * mine]
        count = before
        rows: list[list[Row]] = []
        for group in chosen:
            rows.append([self.varied(self.samples[n], step, count + i) for i, n in enumerate(group)])
            count += len(group)
        return collate(rows, self.length, self.pad_id, first_sample=before, openness=openness)

    def varied(self, sample: Row, step: int, number: int) -> Row:
        """A sample, the `number`th of its step, as it is shown there."""
        if self.vary is None:
            return sample
        return self.vary(sample, step, np.random.default_rng((self.seed, step, number)))
