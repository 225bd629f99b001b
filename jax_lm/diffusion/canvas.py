"""A canvas: rows of tokens with holes to fill, and the blocks in which it is filled.

Knows neither model nor order. What is not a hole never changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True)
class Block:
    """Columns [start, end) that are filled before those after them."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def block_bounds(region: Block, length: int) -> list[Block]:
    """The region cut into blocks of `length` columns from the left; the last may be shorter."""
    starts = range(region.start, region.end, length)
    return [Block(start, min(start + length, region.end)) for start in starts]


@dataclass(frozen=True)
class Canvas:
    """Rows of tokens with holes to fill.

    Attributes:
        tokens: ids; those under a hole do not matter.
        holes: positions to fill.
        attention_mask: True where there is a token or a hole, False on padding.
        room: columns that each row may take where holes grow, padding being on the right; None where they do not.
    """

    tokens: Int[np.ndarray, "b t"]
    holes: Bool[np.ndarray, "b t"]
    attention_mask: Bool[np.ndarray, "b t"]
    room: Int[np.ndarray, "b"] | None = None

    @classmethod
    def after(cls, input_ids: np.ndarray, attention_mask: np.ndarray | None, new_tokens: int) -> "Canvas":
        """A left-padded prompt [b, t] followed by `new_tokens` holes; ValueError without row or hole."""
        if new_tokens < 1:
            raise ValueError(f"max_new_tokens={new_tokens}: must be at least 1")
        if input_ids.ndim != 2 or not len(input_ids):
            raise ValueError(f"input_ids has shape {input_ids.shape}: must be [batch, time] with at least one row")
        present = np.ones_like(input_ids, bool) if attention_mask is None else attention_mask.astype(bool)
        added = np.ones((len(input_ids), new_tokens), bool)
        return cls(
            tokens=np.concatenate([input_ids, np.zeros_like(added, np.int32)], axis=1).astype(np.int32),
            holes=np.concatenate([np.zeros_like(present), added], axis=1),
            attention_mask=np.concatenate([present, added], axis=1),
        )

    @cached_property
    def region(self) -> Block:
        """All columns from the first hole to the last, of holes that grow all columns; ValueError if there is none."""
        columns = np.flatnonzero(self.holes.any(axis=0))
        if not len(columns):
            raise ValueError("canvas has no hole to fill")
        if self.room is not None:
            return Block(0, self.holes.shape[1])
        return Block(int(columns[0]), int(columns[-1]) + 1)

    def blocks(self, length: int) -> Iterator[Block]:
        """The region cut into blocks of `length`, the last may be shorter; blocks without a hole are left out."""
        for block in block_bounds(self.region, length):
            if self.holes[:, block.start : block.end].any():
                yield block

    @property
    def position_ids(self) -> Int[np.ndarray, "b t"]:
        """Positions count what is there, so that left padding moves nothing."""
        return np.maximum(np.cumsum(self.attention_mask, axis=1) - 1, 0).astype(np.int32)

    @property
    def hole_starts(self) -> Int[np.ndarray, "b t"]:
        """Column where the hole around each position begins; of the last hole before it, outside of holes."""
        before = np.concatenate([np.zeros_like(self.holes[:, :1]), self.holes[:, :-1]], axis=1)
        columns = np.arange(self.holes.shape[1], dtype=np.int32)
        return np.maximum.accumulate(np.where(self.holes & ~before, columns, 0), axis=1).astype(np.int32)
