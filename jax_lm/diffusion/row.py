"""A row on its way to being filled, and its settings as numbers that one compilation can take for many rows.

The host's side of `lanes`: which block is open, what is decided, when it is done. Knows neither model nor batch.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.decoding import BLOCK_LENGTH, Decoding, transfer_ratios
from jax_lm.diffusion.step import NEVER, Plan
from jax_lm.diffusion.unmasking import ALGS, SamplingConfig

TOP_K = 50
"""Candidates per position: a shape, hence the same for all rows. The published sampler's."""


@dataclass(frozen=True, kw_only=True)
class TracedSampling(SamplingConfig):
    """Settings of one row inside a compilation; they were checked when they were plain."""

    def __post_init__(self) -> None:
        """Nothing: a traced number has no value to check."""


@dataclass(frozen=True, kw_only=True)
class TracedDecoding(Decoding):
    """The same of threshold, and of whether it is what commits, or the schedule."""

    by_schedule: Bool[Array, ""]

    @property
    def is_by_schedule(self) -> Bool[Array, ""]:
        return self.by_schedule

    def __post_init__(self) -> None:
        """Nothing: a traced number has no value to check."""


class Settings(NamedTuple):
    """What rows may differ in, as numbers.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: mass of the nucleus; infinity is off.
        alg: index of the order in `ALGS`.
        by_schedule: whether the noise schedule says how many tokens a step commits, or else the threshold.
        threshold: probability from which tokens are committed.
        ratios: the noise schedule of the open block, filled up with ones.
    """

    temperature: Float[Array, "b"]
    top_p: Float[Array, "b"]
    alg: Int[Array, "b"]
    by_schedule: Bool[Array, "b"]
    threshold: Float[Array, "b"]
    ratios: Float[Array, "b s"]

    def applied(self, plan: Plan) -> Plan:
        """The plan with the settings of one row (under `vmap`) in place of its own."""
        sampling = TracedSampling(
            steps=None,
            alg=self.alg,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=plan.sampling.top_k,
            stop_ids=plan.sampling.stop_ids,
        )
        decoding = TracedDecoding(
            commit="threshold", threshold=self.threshold, by_schedule=self.by_schedule, cache=plan.decoding.cache
        )
        return replace(plan, sampling=sampling, decoding=decoding, ratios=self.ratios)


