"""A sequence is one text with a hole. It occupies a slot, or waits for one.

This is the host's view: which block is open, which columns are decided, and when the text is done.
Knows neither model nor batch.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from jax_lm.diffusion.candidates import SamplingParams, TokenLogProbs
from jax_lm.diffusion.canvas import Block, aligned_blocks
from jax_lm.diffusion.state import NEVER, SamplerState
from jax_lm.models.shapes import SequenceMask, SequenceTokens, StopIds
from jax_lm.options import (
    ACTIVE_BLOCKS,
    BLOCK_LENGTH,
    P2,
    WITHOUT_REFRESHES,
    GenerationOptions,
    require_only,
)

# Maximum number of candidates per position, as in the published sampler. It is part of a shape, so
# it is the same for all sequences.
TOP_K = 50

# Tokens per position whose log-probabilities are kept on request, as many as OpenAI's interface
# reports.
TOP_LOGPROBS = 20

# Options that are part of the compiled program, with the value that all sequences of a batch must
# have; the settings of refreshes are too.
SAME_OPTIONS = {"alg_temp": 0, "draft": 0, "lookahead": 0, "grammar": None}
IN_A_BATCH = "for sequences of a batch"


@dataclass(kw_only=True, eq=False)
class Sequence:
    """A text with one hole.

    Attributes:
        tokens: ids; arbitrary where nothing is decided yet.
        hole: the columns to fill; at least one given token stands before them.
        options: order, draws and commit rule. `top_k` must be at most 50, `alg_temp` 0, and the
            cache either none or a window that is refreshed at every block; from left to right, causal.
        stop_ids: tokens that end the text.
        key: data of a random key.
        adapter: name of the adapter of the model; empty for the model itself.
        masked: columns still to be decided.
        commit_step: step at which a column was decided; NEVER for masks, -1 for given tokens.
        confidence: probability of the token when it was decided.
        step: steps taken.
        first_step: value of `step` when the current block began.
        forwards: forward passes.
        block: number of the current block.
        extra: draft canvases that the next forward pass verifies, with `draft`; else None.
        keeps_logprobs: whether log-probabilities are kept.
        logprobs: log-probabilities of decided columns; None if they are not kept.
        seconds: time that the device has spent on the sequence.
        served_at: when its last call ended (monotonic clock); those that waited longest are next.

    Raises:
        ValueError: settings that differ from those of all sequences of a batch.
    """

    tokens: SequenceTokens
    hole: Block
    options: GenerationOptions
    stop_ids: StopIds
    key: np.ndarray
    adapter: str = ""
    masked: SequenceMask = field(init=False)
    commit_step: SequenceTokens = field(init=False)
    confidence: Float[np.ndarray, "t"] = field(init=False)
    step: int = 0
    first_step: int = 0
    forwards: int = 0
    block: int = 0
    extra: Any = None
    keeps_logprobs: bool = False
    logprobs: TokenLogProbs | None = None
    seconds: float = 0.0
    served_at: float = 0.0

    decoding_block: int = 1
    """Length of the blocks of the model, counted from the first column; 1 without."""
    is_left_to_right: bool = False
    """Whether the model is autoregressive, so that each step decides the first masked column."""
    is_growing = False
    """Whether the hole finds its own length."""
    is_held = False
    """Whether steps must leave the sequence as it is for now."""

    def __post_init__(self):
        length = len(self.tokens)
        self.require_batchable()
        self.masked = self.within(self.hole)
        self.commit_step = np.where(self.masked, np.int32(NEVER), np.int32(-1))
        self.confidence = np.zeros(length, np.float32)
        if self.keeps_logprobs:
            self.logprobs = jax.tree.map(np.array, TokenLogProbs.empty((length,), TOP_LOGPROBS))

    def require_batchable(self):
        """Raise ValueError for options that a batch of different sequences does not support."""
        options = self.options
        decoding = options.decoding.settings
        # The token before the hole is needed because each logit predicts the next position.
        if not 0 < self.hole.start < self.hole.end <= len(self.tokens):
            raise ValueError(
                f"hole={self.hole}: must lie within {len(self.tokens)} tokens, one given before it"
            )
        if options.top_k is None or options.top_k > TOP_K:
            raise ValueError(
                f"top_k={options.top_k}: must lie in [1, {TOP_K}], the number of candidates"
            )
        for name, value in (("growth", "on"), ("alg", P2)):
            if getattr(options, name) == value:
                raise ValueError(f"{name}={value!r}: not {IN_A_BATCH}")
        require_only(options, SAME_OPTIONS, IN_A_BATCH)
        require_only(decoding, WITHOUT_REFRESHES, IN_A_BATCH)
        # settings that depend on each other
        steps = options.steps
        if not self.is_left_to_right:
            if decoding.cache not in ("none", "window"):
                raise ValueError(f"cache={decoding.cache!r}: must be none or window")
            if options.decoding.is_pipelined:
                raise ValueError(f"{ACTIVE_BLOCKS}: not {IN_A_BATCH}")
        if (steps is None) != (decoding.commit != "steps"):
            raise ValueError(
                f"steps={steps}: commit='steps' needs a number of steps, {decoding.commit!r} takes none"
            )
        if steps and steps > self.most:
            raise ValueError(
                f"steps={steps}: at most one for each of the {self.most} tokens of the hole"
            )
        # A window is longer than shorter blocks. That is exact if a block sees none after it.
        length = self.decoding_block if 1 < self.decoding_block < BLOCK_LENGTH else BLOCK_LENGTH
        if self.is_windowed and self.block_length != min(length, self.most + self.phase):
            raise ValueError(f"block_length={decoding.block_length}: must be {length} with a cache")

    @property
    def is_cached(self) -> bool:
        return self.options.decoding.settings.cache != "none"

    @property
    def is_windowed(self) -> bool:
        """Whether its steps compute a block of columns."""
        return self.is_cached and not self.is_left_to_right

    @property
    def block_length(self) -> int:
        if self.is_left_to_right:
            return self.most
        return self.options.decoding.block_length_in(self.most + self.phase)

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks of the hole in the order in which they are filled."""
        return aligned_blocks(self.hole, self.block_length, self.phase)

    @property
    def phase(self) -> int:
        """Columns of the prompt in the first attention block that has a mask."""
        return self.hole.start % self.decoding_block

    @property
    def window_start(self) -> int:
        """First column that a windowed step recomputes; given tokens attend to their whole block."""
        return self.blocks[self.block].start - (0 if self.block else self.phase)

    @property
    def columns(self) -> int:
        """Columns that the batch needs; with a cache, the last window must fit too."""
        length = len(self.tokens)
        return max(length, self.blocks[-1].start + BLOCK_LENGTH) if self.is_windowed else length

    def within(self, block: Block) -> SequenceMask:
        """Return which columns a block has."""
        # [2, 4) of 5 tokens: [0, 0, 1, 1, 0]
        columns = np.arange(len(self.tokens))
        return (columns >= block.start) & (columns < block.end)

    @property
    def in_block(self) -> SequenceMask:
        """Columns of the current block."""
        return self.within(self.blocks[self.block])

    @property
    def open(self) -> SequenceMask:
        """Masks of the current block, which are all that a step may decide."""
        return self.masked & self.in_block

    @property
    def is_between_blocks(self) -> bool:
        return not self.open.any()

    @property
    def first_open(self) -> int:
        """First column of the hole that is not final; its end if all are."""
        # masks at columns 7 and 9: everything before 7 is settled
        return int(self.masked.argmax()) if self.masked.any() else self.hole.end

    @property
    def most(self) -> int:
        """Largest number of tokens that the hole can have."""
        return self.hole.length

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        """Whether each position of the hole is decided."""
        return ~self.masked[self.hole.start : self.hole.end]

    @property
    def is_stopped(self) -> bool:
        """Whether the hole has a stop token, and no mask before it."""
        return bool(np.isin(self.tokens[self.hole.start : self.first_open], self.stop_ids).any())

    @property
    def is_done(self) -> bool:
        return not self.masked.any() or self.is_stopped

    @property
    def first_revisable(self) -> int:
        """First column that may still be masked again."""
        return self.hole.start

    def params(self, columns: int) -> SamplingParams:
        """Return the sampling parameters of the current block, for canvases of `columns`."""
        options = self.options
        length = self.blocks[self.block].length
        params = SamplingParams.of(options, length, self.most, columns=columns)
        # All sequences of a batch run the same program, so that every setting needs a number.
        return params._replace(
            top_p=np.float32(np.inf) if params.top_p is None else params.top_p,
            top_k=np.int32(options.top_k or TOP_K),
            min_p=np.float32(options.min_p or 0),
            early_stop=np.bool_(options.early_stop),
            keeps_logprobs=np.bool_(self.keeps_logprobs),
        )

    def take(self, state: SamplerState):
        """Copy what steps have decided from a state [1, columns] on the host."""
        self.step = int(state.step)
        self.forwards = int(state.forwards)
        self.extra = state.extra
        # copy only columns of the current block that the steps decided
        fresh = self.open & ~state.masked[0, : len(self.tokens)]
        # a batch keeps log-probabilities if any of its sequences does
        fields = (self.tokens, self.commit_step, self.confidence, *(self.logprobs or ()))
        new = (state.tokens, state.commit_step, state.confidence, *(state.logprobs or ()))
        for values, decided in zip(fields, new, strict=False):
            values[fresh] = decided[0, : len(self.tokens)][fresh]
        self.masked &= ~fresh

    def next_block(self):
        """Begin the next block that has masks."""
        # a repair restarts at block 0: skip blocks that are already final
        while self.masked.any() and not self.open.any():
            self.block += 1
            self.first_step = self.step

    def reopen(self):
        """Mask the current block again, because its KV cache was lost."""
        # tokens before `first_revisable` are final and stay
        block = self.blocks[self.block]
        columns = slice(max(block.start, self.first_revisable), block.end)
        self.masked[columns] = True
        self.commit_step[columns] = NEVER
        self.confidence[columns] = 0
        self.step = self.first_step
        self.extra = None
