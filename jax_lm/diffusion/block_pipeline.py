"""Block pipeline: steps over several blocks at once, which attend to themselves and earlier ones.

This is D2F (arXiv 2508.09192). A block begins while the one before it is still being filled; at
first it commits only tokens that are confident enough. Once the block before it is nearly full, it
must commit a token at each step. A finished block is computed once more with its final tokens; then
its keys and values stay in the cache, as no later block changes them. Each row advances on its own,
as a batch of one.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.candidates import SamplingParams, add_noise
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.state import (
    BatchInputs,
    Proposal,
    SamplerState,
    decided_stops,
    each_alone,
    together,
)
from jax_lm.diffusion.step import (
    ROWS,
    Pass,
    StepConfig,
    Variant,
    block_columns,
    evaluate,
    noise,
    write,
)
from jax_lm.models.attention import attends_by_blocks
from jax_lm.models.shapes import BatchCounts, BatchFlags, Scalar
from jax_lm.options import CAUSAL, WITH_CAUSAL, require_only

# Fields of a row that a step changes.
DECIDED = ("tokens", "masked", "commit_step", "confidence")

# Tolerance in tokens when a block's filled share is compared: 0.95 * 20 is not exactly 19 in
# float32.
ROUNDING = 1e-4
# Numbers of columns, or of their blocks.
Columns = Int[Array, "r"]
# A number, or a truth value, for each of the n blocks of a row.
BlockCounts = Int[Array, "b n"]
BlockFlags = Bool[Array, "b n"]


class Pipeline(NamedTuple):
    """Progress of each row.

    Attributes:
        begun: the first blocks, this many, have begun.
        stored: the first blocks, this many, have their final keys and values in the cache.
        parts: what a subclass keeps of the parts of a row.
    """

    begun: BatchCounts
    stored: BatchCounts
    parts: Any = None


@dataclass(frozen=True)
class BlockPipeline(Variant):
    """The blocks of an answer in columns [start, end), of which several are filled at once.

    Blocks are counted from the end of the prompt; the last may be shorter. How the prompt attends
    to itself is a rule of the model's family.

    Attributes:
        length: columns of a block.
        active: blocks that may have begun without being finished.
        prompt_block: columns of the blocks into which the prompt is cut backwards from its end;
            None attends to all of itself.
        begun: blocks that have begun before the first step; that step may begin one more.
    """

    start: int
    end: int
    length: int
    active: int
    prompt_block: int | None = None
    begun = 0
    # A hook of subclasses. The `extra` of its state is that row's part of the pipeline.
    evaluate = staticmethod(evaluate)

    @classmethod
    def of(cls, canvas, options, config) -> "BlockPipeline | None":
        decoding = options.decoding.settings
        if decoding.cache != "causal":
            return None
        region = completed_region(canvas, CAUSAL)
        length = options.decoding.block_length_in(region.length)
        require_only(options, {"draft": 0}, WITH_CAUSAL)
        if config.block_size is not None and (
            config.family.prompt != "answer" or length != config.block_size
        ):
            raise ValueError(
                f"cache='causal': not with blocks of {length} of {config.family.name}, whose blocks "
                f"of {config.block_size} are counted from the {config.family.prompt}"
            )
        return cls(region.start, region.end, length, decoding.active_blocks, config.attention_block)

    @property
    def request(self) -> str:
        return CAUSAL

    def blocks(self, canvas, length):
        return [canvas.region]

    def begin(self, state, canvas):
        require_fresh(state, canvas, self.request)
        begun, stored = (jnp.full(len(state.tokens), count, jnp.int32) for count in (self.begun, 0))
        return state._replace(extra=Pipeline(begun, stored))

    def passes(self, passes):
        """Compute the prompt and the first block, then a window of blocks."""
        config = passes[0].config
        first = replace(config, length=self.length, rows=self.start + self.length)
        # The row before the window predicts its first column.
        steps = replace(config, length=self.window, rows=min(self.window + 1, self.end))
        return [Pass(first, 0), Pass(steps, 0)]

    def is_open(self, state, window, config):
        return jnp.any(state.masked)

    def advance(self, model, state, cache, inputs, config):
        """Take one denoising step of each row over the blocks that have begun."""
        # which blocks have begun, given the tokens of the last step
        params = inputs.params
        pipeline = state.extra
        assert params.activate_threshold is not None
        masks = self.masks(state.masked)
        is_stop = decided_stops(state, inputs, config.stop_ids)
        following = self.advance_pipeline(pipeline, masks, jnp.any(is_stop, axis=1), params)
        is_begun = self.number(jnp.arange(state.tokens.shape[1])) < following.begun[:, None]
        # Blocks that finished with the last step are computed by this one with their final tokens.
        starts = self.start + self.length * pipeline.stored
        starts = jnp.minimum(starts, self.end - config.length)

        # one row: compute its window of blocks, choose and write
        def take(row, seen, is_forced, start, cache, canvas):
            rows = config.rows or row.tokens.shape[1]
            # rows that end with the block, and begin before it at the latest
            first_row = jnp.clip(start + config.length - rows, 0, start - 1)
            window = inputs.window._replace(block=start, rows=first_row)
            attention_mask = self.admitted(canvas.attention_mask, window.rows + jnp.arange(rows))
            of_row = BatchInputs(canvas._replace(attention_mask=attention_mask), window, params)
            visible = row._replace(masked=seen)
            evaluation, cache = self.evaluate(model, visible, cache, of_row, config.mapped(ROWS))
            chosen = self.choose(evaluation.proposal, visible, is_forced, of_row, config)
            row = write(row, evaluation, chosen, of_row, config)
            return {name: getattr(row, name) for name in DECIDED}, cache

        # all rows together: each with a batch axis of one, and with a window of its own
        given = is_begun & state.masked, self.is_forced(masks, params.activate_threshold)
        seen, is_forced, cache, canvas = each_alone((*given, cache, inputs.canvas))
        mapped = jax.vmap(take, axis_name=ROWS)
        rows = state.rows()._replace(extra=following)
        decided, cache = mapped(rows, seen, is_forced, starts, cache, canvas)
        decided, cache = together((decided, cache))
        state = self.end_texts(state._replace(**decided), inputs, config)
        state = state._replace(step=state.step + 1, forwards=state.forwards + 1, extra=following)
        return state, cache

    def end_texts(
        self, state: SamplerState, inputs: BatchInputs, config: StepConfig
    ) -> SamplerState:
        """Hook of subclasses that end texts by another rule; `write` already ends final texts."""
        return state

    def advance_pipeline(
        self, pipeline: Pipeline, masks: BlockCounts, is_stopped: BatchFlags, params: SamplingParams
    ) -> Pipeline:
        """Count the finished blocks, and begin the next block of each row where allowed.

        A block begins if the one before it is filled to the threshold (as the prompt is), no stop
        token has ended the row, and fewer than `active` blocks are unfinished.
        """
        # masks [0, 0, 3, 0] -> 2 finished: only the first ones count
        finished = jnp.sum(jnp.cumprod(masks == 0, axis=1), axis=1, dtype=jnp.int32)
        assert params.add_threshold is not None
        is_filled = jnp.pad(
            self.is_filled(masks, params.add_threshold), ((0, 0), (1, 0)), constant_values=True
        )
        # With the prompt in front, entry n says whether the block before block n is filled.
        is_ready = jnp.take_along_axis(is_filled, pipeline.begun[:, None], axis=1)[:, 0]
        has_room = (pipeline.begun < self.count) & (pipeline.begun - finished < self.active)
        return Pipeline(pipeline.begun + (is_ready & has_room & ~is_stopped), finished)

    def choose(
        self,
        proposal: Proposal,
        state: SamplerState,
        is_forced: Bool[Array, "1 n"],
        inputs: BatchInputs,
        config: StepConfig,
    ) -> Bool[Array, "1 r"]:
        """Choose the masked columns of a row that pass the threshold or the bound on entropy.

        Args:
            proposal: tokens of the window's columns.
            state: the row.
            is_forced: blocks that decide their most confident token if none passes.
            inputs: canvas, window and settings of the row.
            config: configuration of the step.
        """
        # tokens that pass
        window = inputs.window
        params = inputs.params
        masked = block_columns(state.masked, window, config)
        for_choice = noise(state, block_columns(inputs.canvas.position_ids, window, config))[2]
        scores = add_noise(for_choice, proposal.scores, params.alg_temp)
        is_sure = jnp.where(
            params.entropy_bound >= 0,
            proposal.entropy < params.entropy_bound,
            proposal.probability > params.threshold,
        )
        # A NaN is committed too, for the host to find it.
        sure = masked & (is_sure | jnp.isnan(proposal.probability))
        columns = window.block + jnp.arange(config.length)
        # and the most confident mask of each block that must decide one but has none that passes:
        # blocks [0, 0, 1, 1] and ranks [2, 0, 1, 3] have the first ranks [0, 0, 1, 1]
        rank = commit_rules.ranks(scores, masked)
        block = self.number(columns)
        shares = block[:, None] == block
        is_best = rank == jnp.min(jnp.where(shares, rank, config.length), axis=1)
        lacks = is_forced[:, block] & ~jnp.any(shares & sure, axis=1)
        return sure | (masked & is_best & lacks)

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
        """Columns of the blocks that a step can need.

        These are the active blocks, and those that finished with the last step. A step begins at
        most one block, so there is at most one more than may be active.
        """
        return min((self.active + 1) * self.length, self.end - self.start)

    def number(self, columns: Columns) -> Columns:
        """Return the block of each column."""
        # start == 2, length == 2: in [0, 1, 2, 3, 4, 5] out [-1, -1, 0, 0, 1, 1], and with
        # prompt_block == 1 [-2, -1, 0, 0, 1, 1]
        after = columns - self.start
        before = (
            jnp.full_like(after, -1) if self.prompt_block is None else after // self.prompt_block
        )
        return jnp.where(after < 0, before, after // self.length)

    def admitted(self, present: Bool[Array, "b s"], queries: Columns) -> Bool[Array, "b r s"]:
        """Return which keys a query column attends to: those present in its or an earlier block."""
        # start == 2, length == 2, columns 1 to 5 present: queries [1, 3, 4] attend to
        #   [0, 1, 0, 0, 0, 0]  the prompt
        #   [0, 1, 1, 1, 0, 0]  and block 0
        #   [0, 1, 1, 1, 1, 1]  and block 1
        key_blocks = self.number(jnp.arange(present.shape[1]))
        return present[:, None] & attends_by_blocks(self.number(queries)[:, None], key_blocks[None])

    def masks(self, masked: Bool[Array, "b t"]) -> BlockCounts:
        """Count the masks of each block."""
        # start == 1, length == 2, masks [0, 0, 1, 1]: blocks [-1, 0, 0, 1] -> counts [1, 1]
        is_in_block = self.number(jnp.arange(masked.shape[1])) == jnp.arange(self.count)[:, None]
        return jnp.sum(masked[:, None] & is_in_block, axis=-1)

    def is_filled(self, masks: BlockCounts, share: Scalar) -> BlockFlags:
        """Return which blocks have at least this share of their columns decided."""
        sizes = jnp.asarray(self.sizes, jnp.float32)
        return sizes - masks + ROUNDING >= share * sizes

    def is_forced(self, masks: BlockCounts, share: Scalar) -> BlockFlags:
        """Return which blocks must decide a token.

        These are the first block, and each block after one that is filled to this share.
        """
        # Filled [1, 0, 1] -> forced [1, 1, 0].
        first = jnp.ones_like(masks[:, :1], bool)
        return jnp.concatenate([first, self.is_filled(masks, share)[:, :-1]], axis=1)


def completed_region(canvas: Canvas, request: str) -> Block:
    """Return the columns after the prompts.

    Raises:
        ValueError: a row has holes elsewhere; `request` names the setting that forbids it.
    """
    region = canvas.region
    if region.end != canvas.tokens.shape[1] or not canvas.holes[:, region.start :].all():
        raise ValueError(
            f"{request}: only completes prompts; texts with holes need another decoding"
        )
    return region


def require_fresh(state: SamplerState, canvas: Canvas, request: str):
    """Raise ValueError if a state is not that of the empty canvas; `request` is as above."""
    if (np.asarray(state.masked) != canvas.holes).any():
        raise ValueError(f"state: must be None with {request}, which begins with the canvas")
