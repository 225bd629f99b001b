"""Blocks in a pipeline: which are begun, whose keys are final, and which columns look at which. Arrays alone.

The blocks of an answer are counted from the end of the prompt, which is block -1. A column attends to its own block and
to those before it, so that the keys and values of a decided block never change again (D2F, arXiv 2508.09192).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

ROUNDING = 1e-4
"""Tokens by which a share of a block may be missed: float32 makes 0.95 * 20 of it, on any device, but for rounding."""


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of an answer in columns [start, end), the last may be shorter; static under jit.

    Attributes:
        length: columns of a block.
        active: blocks that may be begun and not finished at a time.
    """

    start: int
    end: int
    length: int
    active: int

    @property
    def count(self) -> int:
        return -(-(self.end - self.start) // self.length)

    @cached_property
    def sizes(self) -> Int[np.ndarray, "n"]:
        """Columns of each block."""
        starts = self.start + self.length * np.arange(self.count)
        return np.minimum(self.end - starts, self.length)

    @property
    def window(self) -> int:
        """Columns of the blocks that a step can need: the active ones, and as many that finished at the last step.

        A step begins at most one block, so that there is at most one more than may be active.
        """
        return min((self.active + 1) * self.length, self.end - self.start)

    def number(self, columns: Int[Array, "r"]) -> Int[Array, "r"]:
        """The block of each column."""
        return jnp.where(columns < self.start, -1, (columns - self.start) // self.length)

    def admitted(self, present: Bool[Array, "b s"], queries: Int[Array, "r"]) -> Bool[Array, "b r s"]:
        """Tell which keys each query column may attend to: those that there are of its block and of those before it."""
        of_keys = self.number(jnp.arange(present.shape[1]))
        return present[:, None] & (of_keys <= self.number(queries)[:, None])

    def split(self, values: Array, absent: float | bool) -> Array:
        """The answer's part of an array [b, t] by blocks, [b, n, l], the last filled up."""
        answer = values[:, self.start : self.end]
        spare = self.count * self.length - answer.shape[1]
        return jnp.pad(answer, ((0, 0), (0, spare)), constant_values=absent).reshape(len(values), -1, self.length)

    def masks(self, masked: Bool[Array, "b t"]) -> Int[Array, "b n"]:
        """Count the masks of each block."""
        return jnp.sum(self.split(masked, absent=False), axis=-1)

    def is_filled(self, masks: Int[Array, "b n"], share: Float[Array, ""]) -> Bool[Array, "b n"]:
        """Tell of which blocks at least that share is decided."""
        sizes = jnp.asarray(self.sizes, jnp.float32)
        return sizes - masks + ROUNDING >= share * sizes

    def is_forced(self, masks: Int[Array, "b n"], share: Float[Array, ""]) -> Bool[Array, "b n"]:
        """Tell which blocks must decide a token at each step: the first, and those after one decided to that share."""
        first = jnp.ones_like(masks[:, :1], bool)
        return jnp.concatenate([first, self.is_filled(masks, share)[:, :-1]], axis=1)


class Pipeline(NamedTuple):
    """How far each row is.

    Attributes:
        begun: blocks that the model has seen; the first so many.
        stored: blocks whose final tokens the model has seen: their keys and values stay.
    """

    begun: Int[Array, "b"]
    stored: Int[Array, "b"]

    @classmethod
    def empty(cls, batch: int) -> "Pipeline":
        """That of rows of which nothing is seen."""
        return cls(jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32))

    def advanced(
        self, grid: BlockGrid, masks: Int[Array, "b n"], is_stopped: Bool[Array, "b"], add_threshold: Float[Array, ""]
    ) -> "Pipeline":
        """That after a step from canvases of so many masks, which begins the next block where it may.

        A row begins one if the last is filled to the threshold (as the prompt is), nothing has ended the row and fewer
        than `grid.active` are not finished.
        """
        finished = jnp.sum(jnp.cumprod(masks == 0, axis=1), axis=1, dtype=jnp.int32)
        is_filled = jnp.pad(grid.is_filled(masks, add_threshold), ((0, 0), (1, 0)), constant_values=True)
        is_ready = jnp.take_along_axis(is_filled, self.begun[:, None], axis=1)[:, 0]
        has_room = (self.begun < grid.count) & (self.begun - finished < grid.active)
        return Pipeline(self.begun + (is_ready & has_room & ~is_stopped), finished)
