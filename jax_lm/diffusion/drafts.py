"""Draft and verify: draft the canvases of the next steps, and verify all in one forward pass.

This is FreeDave (arXiv 2510.00294), for any rule, order and temperature.

- Drafts are steps taken with the candidates of the last forward pass, which are out of date from
  the second step on.
- One forward pass computes the canvas and its draft canvases. Each yields the true step after it,
  with the random numbers of that step. A draft is right if it equals the true step from the canvas
  before it.
- The first wrong draft ends what is accepted; the true step from there is already known.

So drafting saves forward passes and does not change the text. Each row is a batch of one at a step
of its own.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion.state import (
    NEVER,
    BatchInputs,
    Evaluation,
    KVCache,
    SamplerState,
    StepCarry,
    Window,
    each_alone,
    together,
)
from jax_lm.diffusion.step import (
    CANVASES,
    ROWS,
    StepConfig,
    Variant,
    block_columns,
    commit,
    draw_proposal,
    evaluate,
    skip_idle,
)
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.shapes import BatchFlags, ScalarInt

# Mapped axes of inputs whose window and settings all rows share, as `jax.vmap` takes them.
SHARED: Any = BatchInputs._make((0, None, None))


class DraftCanvases(NamedTuple):
    """Canvases that the next steps are expected to make, in order, including their given text."""

    tokens: Int[Array, "*b g 1 t"]
    masked: Bool[Array, "*b g 1 t"]
    step: Int[Array, "*b g"]


@dataclass(frozen=True)
class Drafts(Variant):
    """Decoding with drafts.

    `SamplerState.extra` holds the rows (`SamplerState.rows`), whose own `extra` holds the drafts.

    Attributes:
        count: draft canvases of a row.
        verifies: whether a forward pass verifies drafts; if not, it only makes new ones.
    """

    count: int
    verifies: bool = True
    keeps_candidates = True
    option = "draft"
    """The generation option that says how many."""

    @classmethod
    def of(cls, canvas, options, config) -> "Drafts | None":
        return cls(count) if (count := getattr(options, cls.option)) else None

    @property
    def request(self):
        return f"{self.option}={self.count}"

    def begin(self, state, canvas):
        rows = state.rows()
        return state._replace(extra=rows._replace(extra=self.blank(rows)))

    def blank(self, rows: SamplerState) -> Any:
        """Return drafts that will be rejected: copies of the canvas, which every step changes."""
        return self.copies(DraftCanvases(rows.tokens, rows.masked, rows.step))

    def copies(self, parts) -> Any:
        """Repeat the arrays of each row, once for each of its draft canvases."""

        def copy(part):
            return jnp.broadcast_to(part[:, None], (len(part), self.count, *part.shape[1:]))

        return jax.tree.map(copy, parts)

    def passes(self, passes):
        """Let refreshes only make drafts: they begin a block, or recompute every row anyway."""

        def drafting(config):
            return replace(
                config, variant=replace(self, verifies=False, forced=config.variant.forced)
            )

        return [*(each._replace(config=drafting(each.config)) for each in passes[:-1]), passes[-1]]

    def enter_row(self, row, inputs, config):
        return skip_idle(row, unbounded(inputs), config)

    def enter(self, state, cache, inputs, config):
        canvas, cache = each_alone((inputs.canvas, cache))
        # Rows that were ended between two calls have no mask left.
        rows = state.extra
        ended = ~jnp.any(state.masked, axis=1)[:, None, None]
        rows = rows._replace(
            tokens=jnp.where(ended, state.tokens[:, None], rows.tokens),
            masked=rows.masked & ~ended,
            commit_step=jnp.where(ended, state.commit_step[:, None], rows.commit_step),
        )
        enter = jax.vmap(partial(self.enter_row, config=config), in_axes=(0, SHARED))
        rows = enter(rows, inputs._replace(canvas=canvas))
        if self.forced:
            is_open = rows_open(rows, inputs.window, config)
            # A forced token is committed at one step for all rows, idle or not.
            first = jnp.min(jnp.where(is_open, rows.step, NEVER))
            rows = rows._replace(step=jnp.where(is_open, first, rows.step))
        return rows, cache

    def is_going(self, state, window, config):
        return jnp.any(rows_going(state, window, config))

    def advance(self, model, state, cache, inputs, config):
        """Advance the rows that take another step; all rows are computed together."""
        going = rows_going(state, inputs.window, config)
        inputs = inputs._replace(canvas=each_alone(inputs.canvas))
        # One forward pass computes all rows, so it counts once.
        after, cache = advance_rows(model, state, cache, inputs, config, going, SHARED)
        return after._replace(forwards=state.forwards + 1), cache

    def advance_row(self, model, row, cache, inputs, config):
        """Compute a canvas and its drafts, take the verified steps, and make new drafts.

        The row may advance some steps beyond `inputs.window.until`.
        """
        drafts = row.extra
        row = row._replace(extra=None)
        inputs = unbounded(inputs)
        config = config.mapped(CANVASES)
        # chain: the canvas and its drafts, [1 + count, 1, t]
        current = DraftCanvases(row.tokens[None], row.masked[None], row.step[None])
        chain = (
            jax.tree.map(lambda *parts: jnp.concatenate(parts), current, drafts)
            if self.verifies
            else current
        )

        # verify: the true step from each of them
        def follow(canvas):
            start = row._replace(**canvas._asdict())
            evaluation, new_cache = evaluate(model, start, cache, inputs, config)
            return commit(start, evaluation, inputs, config), evaluation, new_cache

        following, evaluations, caches = jax.vmap(follow, axis_name=CANVASES)(chain)
        # accept, and make new drafts from the candidates of the last accepted canvas
        accepted = count_right(chain, following, inputs, config)
        row = take_steps(row, chain, following, accepted)
        evaluation, cache = jax.tree.map(lambda part: part[accepted], (evaluations, caches))
        return row._replace(extra=self.draft(row, evaluation, inputs, config)), cache

    def draft(
        self, row: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig
    ) -> DraftCanvases:
        """Take steps with the candidates of a forward pass over an earlier canvas."""
        candidates = evaluation.candidates
        assert candidates
        config = replace(config, variant=replace(self, forced=False))
        positions = block_columns(inputs.canvas.position_ids, inputs.window, config)

        def follow(row, _):
            proposal = draw_proposal(
                candidates, evaluation.proposal.entropy, row, positions, inputs.params
            )
            row = commit(row, evaluation._replace(proposal=proposal, logprobs=None), inputs, config)
            return row, DraftCanvases(row.tokens, row.masked, row.step)

        return jax.lax.scan(follow, row, length=self.count)[1]

    def leave(self, state, cache, inputs, config):
        """Return the state of all rows at the step that each has reached; reopen later tokens."""
        # step == 4: tokens [7, 8, 9] with commit steps [2, 4, 3] are [7, M, 9] with [2, NEVER, 3].
        rows = state
        # Rows at steps 6 and 4, the latter open: all are reported at step 4.
        left = jnp.min(jnp.where(rows_open(rows, inputs.window, config), rows.step, NEVER))
        step = jnp.minimum(inputs.window.until, jnp.where(left < NEVER, left, jnp.max(rows.step)))
        tokens, masked, commit_step, confidence = together(
            (rows.tokens, rows.masked, rows.commit_step, rows.confidence)
        )
        later = ~masked & (commit_step >= step)
        state = SamplerState(
            tokens=jnp.where(later, config.mask_id, tokens),
            masked=masked | later,
            commit_step=jnp.where(later, NEVER, commit_step),
            confidence=jnp.where(later, 0.0, confidence),
            step=step,
            forwards=jnp.max(rows.forwards),
            keys=rows.keys[:, 0],
            extra=rows,
        )
        return state, together(cache)


def rows_open(rows: SamplerState, window: Window, config: StepConfig) -> BatchFlags:
    """Return which rows have a mask left in the block."""
    return jnp.any(
        jax.vmap(partial(block_columns, window=window, config=config))(rows.masked), axis=(1, 2)
    )


def rows_going(rows: SamplerState, window: Window, config: StepConfig) -> BatchFlags:
    """Return which rows take another step."""
    return (
        rows_open(rows, window, config)
        & (rows.step < window.until)
        & (rows.forwards < window.forwards)
    )


def advance_rows(
    model: DreamForCausalLM,
    rows: SamplerState,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
    going: BatchFlags,
    axes=0,
) -> StepCarry:
    """Advance the rows marked in `going`; the others are computed too, and stay as they are.

    Args:
        rows: each a batch of one: every leaf has a leading axis of rows.
        cache: with a leading axis of rows, like `inputs`.
        axes: `in_axes` of `jax.vmap` for the inputs.
    """

    def take(row, cache, inputs):
        return config.variant.advance_row(model, row, cache, inputs, config.mapped(ROWS))

    after, cache = jax.vmap(take, in_axes=(0, 0, axes), axis_name=ROWS)(rows, cache, inputs)

    def updated(new, old):
        return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(updated, after, rows), cache


def count_right(
    chain: DraftCanvases, following: SamplerState, inputs: BatchInputs, config: StepConfig
) -> ScalarInt:
    """Count the leading drafts that equal the step from the canvas before them.

    Args:
        chain: the canvas and its drafts.
        following: the step from each of them.
    """
    # chain      [M, M, M] drafts [a, M, M] [a, b, M] [a, b, c]
    # following  [a, M, M]        [a, b, M] [a, x, M]     the second draft is confirmed,
    # is_right             [1,        1,        0]        the third is not: 2 are right

    def same(draft, made):
        return jnp.all(draft[1:] == made[:-1], axis=tuple(range(1, draft.ndim)))

    is_right = same(chain.tokens, following.tokens) & same(chain.masked, following.masked)
    # No step is taken from a canvas whose block is full.
    is_open = jnp.any(block_columns(chain.masked[:, 0], inputs.window, config), axis=1)
    is_right &= same(chain.step, following.step) & is_open[1:]
    return jnp.sum(jnp.cumprod(is_right), dtype=jnp.int32)


def take_steps(
    row: SamplerState, chain: DraftCanvases, following: SamplerState, accepted: ScalarInt
) -> SamplerState:
    """Return the row after the steps from its canvas and from the accepted drafts.

    Commit steps and confidences are as if each step had been taken alone.
    """
    # accepted == 1: the step from the canvas, and that from the first draft
    is_taken = jnp.arange(len(chain.step)) <= accepted
    fresh = chain.masked & ~following.masked & is_taken[:, None, None]
    is_fresh = jnp.any(fresh, axis=0)

    def decided(old, each):
        added = [1] * (old.ndim - 2)
        # A sum selects the value, because only one of the steps decides a position.
        new = jnp.sum(jnp.where(fresh.reshape(*fresh.shape, *added), each, 0), axis=0)
        return jnp.where(is_fresh.reshape(*is_fresh.shape, *added), new, old)

    return row._replace(
        tokens=following.tokens[accepted],
        masked=following.masked[accepted],
        commit_step=decided(row.commit_step, following.commit_step),
        confidence=decided(row.confidence, following.confidence),
        logprobs=jax.tree.map(decided, row.logprobs, following.logprobs),
        step=following.step[accepted],
        forwards=row.forwards + 1,
    )


def unbounded(inputs: BatchInputs) -> BatchInputs:
    """Lift the limit of steps, so that idle ones are skipped as in one uninterrupted call."""
    return inputs._replace(
        window=inputs.window._replace(until=jnp.full_like(inputs.window.until, NEVER))
    )
