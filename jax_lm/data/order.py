"""In which order samples are drawn, and which of them share a row: from the seed and the step alone.

Nothing to save: a run that continues at step N draws what it would have drawn. Knows numbers and lengths, no tokens.
"""

from collections.abc import Sequence

import numpy as np

OPEN_ROWS = 64
"""Rows that a packed epoch fills at a time; more would waste less, and take longer."""


class Order:
    """Rows of sample numbers, epoch after epoch, each epoch in an order of its own.

    Args:
        lengths: tokens of each sample.
        seed: of the order.
        capacity: tokens of a row that several samples share; None gives each sample a row of its own.

    Raises:
        ValueError: no samples, or one that fits no row.
    """

    def __init__(self, lengths: Sequence[int], seed: int, capacity: int | None = None) -> None:
        if not len(lengths):
            raise ValueError("lengths=[]: there must be at least one sample")
        if capacity is not None and max(lengths) > capacity:
            raise ValueError(f"sample of {max(lengths)} tokens: longer than a row of {capacity}")
        self.lengths, self.seed, self.capacity = np.asarray(lengths), seed, capacity
        self.starts = [0]
        self.held: tuple[int, list[list[int]]] = (-1, [])

    def epoch(self, number: int) -> list[list[int]]:
        """List all samples once."""
        if self.held[0] != number:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.lengths)).tolist()
            self.held = (number, [[sample] for sample in order] if self.capacity is None else self.packed(order))
        return self.held[1]

    def packed(self, order: Sequence[int]) -> list[list[int]]:
        """Put each sample into the first open row that has room; the fullest row closes when too many are open."""
        assert self.capacity is not None
        done: list[list[int]] = []
        rows: list[list[int]] = []
        room: list[int] = []
        for sample in order:
            length = int(self.lengths[sample])
            row = next((i for i, free in enumerate(room) if free >= length), None)
            if row is None:
                if len(rows) == OPEN_ROWS:
                    fullest = room.index(min(room))
                    done.append(rows.pop(fullest))
                    room.pop(fullest)
                rows.append([])
                room.append(self.capacity)
                row = len(rows) - 1
            rows[row].append(sample)
            room[row] -= length
        return done + rows

    def start(self, epoch: int) -> int:
        """Count the rows before an epoch."""
        while len(self.starts) <= epoch:
            self.starts.append(self.starts[-1] + len(self.epoch(len(self.starts) - 1)))
        return self.starts[epoch]

    def rows(self, first: int, count: int) -> list[list[int]]:
        """Take `count` rows from the `first` on, over the ends of epochs."""
        epoch = 0
        while self.start(epoch + 1) <= first:
            epoch += 1
        taken: list[list[int]] = []
        while len(taken) < count:
            offset = first + len(taken) - self.start(epoch)
            taken += self.epoch(epoch)[offset : offset + count - len(taken)]
            epoch += 1
        return taken
