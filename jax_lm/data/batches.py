"""Batches of masked-diffusion training: token rows, and their order, packing and variation.

A batch depends only on the seed and the step, and is the same for any number of processes. The
data order therefore needs no checkpoint: a run that resumes at step N draws the batches that it
would have drawn without the interruption. Knows tokens, not where they come from.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jax_lm.config import Floats, Ints
from jax_lm.models.shapes import HostMask, HostTokens

# Rows that packing fills at the same time. More rows waste fewer tokens, but packing takes longer.
OPEN_ROWS = 64

# Numbers of samples, or one number for each.
Indices = Int[np.ndarray, "n"]


class Drawn(NamedTuple):
    """Masking of a sample whose masks are already drawn.

    Attributes:
        level: t, the masking level.
        shares: weight of each token in the loss, in tokens.
    """

    level: float
    shares: Floats


@dataclass(frozen=True)
class Row:
    """Token ids of one sample.

    Attributes:
        ids: token ids.
        canvas: positions that may be masked.
        open: the canvas extends to the end of the row in which the sample is placed.
        drawn: levels and weights if the masks are already drawn. The canvas then marks the masked
            positions, and `ids` holds their targets.
    """

    ids: Ints
    canvas: tuple[bool, ...]
    open: bool = True
    drawn: Drawn | None = None

    @classmethod
    def masked_after(cls, visible: int, ids: Sequence[int], *, open: bool = True) -> "Row":
        """Return a sample all of which may be masked but its first `visible` tokens."""
        # visible == 2 of [a, b, c, d]: canvas [0, 0, 1, 1]
        return cls(tuple(ids), (False,) * visible + (True,) * (len(ids) - visible), open)


def close_sample(row: Row, pads: int, pad_id: int) -> Row:
    """Close a sample, so that another one can follow it in the same row.

    The closed sample ends with `pads` pad tokens, which are targets.
    """
    # pads=2: ids [5, 6] -> [5, 6, pad, pad], canvas [False, True] -> [False, True, True, True]
    return Row((*row.ids, *[pad_id] * pads), (*row.canvas, *[True] * pads), open=False)


# (sample, step, generator) -> the sample as that step sees it. It may not become longer.
Vary = Callable[[Row, int, np.random.Generator], Row]


class DrawnMasks(NamedTuple):
    """`Drawn` of a batch: masking level of each token's sample, and weight of each token."""

    levels: Float[np.ndarray, "b t"]
    shares: Float[np.ndarray, "b t"]


class Batch(NamedTuple):
    """Rows of one length.

    Attributes:
        tokens: token ids.
        canvas: positions that may be masked; masked positions are targets.
        samples: index, within the step, of the sample that a token belongs to; -1 where there is
            nothing to attend to. Tokens of different samples do not attend to each other.
        openness: share of future positions that attention sees during annealing: 0 is causal, 1 is
            bidirectional. None is bidirectional too, and draws no random numbers.
        drawn: levels and weights if the canvas is already masked; None if the step draws the masks.
    """

    tokens: HostTokens
    canvas: HostMask
    samples: HostTokens
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
    """Collate rows of samples into a batch, padded on the right to `length`.

    Args:
        rows: samples of each row, together of at most `length` tokens.
        length: tokens of a row.
        pad_id: token id of the padding.
        first_sample: index of the first sample within the step; above 0 where other processes hold
            the samples before it.
        openness: value for all rows, see `Batch`.
    """
    shape = (len(rows), length)
    tokens = np.full(shape, pad_id, np.int32)
    samples = np.full(shape, -1, np.int32)
    canvas = np.zeros(shape, bool)
    drawn = DrawnMasks(*np.zeros((2, *shape), np.float32))
    # length=6, samples [1, 2] (closed) and [3, 4] (open):
    #   tokens  1 2 3 4 pad pad
    #   samples 0 0 1 1  1   1
    number = first_sample
    for i, row in enumerate(rows):
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
            start = end
            number = number + 1
    row_openness = None if openness is None else np.full(len(rows), openness, np.float32)
    is_drawn = any(sample.drawn for row in rows for sample in row)
    return Batch(tokens, canvas, samples, row_openness, drawn if is_drawn else None)


def fill_rows(batch: Batch, multiple: int) -> Batch:
    """Append rows without samples until the number of rows is a multiple of `multiple`.

    No position of these rows is on the canvas, so they do not contribute to the loss.
    """
    # 6 rows, multiple=4: -6 % 4 = 2 rows are missing
    missing = -len(batch.tokens) % multiple
    if not missing:
        return batch

    def append(values, **settings):
        # zeros, unless `settings` say otherwise
        return np.pad(values, [(0, missing), (0, 0)][: values.ndim], **settings)

    return Batch(
        append(batch.tokens, mode="edge"),
        append(batch.canvas),
        append(batch.samples, constant_values=-1),
        None if batch.openness is None else append(batch.openness, mode="edge"),
        batch.drawn and DrawnMasks(*map(append, batch.drawn)),
    )