@dataclass(kw_only=True, eq=False)
class Row:
    """A text with one hole on its way to being filled.

    Attributes:
        tokens: ids; MASK where nothing is decided yet.
        hole: the columns to fill; at least one given token stands before it.
        sampling: order and draw; `top_k` must be 50, `alg_temp` 0.
        decoding: without a cache, or with a window that is refreshed at every block; commits by steps or threshold.
        key: data of a random key.
        masked: columns still to be decided.
        commit_step: step at which a column was decided; NEVER for masks, -1 for what was given.
        confidence: probability of the token when it was decided.
        step: steps taken.
        forwards: model evaluations.

    Raises:
        ValueError: settings that rows of one compilation cannot differ in.
    """

    tokens: Int[np.ndarray, "t"]
    hole: Block
    sampling: SamplingConfig
    decoding: Decoding
    key: np.ndarray
    masked: Bool[np.ndarray, "t"] = field(init=False)
    commit_step: Int[np.ndarray, "t"] = field(init=False)
    confidence: Float[np.ndarray, "t"] = field(init=False)
    step: int = 0
    first_step: int = 0
    forwards: int = 0
    block: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hole.start < self.hole.end <= len(self.tokens):
            raise ValueError(f"hole={self.hole}: must lie within {len(self.tokens)} tokens, one given before it")
        s, d = self.sampling, self.decoding
        fixed = {
            "top_k": (s.top_k, TOP_K),
            "alg_temp": (s.alg_temp, 0),
            "strict_reference": (s.strict_reference, False),
        }
        fixed |= {name: (getattr(d, name), getattr(Decoding, name)) for name in ("refresh_every", "refresh_steps")}
        fixed |= {name: (getattr(d, name), getattr(Decoding, name)) for name in ("freeze_prompt", "first_token")}
        for name, (value, only) in fixed.items():
            if value != only:
                raise ValueError(f"{name}={value!r}: rows that share steps can only have {only!r}")
        if d.cache not in ("none", "window") or d.commit not in ("steps", "threshold"):
            raise ValueError(f"cache={d.cache!r}, commit={d.commit!r}: must be none or window, steps or threshold")
        if (s.steps is None) != (d.commit == "threshold"):
            raise ValueError(f"steps={s.steps}: commit='steps' needs a number of steps, 'threshold' takes none")
        if s.steps is not None and s.steps > self.hole.length:
            raise ValueError(f"steps={s.steps}: at most one for each of the {self.hole.length} tokens of the hole")
        if self.is_cached and d.columns(self.hole.length) != min(BLOCK_LENGTH, self.hole.length):
            raise ValueError(f"block_length={d.block_length}: must be {BLOCK_LENGTH} with a cache")
        places = np.arange(len(self.tokens))
        self.masked = (places >= self.hole.start) & (places < self.hole.end)
        self.commit_step = np.where(self.masked, np.int32(NEVER), np.int32(-1))
        self.confidence = np.zeros(len(self.tokens), np.float32)

    @property
    def is_cached(self) -> bool:
        return self.decoding.cache != "none"

    @cached_property
    def blocks(self) -> list[Block]:
        """The hole's columns in the order in which they are filled."""
        start, end, length = self.hole.start, self.hole.end, self.decoding.columns(self.hole.length)
        return [Block(first, min(first + length, end)) for first in range(start, end, length)]

    @property
    def columns(self) -> int:
        """Columns that a batch must have for it; with a cache, windows must not reach over the end."""
        return max(len(self.tokens), self.blocks[-1].start + BLOCK_LENGTH) if self.is_cached else len(self.tokens)

    @property
    def in_block(self) -> Bool[np.ndarray, "t"]:
        """Columns of the current block."""
        block, places = self.blocks[self.block], np.arange(len(self.tokens))
        return (places >= block.start) & (places < block.end)

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
    def is_done(self) -> bool:
        """Full, or ended by a stop token with no mask before it."""
        return not self.masked.any() or bool(
            np.isin(self.tokens[self.hole.start : self.settled], self.sampling.stop_ids).any()
        )

    def settings(self, columns: int) -> Settings:
        """Its settings as numbers, the schedule as long as a canvas of so many columns could need."""
        sampling, decoding = self.sampling, self.decoding
        ratios: Any = np.ones(columns, np.float32)
        if sampling.steps is not None:
            steps = max(1, -(-sampling.steps * self.blocks[self.block].length // self.hole.length))
            ratios[:steps] = transfer_ratios(steps, sampling.eps)
        numbers: dict[str, Any] = {
            "temperature": np.float32(sampling.temperature),
            "top_p": np.float32(np.inf if sampling.top_p is None else sampling.top_p),
            "alg": np.int32(ALGS.index(sampling.alg)),
            "by_schedule": np.bool_(decoding.is_by_schedule),
            "threshold": np.float32(decoding.threshold),
        }
        return Settings(**numbers, ratios=ratios)

    def take(self, tokens: np.ndarray, masked: np.ndarray, commit_step: np.ndarray, confidence: np.ndarray) -> None:
        """Take over what steps decided in the open block."""
        fresh = self.open & ~masked
        self.tokens[fresh], self.commit_step[fresh], self.confidence[fresh] = (
            values[fresh] for values in (tokens, commit_step, confidence)
        )
        self.masked &= ~fresh

    def next_block(self) -> None:
        """Open the next block with masks in it."""
        while self.masked.any() and not self.open.any():
            self.block += 1
            self.first_step = self.step

    def reopen(self) -> None:
        """Undo the current block, whose computation was lost."""
        block = self.blocks[self.block]
        places = slice(block.start, block.end)
        self.masked[places], self.commit_step[places], self.confidence[places] = True, NEVER, 0
        self.step = self.first_step
