"""Samples as token rows, several in a row if wanted, and rows as the batches of masked-diffusion training.

Knows tokens, not where they come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Row:
    """Ids of one sample; `canvas` marks what may be masked; an `open` sample's canvas goes on to the end of its row."""

    ids: tuple[int, ...]
    canvas: tuple[bool, ...]
    open: bool = True


class Batch(NamedTuple):
    """Rows of one length.

    Attributes:
        tokens: ids.
        canvas: which positions may be masked, and are targets then.
        samples: number, among the samples of the step, of the sample that a token belongs to; -1 where there is
            nothing to attend to. Tokens of different samples do not see each other.
        openness: share of the future that attention sees; 1 is bidirectional, 0 causal.
    """

    tokens: Int[np.ndarray, "b t"]
    canvas: Bool[np.ndarray, "b t"]
    samples: Int[np.ndarray, "b t"]
    openness: Float[np.ndarray, "b"]


def collate(
    rows: Sequence[Sequence[Row]], length: int, pad_id: int, *, first_sample: int = 0, openness: float = 1.0
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
            if sample.open and sample is row[-1]:
                canvas[i, end:] = True
                samples[i, end:] = number
            start, number = end, number + 1
    return Batch(tokens, canvas, samples, np.full(len(rows), openness, np.float32))
