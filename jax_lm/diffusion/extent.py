"""How far rows reach while their holes grow and shrink. Arrays alone: knows neither model nor order.

Of a position that is decided, the token for expanding leaves two masks and the token for deleting nothing; whatever
stands after it moves. DreamOn (arXiv 2602.01326), where only decided positions count, deleting ends at the hole's end,
and each hole is known by its number.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.canvas import Canvas


@dataclass(frozen=True)
class Growth:
    """The tokens by which holes change their length, and how many tokens a step decides; static under jit."""

    expand_id: int
    delete_id: int
    tokens_per_step: int = 1


class Extent(NamedTuple):
    """How far each row reaches, and may.

    Attributes:
        length: columns that there are; those behind are padding.
        limit: columns that there may be.
        budget: masks that may still be added.
        hole: number of the hole that a column belongs to; -1 for given text and padding.
    """

    length: Int[Array, "b"]
    limit: Int[Array, "b"]
    budget: Int[Array, "b"]
    hole: Int[Array, "b t"]

    @classmethod
    def of(cls, canvas: Canvas) -> "Extent":
        """That of a canvas whose rows begin in the first column and have room to grow.

        The budget is the published one: twice the columns from the first hole on.
        """
        assert canvas.room is not None
        before = np.concatenate([np.zeros_like(canvas.holes[:, :1]), canvas.holes[:, :-1]], axis=1)
        number = np.cumsum(canvas.holes & ~before, axis=1) - 1
        length, first = canvas.attention_mask.sum(axis=1), np.argmax(canvas.holes, axis=1)
        parts = length, canvas.room, 2 * (canvas.room - first), np.where(canvas.holes, number, -1)
        return cls(*(jnp.asarray(part, jnp.int32) for part in parts))

    def present(self) -> Bool[Array, "b t"]:
        """Tell which columns are no padding."""
        return jnp.arange(self.hole.shape[1]) < self.length[:, None]

    def may_expand(self, masked: Bool[Array, "b t"], growth: Growth) -> Bool[Array, "b"]:
        """Tell which rows have room and budget even if all that the next step decides are expanded."""
        decided = jnp.minimum(jnp.sum(masked, axis=1), growth.tokens_per_step)
        return (self.length + decided <= self.limit) & (self.budget >= decided)


def without_expand(
    logits: Float[Array, "b r v"], masked: Bool[Array, "b t"], growth: Growth | None, extent: Extent | None
) -> Float[Array, "b r v"]:
    """Rule the token for expanding out where a row may not grow; without an extent none may."""
    if growth is None:
        return logits
    is_expand = jnp.arange(logits.shape[-1]) == growth.expand_id
    if extent is not None:
        is_expand = is_expand & ~extent.may_expand(masked, growth)[:, None, None]
    return jnp.where(is_expand, -jnp.inf, logits)


class Move(NamedTuple):
    """Where the columns of rows that change their length come from.

    Attributes:
        source: the column that each column was.
        is_open: those that an expanded position left as masks.
        extent: of the rows afterwards.
    """

    source: Int[Array, "b t"]
    is_open: Bool[Array, "b t"]
    extent: Extent

    def of(self, values: Array, absent: int | bool | float) -> Array:
        """The values of the columns where they are now."""
        return jnp.where(self.extent.present(), jnp.take_along_axis(values, self.source, axis=1), absent)


def resize(
    extent: Extent, tokens: Int[Array, "b t"], masked: Bool[Array, "b t"], decided: Bool[Array, "b t"], growth: Growth
) -> Move:
    """Move columns to where they are once the newly decided positions are expanded and deleted.

    Args:
        masked: masks that are left; those after a deleted position of their hole are deleted with it.
        decided: positions that the step decided; no token elsewhere is looked at.
    """
    place = jnp.arange(tokens.shape[1])
    deleted, expanded = decided & (tokens == growth.delete_id), decided & (tokens == growth.expand_id)
    last = jax.lax.cummax(jnp.where(deleted, place, -1), axis=1)
    # The last deleted position before a column is in its hole if any is.
    same = jnp.take_along_axis(extent.hole, jnp.maximum(last, 0), axis=1) == extent.hole
    gone = deleted | (masked & (last >= 0) & same)
    copies = jnp.where(extent.present(), jnp.where(gone, 0, jnp.where(expanded, 2, 1)), 0)
    ends = jnp.cumsum(copies, axis=1)
    source = jax.vmap(lambda row: jnp.searchsorted(row, place, side="right"))(ends)
    source = jnp.minimum(source, tokens.shape[1] - 1)
    extent = extent._replace(length=ends[:, -1], budget=extent.budget - jnp.sum(expanded, axis=1))
    move = Move(source, jnp.zeros_like(masked), extent)
    return Move(source, move.of(expanded, absent=False), extent._replace(hole=move.of(extent.hole, absent=-1)))
