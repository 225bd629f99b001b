"""A sequence: one text with a hole on its way to being filled, in a slot or waiting for one.

The host's view: which block is open, what is decided, when it is done. Knows neither model nor batch.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jax_lm.diffusion.candidates import SamplingParams, TokenLogProbs
from jax_lm.diffusion.canvas import Block, block_bounds
from jax_lm.diffusion.drafts import Guesses
from jax_lm.diffusion.step import NEVER
from jax_lm.options import BLOCK_LENGTH, GenerationOptions

TOP_K = 50
"""Candidates that a position has at most: a shape, hence the same for all sequences. The published sampler's."""

TOP_LOGPROBS = 20
"""Tokens of a position whose log-probabilities are kept where they are asked for: as many as OpenAI's interface."""

FIXED = {"refresh_every": 1, "refresh_steps": None, "freeze_prompt": False, "first_token": "rule"}
"""Settings of decoding in which sequences of one batch cannot differ."""


@dataclass(kw_only=True, eq=False)
class Sequence:
    """A text with one hole.

    Attributes:
        tokens: ids; MASK where nothing is decided yet.
        hole: the columns to fill; at least one given token stands before it.
        options: order, draw and commit rule; `top_k` must be at most 50, `alg_temp` 0, the cache
            none or a window that is refreshed at every block.
        stop_ids: tokens that end it.
        key: data of a random key.
        masked: columns still to be decided.
        commit_step: step at which a column was decided; NEVER for masks, -1 for what was given.
        confidence: probability of the token when it was decided.
        step: steps taken.
        forwards: model evaluations.
        keeps_logprobs: whether what the model said of each column is kept.
        logprobs: that, of the columns that are decided alone; None where it is not kept.
        guesses: canvases that the next evaluation checks, as the slots made them.

    Raises:
        ValueError: settings that sequences of one batch cannot differ in.
    """

    tokens: Int[np.ndarray, "t"]
    hole: Block
    options: GenerationOptions
    stop_ids: tuple[int, ...]
    key: np.ndarray
    masked: Bool[np.ndarray, "t"] = field(init=False)
    commit_step: Int[np.ndarray, "t"] = field(init=False)
    confidence: Float[np.ndarray, "t"] = field(init=False)
    step: int = 0
    first_step: int = 0
    forwards: int = 0
    block: int = 0
    guesses: Guesses | None = None
    keeps_logprobs: bool = False
    logprobs: TokenLogProbs | None = None

    def __post_init__(self) -> None:
        if not 0 < self.hole.start < self.hole.end <= len(self.tokens):
            raise ValueError(f"hole={self.hole}: must lie within {len(self.tokens)} tokens, one given before it")
        decoding, steps = self.options.decoding.resolved, self.options.steps
        if self.options.top_k is None or self.options.top_k > TOP_K:
            raise ValueError(f"top_k={self.options.top_k}: must lie in [1, {TOP_K}], the candidates that are kept")
        fixed: dict[str, Any] = {"alg_temp": (self.options.alg_temp, 0), "draft": (self.options.draft, 0)}
        fixed["lookahead"] = (self.options.lookahead, 0)
        fixed["grammar"] = (self.options.grammar, None)
        fixed["growth"] = ("on" if self.options.growth == "on" else "off", "off")
        fixed |= {name: (getattr(decoding, name), only) for name, only in FIXED.items()}
        for name, (value, only) in fixed.items():
            if value != only:
                raise ValueError(f"{name}={value!r}: rows that share steps can only have {only!r}")
        cache, commit = decoding.cache, decoding.commit
        if cache not in ("none", "window"):
            raise ValueError(f"cache={cache!r}: must be none or window")
        if (steps is None) != (commit != "steps"):
            raise ValueError(f"steps={steps}: commit='steps' needs a number of steps, {commit!r} takes none")
        if steps is not None and steps > self.hole.length:
            raise ValueError(f"steps={steps}: at most one for each of the {self.hole.length} tokens of the hole")
        if self.is_cached and self.block_length != min(BLOCK_LENGTH, self.hole.length):
            raise ValueError(f"block_length={decoding.block_length}: must be {BLOCK_LENGTH} with a cache")
        columns = np.arange(len(self.tokens))
        self.masked = (columns >= self.hole.start) & (columns < self.hole.end)
        self.commit_step = np.where(self.masked, np.int32(NEVER), np.int32(-1))
        self.confidence = np.zeros(len(self.tokens), np.float32)
        if self.keeps_logprobs:
            self.logprobs = jax.tree.map(np.array, TokenLogProbs.empty((len(self.tokens),), TOP_LOGPROBS))

    is_held = False
    """Whether steps must leave it as it is for now."""

    @property
    def is_cached(self) -> bool:
        return self.options.decoding.resolved.cache != "none"

    @property
    def block_length(self) -> int:
        return self.options.decoding.block_columns(self.hole.length)

    @cached_property
    def blocks(self) -> list[Block]:
        """The hole's columns in the order in which they are filled."""
        return block_bounds(self.hole, self.block_length)

    @property
    def columns(self) -> int:
        """Columns that a batch must have for it; with a cache, windows must not reach over the end."""
        return max(len(self.tokens), self.blocks[-1].start + BLOCK_LENGTH) if self.is_cached else len(self.tokens)

    @property
    def in_block(self) -> Bool[np.ndarray, "t"]:
        """Columns of the current block."""
        block, columns = self.blocks[self.block], np.arange(len(self.tokens))
        return (columns >= block.start) & (columns < block.end)

    @property
    def open(self) -> Bool[np.ndarray, "t"]:
        """Masks of the current block: all that a step may decide."""
        return self.masked & self.in_block

    @property
    def is_between_blocks(self) -> bool:
        return not self.open.any()

    @property
    def settled(self) -> int:
        """The column before which nothing of the hole can change any more."""
        masks = np.flatnonzero(self.masked)
        return int(masks[0]) if len(masks) else self.hole.end

    @property
    def most(self) -> int:
        """Tokens that the hole may have."""
        return self.hole.length

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        """Which positions of the hole are decided."""
        return ~self.masked[self.hole.start : self.hole.end]

    @property
    def is_stopped(self) -> bool:
        """Whether a stop token stands in it, with no mask before."""
        return bool(np.isin(self.tokens[self.hole.start : self.settled], self.stop_ids).any())

    @property
    def is_done(self) -> bool:
        return not self.masked.any() or self.is_stopped

    @property
    def fixed(self) -> int:
        """The column before which nothing is ever taken back."""
        return self.hole.start

    def params(self, columns: int) -> SamplingParams:
        """Its settings for the open block, the schedule as long as a canvas of so many columns could need."""
        block = self.blocks[self.block]
        params = SamplingParams.of(self.options, block.length, self.hole.length, columns=columns)
        # A number for every sequence, as all of a batch run one program.
        top_p = np.float32(np.inf) if params.top_p is None else params.top_p
        top_k, min_p = np.int32(self.options.top_k or TOP_K), np.float32(self.options.min_p or 0)
        early_stop = np.bool_(self.options.early_stop)
        keeps = np.bool_(self.keeps_logprobs)
        return params._replace(top_p=top_p, top_k=top_k, min_p=min_p, early_stop=early_stop, keeps_logprobs=keeps)

    def take(
        self,
        tokens: np.ndarray,
        masked: np.ndarray,
        commit_step: np.ndarray,
        confidence: np.ndarray,
        logprobs: TokenLogProbs | None = None,
    ) -> None:
        """Take over what steps decided in the open block."""
        fresh = self.open & ~masked
        self.tokens[fresh], self.commit_step[fresh], self.confidence[fresh] = (
            values[fresh] for values in (tokens, commit_step, confidence)
        )
        for kept, new in zip(self.logprobs or (), logprobs or (), strict=True):
            kept[fresh] = new[fresh]
        self.masked &= ~fresh

    def next_block(self) -> None:
        """Open the next block with masks in it."""
        while self.masked.any() and not self.open.any():
            self.block += 1
            self.first_step = self.step

    def reopen(self) -> None:
        """Undo the current block, whose computation was lost."""
        block = self.blocks[self.block]
        columns = slice(max(block.start, self.fixed), block.end)
        self.masked[columns], self.commit_step[columns], self.confidence[columns] = True, NEVER, 0
        self.step, self.guesses = self.first_step, None
