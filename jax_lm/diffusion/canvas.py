"""A canvas: rows of tokens with holes to fill, and the blocks in which it is filled.

Knows neither model nor order. Given text never changes.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jax_lm.config import DreamConfig
from jax_lm.models.shapes import HostMask, HostTokens
from jax_lm.templates import Templates
from jax_lm.tokenizer import DiffuCoderTokenizer, pad_left

logger = logging.getLogger(__name__)

# Widths are multiples of this, so that rows of similar length share a compilation.
WIDTH_BUCKET = 32

# Prompt and answer that the published models were tuned on; longer works, with a warning.
TRAINED_CONTEXT = 2048

# Ids of a row, and which of them are holes.
Row = tuple[Sequence[int], Sequence[bool]]


def check_context(tokens: int, context: int, new: int = 0):
    """Raise ValueError if a row exceeds the context; warn beyond what the models were tuned on.

    Args:
        tokens: all tokens of the row.
        context: tokens that the model takes.
        new: those of the tokens that are to be decoded, for the message.
    """
    if tokens > context:
        parts = f"{tokens - new} + {new} = {tokens}" if new else tokens
        raise ValueError(
            f"prompt and new tokens take {parts} tokens: the context holds {context} tokens"
        )
    if tokens > TRAINED_CONTEXT:
        logger.warning(
            "prompt and answer take %d tokens; DiffuCoder was tuned on %d", tokens, TRAINED_CONTEXT
        )


@dataclass(frozen=True)
class Block:
    """Columns [start, end) that are filled before those after them."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def aligned_blocks(region: Block, length: int, phase: int) -> list[Block]:
    """Cut a region into blocks, of which the first begins `phase` columns before the region.

    The last one may be shorter.
    """
    # region [5, 12), length 4 and phase 1: [5, 8) and [8, 12)
    starts = range(region.start - phase % length, region.end, length)
    return [Block(max(start, region.start), min(start + length, region.end)) for start in starts]


class Layout(NamedTuple):
    """Where the holes of a canvas are at one of its states.

    Attributes:
        present: columns that are not padding.
        holes: columns of holes.
        numbers: at each column of a hole, the number of the hole.
        counts: number of holes of each row if holes may become empty (then numbered from 0); else
            None.
        stopped: whether each row ended with room to spare, if holes grow; else None.
    """

    present: HostMask
    holes: HostMask
    numbers: HostTokens
    counts: list[int] | None = None
    stopped: list[bool] | None = None


