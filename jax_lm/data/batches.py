"""Samples as token rows, and the batch of every step of masked-diffusion training: order, packing,
variation.

A batch follows from the seed and the step alone, and is the same for any number of processes:
nothing to save, a run that continues at step N draws what it would have drawn. Knows tokens, not
where they come from.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

# Rows that a packed epoch fills at a time; more would waste less, and take longer.
OPEN_ROWS = 64


class Drawn(NamedTuple):
    """The level t of a sample that is masked already, and by how much of a token each of its tokens
    counts.
    """

    level: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """Ids of one sample; `canvas` marks what may be masked; an `open` sample's canvas goes on to
    the end of its row.

    Where masks are `drawn`, the canvas marks what is masked, and the ids are what it is to become.
    """

    ids: tuple[int, ...]
    canvas: tuple[bool, ...]
    open: bool = True
    drawn: Drawn | None = None


def closed(row: Row, pads: int, pad_id: int) -> Row:
    """Close a sample, so that others can stand behind it: with `pads` pads of its own as targets,
    and no more.
    """
    return Row((*row.ids, *[pad_id] * pads), (*row.canvas, *[True] * pads), open=False)


# Changes a sample for a step; it may not grow.
Vary = Callable[[Row, int, np.random.Generator], Row]


class DrawnMasks(NamedTuple):
    """Of the sample of each token, the level at which it was masked; and by how much of a token
    each counts.
    """

    levels: Float[np.ndarray, "b t"]
    shares: Float[np.ndarray, "b t"]


class Batch(NamedTuple):
    """Rows of one length.

    Attributes:
        tokens: ids.
        canvas: which positions may be masked, and are targets then.
        samples: number, among the samples of the step, of the sample that a token belongs to; -1
            where there is nothing to attend to. Tokens of different samples do not see each other.
        openness: share of the future that attention sees while it opens; 1 is bidirectional, 0
            causal. None is bidirectional, and draws nothing.
        drawn: of rows whose canvas is masked as a whole; None if a step draws the masks.
    """

    tokens: Int[np.ndarray, "b t"]
    canvas: Bool[np.ndarray, "b t"]
    samples: Int[np.ndarray, "b t"]
    openness: Float[np.ndarray, "b"] | None
    drawn: DrawnMasks | None = None


def collate(
    rows: Sequence[Sequence[Row]],
    length: int,
    pad_id: int,
    *,
    first_sample: int = 0,
    openness: float | None = None,
) -> Batch:
    """Make a batch of rows of samples, padded on the right to `length`.

    Args:
        first_sample: number of the first sample, where other processes hold the ones before.

    Raises:
        ValueError: a row is longer than `length`.
    """
    tokens = np.full((len(rows), length), pad_id, np.int32)
    canvas = np.zeros((len(rows), length), bool)
    samples = np.full((len(rows), length), -1, np.int32)
    drawn = DrawnMasks(
        np.zeros((len(rows), length), np.float32), np.zeros((len(rows), length), np.float32)
    )
    number = first_sample
    for i, row in enumerate(rows):
        size = sum(len(sample.ids) for sample in row)
        if size > length:
            raise ValueError(f"row of {size} tokens: longer than length={length}")
        start = 0
        for sample in row:
            end = start + len(sample.ids)
            tokens[i, start:end] = sample.ids
            canvas[i, start:end] = sample.canvas
            samples[i, start:end] = number
            if sample.drawn:
                drawn.levels[i, start:end], drawn.shares[i, start:end] = sample.drawn
            if sample.open and sample is row[-1]:
                canvas[i, end:] = True
                samples[i, end:] = number
            start, number = end, number + 1
    opening = None if openness is None else np.full(len(rows), openness, np.float32)
    is_drawn = any(sample.drawn for row in rows for sample in row)
    return Batch(tokens, canvas, samples, opening, drawn if is_drawn else None)


def filled_up(batch: Batch, multiple: int) -> Batch:
    """Add rows that no sample is in, and that count for nothing, up to a multiple of so many rows."""
    missing = -len(batch.tokens) % multiple
    if not missing:
        return batch

    def more(rows: np.ndarray, value: bool | int | float | None = None) -> np.ndarray:
        last = rows[-1:] if value is None else np.full_like(rows[-1:], value)
        return np.concatenate([rows, np.repeat(last, missing, axis=0)])

    openness = None if batch.openness is None else more(batch.openness)
    drawn = (
        None if batch.drawn is None else DrawnMasks(*(more(values, 0.0) for values in batch.drawn))
    )
    return Batch(
        more(batch.tokens), more(batch.canvas, False), more(batch.samples, -1), openness, drawn
    )


@runtime_checkable
class RowOrder(Protocol):
    """Which samples make which row: `rows` takes `count` of them from the `first` on, over the ends
    of epochs, each a list of keys of samples; `start` counts the rows before an epoch."""

    def rows(self, first: int, count: int) -> list[list[Any]]: ...

    def start(self, epoch: int) -> int: ...


class Order:
    """Rows of sample numbers, epoch after epoch, each epoch in an order of its own.

    Args:
        lengths: tokens of each sample.
        capacity: tokens of a row that several samples share; None gives each sample a row of its
            own.
        numbers: of the samples; from 0 on if not given.

    Raises:
        ValueError: no samples, or one that fits no row.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Int[np.ndarray, "n"],
        seed: int,
        capacity: int | None = None,
        numbers: Int[np.ndarray, "n"] | None = None,
    ) -> None:
        if not len(lengths):
            raise ValueError("lengths=[]: there must be at least one sample")
        self.lengths, self.seed, self.capacity = np.asarray(lengths), seed, capacity
        if capacity is not None and self.lengths.max() > capacity:
            raise ValueError(
                f"sample of {self.lengths.max()} tokens: longer than a row of {capacity}"
            )
        self.numbers = np.arange(len(self.lengths)) if numbers is None else numbers
        self.starts = [0]
        self.held: tuple[int, Any] = (-1, [])

    def epoch(self, number: int) -> list[list[int]] | Int[np.ndarray, "n 1"]:
        """Order all samples once: rows of numbers, as lists or as one array."""
        if self.held[0] != number:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.lengths))
            rows = (
                self.numbers[order, None] if self.capacity is None else self.packed(order.tolist())
            )
            self.held = (number, rows)
        return self.held[1]

    def packed(self, order: Sequence[int]) -> list[list[int]]:
        """Put each sample into the first open row that has room; the fullest row closes when too
        many are open.
        """
        assert self.capacity is not None
        done, rows, room = [], [], []
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
            rows[row].append(int(self.numbers[sample]))
            room[row] -= length
        return done + rows

    def start(self, epoch: int) -> int:
        """Count the rows before an epoch."""
        if self.capacity is None:
            return epoch * len(self.lengths)
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
            part = self.epoch(epoch)[offset : offset + count - len(taken)]
            taken += part.tolist() if isinstance(part, np.ndarray) else part
            epoch += 1
        return taken