class Order:
    """Rows of sample indices, in a new random order every epoch.

    Args:
        lengths: tokens of each sample.
        seed: the order depends only on the seed and the epoch.
        capacity: tokens of a row if samples are packed; None places one sample in each row.
        numbers: indices of the samples; 0, 1, 2, ... by default.

    Raises:
        ValueError: there is no sample, or one is longer than a row.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Indices,
        seed: int,
        capacity: int | None = None,
        numbers: Indices | None = None,
    ):
        if not len(lengths):
            raise ValueError("lengths=[]: there must be at least one sample")
        self.lengths = np.asarray(lengths)
        self.seed = seed
        self.capacity = capacity
        if capacity is not None and self.lengths.max() > capacity:
            raise ValueError(
                f"sample of {self.lengths.max()} tokens: longer than a row of {capacity}"
            )
        self.numbers = np.arange(len(self.lengths)) if numbers is None else numbers
        self.starts = [0]
        self.cached: tuple[int, Any] = (-1, [])

    def epoch(self, number: int) -> list[list[int]] | Int[np.ndarray, "n 1"]:
        """Return the rows of an epoch, as lists of sample indices or as one array.

        The last epoch is cached: consecutive steps ask for the same one.
        """
        # numbers [4, 5, 6] in order [2, 0, 1], one per row -> [[6], [4], [5]]
        if self.cached[0] != number:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.lengths))
            rows = self.numbers[order, None] if self.capacity is None else self.pack(order.tolist())
            self.cached = (number, rows)
        return self.cached[1]

    def pack(self, order: Sequence[int]) -> list[list[int]]:
        """Pack samples first-fit: each goes into the first open row with enough room.

        If no row has room and `OPEN_ROWS` are open, the fullest of them is closed.
        """
        # capacity 8, lengths 5, 6, 3, 2 -> rows [5, 3] and [6, 2]
        assert self.capacity
        done = []
        rows = []
        room = []
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
        """Return the number of rows before an epoch."""
        if self.capacity is None:
            return epoch * len(self.lengths)
        # The number of packed rows differs between epochs: each has to be packed to know it.
        while len(self.starts) <= epoch:
            self.starts.append(self.starts[-1] + len(self.epoch(len(self.starts) - 1)))
        return self.starts[epoch]

    def rows(self, first: int, count: int) -> list[list[int]]:
        """Return `count` rows starting at row `first`, across epochs."""
        # Epochs of 3 rows: rows(2, 3) are row 2 of epoch 0, and rows 0 and 1 of epoch 1.
        epoch = 0
        while self.start(epoch + 1) <= first:
            epoch += 1
        rows = []
        while len(rows) < count:
            offset = first + len(rows) - self.start(epoch)
            section = self.epoch(epoch)[offset : offset + count - len(rows)]
            rows += section.tolist() if isinstance(section, np.ndarray) else section
            epoch += 1
        return rows


@dataclass
class SampleStream:
    """The batches of a run.

    Attributes:
        samples: maps the keys of `order` to samples.
        order: assigns samples to rows: an `Order`, or the `TextRows` of token shards.
        max_length: tokens of a row.
        batch_size: rows of a step, over all processes.
        pad_id: token id of the padding.
        seed: seed of `vary`, together with the step and the sample's index within the step.
        spare_pads: pad tokens, as targets, after a sample that another one may follow; None leaves
            samples open, to the end of their row.
        vary: changes a sample at each step.
    """

    samples: Any
    order: Any
    _: KW_ONLY
    max_length: int
    batch_size: int
    pad_id: int
    seed: int
    spare_pads: int | None = None
    vary: Vary | None = None

    def steps(self, epochs: float) -> int:
        """Return the number of steps of `epochs` epochs, which may be fractional."""
        # 1.5 epochs of 10 rows, 4 rows per step: ceil((10 + 5) / 4) = 4 steps
        whole = int(epochs)
        start = self.order.start(whole)
        fraction = (epochs - whole) * (self.order.start(whole + 1) - start) if epochs > whole else 0
        return max(1, math.ceil((start + fraction) / self.batch_size))

    def batch(
        self, step: int, *, openness: float | None = None, process: int = 0, processes: int = 1
    ) -> Batch:
        """Collate the rows of one process at a step (from 0). Reads only the samples of these rows.

        Raises:
            ValueError: the batch size is not a multiple of the number of processes.
        """
        if self.batch_size % processes:
            raise ValueError(
                f"batch_size={self.batch_size}: must be a multiple of the {processes} processes"
            )
        # 8 rows and 2 processes: process 0 has rows 0 to 3, process 1 has rows 4 to 7
        count_here = self.batch_size // processes
        keys = self.order.rows(step * self.batch_size, self.batch_size)
        # Numbered across processes, so that `vary` draws the same for any number of processes.
        before = sum(map(len, keys[: process * count_here]))
        count = itertools.count(before)
        groups = keys[process * count_here : (process + 1) * count_here]
        rows = [[self.sample(key, step, next(count)) for key in group] for group in groups]
        return collate(rows, self.max_length, self.pad_id, first_sample=before, openness=openness)

    def sample(self, key, step: int, number: int) -> Row:
        """Return the sample with index `number` within a step: closed and varied as this run does."""
        row = self.samples[key]
        if self.spare_pads is not None:
            row = close_sample(
                row, min(self.spare_pads, self.max_length - len(row.ids)), self.pad_id
            )
        if self.vary is None:
            return row
        return self.vary(row, step, np.random.default_rng((self.seed, step, number)))