@dataclass(frozen=True)
class Canvas:
    """Rows of tokens with holes to fill.

    Attributes:
        tokens: ids; those under a hole do not matter.
        holes: positions to fill.
        attention_mask: True where there is a token or a hole, False on padding.
        room: columns that each row may take where holes grow, with padding on the right; None where
            holes keep their length.
        phase: columns by which the first block begins before the first hole, so that blocks
            coincide with the blocks of the model.
        decoding_block: length of those blocks; 1 without them.
    """

    tokens: HostTokens
    holes: HostMask
    attention_mask: HostMask
    room: Int[np.ndarray, "b"] | None = None
    phase: int = 0
    decoding_block: int = 1

    @classmethod
    def after(
        cls, input_ids: np.ndarray, attention_mask: np.ndarray | None, new_tokens: int
    ) -> "Canvas":
        """Append `new_tokens` holes to a left-padded prompt [b, t].

        Raises ValueError without row or hole.
        """
        if new_tokens < 1:
            raise ValueError(f"max_new_tokens={new_tokens}: must be at least 1")
        if input_ids.ndim != 2 or not len(input_ids):
            raise ValueError(
                f"input_ids has shape {input_ids.shape}: must be [batch, time] with at least one row"
            )
        # prompt [pad, p] and 2 new tokens: tokens [pad, p, 0, 0], holes [0, 0, 1, 1]
        present = (
            np.ones_like(input_ids, bool) if attention_mask is None else attention_mask.astype(bool)
        )
        added = ((0, 0), (0, new_tokens))
        return cls(
            tokens=np.pad(input_ids.astype(np.int32), added),
            holes=np.pad(np.zeros_like(present), added, constant_values=True),
            attention_mask=np.pad(present, added, constant_values=True),
        )

    @classmethod
    def padded(cls, templates: Templates, tokenizer: DiffuCoderTokenizer) -> "Canvas":
        """Lay templates out with padding on the left."""
        # [[1, M], [2, 3, M]] -> [[pad, 1, M], [2, 3, M]], to the next multiple of WIDTH_BUCKET
        rows = [template.encode(tokenizer) for template in templates]
        ids, mask = pad_left([ids for ids, _ in rows], tokenizer.pad_id, multiple_of=WIDTH_BUCKET)
        holes, _ = pad_left([is_hole for _, is_hole in rows], 0, multiple_of=WIDTH_BUCKET)
        return cls(ids, holes.astype(bool), mask.astype(bool))

    @classmethod
    def with_room(
        cls, rows: Sequence[Row], room: Sequence[int], width: int, pad_id: int
    ) -> "Canvas":
        """Lay rows out from column 0; holes may grow until a row takes up its `room` of columns."""
        # Width 6, room [5]: ids [1, M, 2] with holes [0, 1, 0] are [1, M, 2, pad, pad, pad].
        tokens = np.full((len(rows), width), pad_id, np.int32)
        is_hole = np.zeros((len(rows), width), bool)
        for number, (ids, holes) in enumerate(rows):
            tokens[number, : len(ids)], is_hole[number, : len(ids)] = ids, holes
        present = np.arange(width) < np.asarray([[len(ids)] for ids, _ in rows])
        return cls(tokens, is_hole, present, np.asarray(room))

    @cached_property
    def region(self) -> Block:
        """All columns from the first hole to the last; all columns where holes grow.

        Raises:
            ValueError: there is no hole.
        """
        # holes [0, 1, 1, 0, 1, 0] -> columns [1, 5)
        columns = np.flatnonzero(self.holes.any(axis=0))
        if not len(columns):
            raise ValueError("canvas has no hole to fill")
        if self.room is not None:
            return Block(0, self.holes.shape[1])
        return Block(int(columns[0]), int(columns[-1]) + 1)

    def blocks(self, length: int) -> Iterator[Block]:
        """Cut the region into blocks of `length` columns, and skip blocks without a hole.

        The last block may be shorter.
        """
        for block in aligned_blocks(self.region, length, self.phase):
            if self.holes[:, block.start : block.end].any():
                yield block

    def with_blocks_of(self, config: DreamConfig) -> "Canvas":
        """Return a canvas whose blocks coincide with the blocks of the model.

        They are counted from the start of each row. If prompts of different lengths
        put them in different columns, blocks begin with the hole instead, and a warning is logged.

        Raises:
            ValueError: text follows a hole, which a model that attends to earlier blocks cannot
                see.
        """
        size = config.decoding_block
        name = config.family.name
        if size is None:
            return self
        if not self.holes[:, self.region.start :].all():
            raise ValueError(
                f"{name} attends to earlier text alone: it completes prompts, and fills no holes "
                "before given text"
            )
        if config.family.prompt == "start":
            phases = set((self.position_ids[:, self.region.start] % size).tolist())
            if len(phases) == 1:
                return replace(self, phase=phases.pop(), decoding_block=size)
            logger.warning(
                "prompts of different lengths: blocks of %s begin with the answers, not as trained; "
                "decode such prompts one at a time",
                name,
            )
        return self

    def attended(self, column: int) -> Block:
        """Return the columns that attend to a column of the region, and that it decides with.

        These are its block of the model, or the whole canvas.
        """
        # Region [5, 16), phase 1 and blocks of 4: column 9 lies in [8, 12).
        if self.decoding_block == 1:
            return Block(0, self.holes.shape[1])
        start = column - (column - self.region.start + self.phase) % self.decoding_block
        return Block(start, min(start + self.decoding_block, self.holes.shape[1]))

    @property
    def position_ids(self) -> HostTokens:
        """Position of each column: the number of tokens before it, without left padding."""
        # attention mask [0, 0, 1, 1, 1] -> [0, 0, 0, 1, 2]
        return np.maximum(np.cumsum(self.attention_mask, axis=1) - 1, 0).astype(np.int32)

    @property
    def first_columns(self) -> HostMask:
        """Mark the first column of each hole."""
        # holes [0, 1, 1, 0, 1] differ from the column before at [0, 1, 0, 1, 1] -> [0, 1, 0, 0, 1]
        return self.holes & np.diff(self.holes, axis=1, prepend=False)

    @property
    def hole_starts(self) -> HostTokens:
        """Column where the hole at each position begins; outside holes, that of the last hole."""
        # holes [0, 1, 1, 0, 1] -> [0, 1, 1, 1, 4]
        columns = np.arange(self.holes.shape[1], dtype=np.int32)
        return np.maximum.accumulate(np.where(self.first_columns, columns, 0), axis=1).astype(
            np.int32
        )

    @property
    def copies(self) -> int:
        """Size of the groups of equal, consecutive rows that make up the batch."""
        # prompts [p, p, q, q, q, q] -> groups [p, p], [q, q] and [q, q]: 2
        rows = np.concatenate([np.where(self.holes, -1, self.tokens), self.attention_mask], axis=1)
        starts = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
        return math.gcd(len(rows), *starts.tolist())

    def layout(self, extra) -> Layout:
        """Return where the holes are at a state, given its `SamplerState.extra`."""
        if self.room is None:
            return Layout(self.attention_mask, self.holes, self.hole_starts)
        # the number of holes of each row
        return extra.layout(self.first_columns.sum(axis=1).tolist())