@dataclass
class SampleStream:
    """Batches of rows of samples.

    Attributes:
        samples: to draw from, by the keys that `order` gives.
        order: which samples make which row.
        max_length: tokens of a row.
        batch_size: rows of a step, over all processes.
        pad_id: of the padding behind the text.
        spare_pads: pads, as targets, behind a sample that others may stand behind; None where it
            may go on to the end of its row.
        vary: changes a sample at a step.
    """

    samples: Any
    order: RowOrder
    _: KW_ONLY
    max_length: int
    batch_size: int
    pad_id: int
    seed: int
    spare_pads: int | None = None
    vary: Vary | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: must be at least 1")

    def steps(self, epochs: float) -> int:
        """Count the steps of so many epochs."""
        whole = int(epochs)
        start = self.order.start(whole)
        part = (epochs - whole) * (self.order.start(whole + 1) - start) if epochs > whole else 0
        return max(1, math.ceil((start + part) / self.batch_size))

    def batch(
        self, step: int, *, openness: float | None = None, process: int = 0, processes: int = 1
    ) -> Batch:
        """Collate the rows of a process at a step (from 0), reading no other samples than theirs.

        Raises:
            ValueError: the processes cannot divide the rows.
        """
        if self.batch_size % processes:
            raise ValueError(
                f"batch_size={self.batch_size}: must be a multiple of the {processes} processes"
            )
        mine = self.batch_size // processes
        keys = self.order.rows(step * self.batch_size, self.batch_size)
        before = sum(map(len, keys[: process * mine]))
        count = itertools.count(before)
        groups = keys[process * mine : (process + 1) * mine]
        rows = [
            [self.varied(self.sample(key), step, next(count)) for key in group] for group in groups
        ]
        return collate(rows, self.max_length, self.pad_id, first_sample=before, openness=openness)

    def sample(self, key: Any) -> Row:
        """Read a sample, closed where others may stand behind it."""
        row = self.samples[key]
        if self.spare_pads is None:
            return row
        return closed(row, min(self.spare_pads, self.max_length - len(row.ids)), self.pad_id)

    def varied(self, sample: Row, step: int, number: int) -> Row:
        """Show a sample, the `number`th of its step, as that step sees it."""
        if self.vary is None:
            return sample
        return self.vary(sample, step, np.random.default_rng((self.seed, step, number)))
