"""One denoising step: what it takes and gives, and the one function that every way of decoding runs.

The model computes, the sampler decides. Order (`SamplingConfig.alg`), commit rule, blocks and cache (`Decoding`) are
independent: a block limits which columns a step may commit, a cache which rows it recomputes, and a refresh is
a step that recomputes all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion import decoding as rules
from jax_lm.diffusion import unmasking
from jax_lm.diffusion.decoding import Decoding
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.settings import either
from jax_lm.diffusion.unmasking import SamplingConfig
from jax_lm.models.dream import DreamForCausalLM, KeyValues

NEVER = np.iinfo(np.int32).max
SMALLEST_HEAD = 16
HEAD_SHARES = (2, 1)
"""The head runs on the smallest of these fractions of a block that holds its masked rows; each is compiled."""


class SamplerState(NamedTuple):
    """The canvas between two steps.

    Attributes:
        tokens: ids, MASK at positions still to be decided.
        masked: positions still to be decided.
        commit_step: step at which a position was decided; NEVER for those still masked, -1 for the given ones.
        confidence: probability of the token when it was decided (after temperature and filters); else 0.
        step: steps taken.
        forwards: model evaluations so far; steps that commit nothing need none.
        keys: one random key per row.
    """

    tokens: Int[Array, "b t"]
    masked: Bool[Array, "b t"]
    commit_step: Int[Array, "b t"]
    confidence: Float[Array, "b t"]
    step: Int[Array, ""]
    forwards: Int[Array, ""]
    keys: Key[Array, "b"]

    def history(self, mask_id: int) -> Int[np.ndarray, "s b t"]:
        """The canvas after each step: a decided token never changes, so that its commit step tells all."""
        tokens, commit_step = np.asarray(self.tokens), np.asarray(self.commit_step)
        return np.stack([np.where(commit_step <= step, tokens, mask_id) for step in range(int(self.step))])


class Memory(NamedTuple):
    """What a cache keeps from one step to the next; all None without one.

    Attributes:
        layers: keys and values of every position, per layer.
        tail: for `dual`, the hidden row before the block as the last refresh left it.
    """

    layers: tuple[KeyValues, ...] | None = None
    tail: Float[Array, "b 1 d"] | None = None


class Given(NamedTuple):
    """What does not change while a canvas is filled (see `Canvas`)."""

    attention_mask: Bool[Array, "b t"]
    position_ids: Int[Array, "b t"]
    holes: Bool[Array, "b t"]
    hole_starts: Int[Array, "b t"]


class Cursor(NamedTuple):
    """Where a call works, and when it returns: numbers, so that all blocks of one length share a compilation.

    Attributes:
        block: first column that may be committed.
        rows: first row that is recomputed.
        first_step: step at which the block began.
        until: step before which to return.
        forwards: model evaluations after which to return.
    """

    block: Int[Array, ""]
    rows: Int[Array, ""]
    first_step: Int[Array, ""]
    until: Int[Array, ""]
    forwards: Int[Array, ""]


@dataclass(frozen=True)
class Hooks:
    """The reference's hooks, as functions that JAX can trace.

    Attributes:
        tokens: (step, tokens [b, t], logits [b, r, v]) to tokens, after each step and once before the first with
            step -1 and no logits (None). MASK at a hole opens it again, another token closes it.
        logits: (step, tokens [b, t], logits [b, r, v]) to logits, before they are filtered.
    """

    tokens: Callable | None = None
    logits: Callable | None = None


@dataclass(frozen=True)
class Plan:
    """What a compilation is made for: settings, and the shapes of one block.

    Attributes:
        steps: denoising steps of the block; None is no limit.
        length: columns of the block.
        rows: rows recomputed each step; None is all of them, without a cache.
        uses_tail: whether the row before the block is taken from the memory.
        forced: commit the block's first column, and nothing else.
        axis: name of the axis over rows, where each is a batch of one under `jax.vmap`.
        ratios: noise schedule of the block in place of that of `steps`; traced, hence set inside a compilation only.
    """

    sampling: SamplingConfig
    decoding: Decoding
    hooks: Hooks
    mask_id: int
    steps: int | None
    length: int
    rows: int | None
    uses_tail: bool = False
    forced: bool = False
    axis: str | None = None
    ratios: Float[Array, "s"] | None = None

    @property
    def step_limit(self) -> int:
        """Steps after which the block ends even if a mask is left (only the strict reference leaves any)."""
        return self.length if self.steps is None else max(self.steps, self.length * (self.decoding.commit != "steps"))


class Proposal(NamedTuple):
    """What each position of the block would become.

    Attributes:
        tokens: the drawn token.
        probability: its probability after temperature and filters.
        scores: confidence by the measure of `alg`; larger is committed earlier.
    """

    tokens: Int[Array, "b r"]
    probability: Float[Array, "b r"]
    scores: Float[Array, "b r"]


def step(
    model: DreamForCausalLM, state: SamplerState, memory: Memory, given: Given, cursor: Cursor, plan: Plan
) -> tuple[SamplerState, Memory]:
    """One denoising step: recompute rows, propose a token per masked position of the block, commit the chosen ones."""
    masked, positions = (columns(values, cursor, plan) for values in (state.masked, given.position_ids))
    hidden, memory = block_hidden(model, state.tokens, memory, given, cursor, plan)
    proposal, logits = propose(model, hidden, masked, positions, state, plan)
    # Only the strict reference can propose MASK; such a position stays open, as it does there.
    chosen = choose(proposal, state, given, cursor, plan) & (proposal.tokens != plan.mask_id)

    def write(values: Array, new: Array) -> Array:
        new = jnp.where(chosen, new, columns(values, cursor, plan))
        if plan.length == values.shape[1]:
            return new
        return jax.lax.dynamic_update_slice_in_dim(values, new, cursor.block, axis=1)

    state = state._replace(
        tokens=write(state.tokens, proposal.tokens),
        masked=write(state.masked, jnp.zeros_like(chosen)),
        commit_step=write(state.commit_step, jnp.broadcast_to(state.step, chosen.shape)),
        confidence=write(state.confidence, proposal.probability),
        forwards=state.forwards + 1,
    )
    if plan.hooks.tokens is not None:
        tokens = plan.hooks.tokens(state.step, state.tokens, logits)
        state = rewrite(state, tokens, given.holes, plan.mask_id)
    if plan.sampling.stop_ids:
        state = end_rows(state, given, plan)
    return skip_idle(state._replace(step=state.step + 1), cursor, plan), memory


def skip_idle(state: SamplerState, cursor: Cursor, plan: Plan) -> SamplerState:
    """Pass over steps of the schedule that commit nothing: exact at temperature 0, the same distribution above."""
    by_schedule, by_chance = plan.decoding.is_by_schedule, plan.sampling.is_by_chance
    if by_schedule is False or by_chance is True:
        return state
    can_idle = jnp.logical_and(by_schedule, jnp.logical_not(by_chance))
    masked = columns(state.masked, cursor, plan)

    def is_idle(now: Int[Array, ""]) -> Bool[Array, ""]:
        counts = rules.commit_counts(masked, ratio(now, cursor, plan))
        return can_idle & (now < cursor.until) & jnp.any(masked) & ~jnp.any(counts > 0)

    return state._replace(step=jax.lax.while_loop(is_idle, lambda now: now + 1, state.step))


def ratio(now: Int[Array, ""], cursor: Cursor, plan: Plan) -> Float[Array, ""]:
    """Share of the block's masks that step `now` commits by the noise schedule."""
    if plan.ratios is not None:
        return plan.ratios[now - cursor.first_step]
    assert plan.steps is not None
    return jnp.asarray(rules.transfer_ratios(plan.steps, plan.sampling.eps))[now - cursor.first_step]


def columns(values: Array, cursor: Cursor, plan: Plan) -> Array:
    """The block's columns."""
    if plan.length == values.shape[1]:
        return values
    return jax.lax.dynamic_slice_in_dim(values, cursor.block, plan.length, axis=1)


def block_hidden(
    model: DreamForCausalLM, tokens: Int[Array, "b t"], memory: Memory, given: Given, cursor: Cursor, plan: Plan
) -> tuple[Float[Array, "b r d"], Memory]:
    """Hidden states that predict the block's columns, and the memory with what was recomputed."""
    if plan.rows is None:
        hidden, layers = model.model(tokens, given.attention_mask, given.position_ids), None
    else:
        assert memory.layers is not None
        tokens, positions = (
            jax.lax.dynamic_slice_in_dim(values, cursor.rows, plan.rows, axis=1)
            for values in (tokens, given.position_ids)
        )
        hidden, layers = model.model.recompute(tokens, given.attention_mask, positions, memory.layers, cursor.rows)
    aligned = jax.lax.dynamic_slice_in_dim(shift_right(hidden), cursor.block - cursor.rows, plan.length, axis=1)
    if plan.uses_tail:
        assert memory.tail is not None
        aligned = jnp.concatenate([memory.tail, aligned[:, 1:]], axis=1)
    return aligned, Memory(layers, None if memory.tail is None else aligned[:, :1])


def propose(
    model: DreamForCausalLM,
    hidden: Float[Array, "b r d"],
    masked: Bool[Array, "b r"],
    positions: Int[Array, "b r"],
    state: SamplerState,
    plan: Plan,
) -> tuple[Proposal, Float[Array, "b r v"] | None]:
    """Filter, draw and score the masked positions; the logits too, if all were computed.

    The head costs more than a small body, so it runs on the masked rows alone: gathered to the front, and as many
    as the smallest compiled size that holds them. A hook sees the logits of all rows.
    """

    def decide(logits: Float[Array, "b c v"], places: Int[Array, "b c"]) -> Proposal:
        for_token, for_score, _ = noise(state, places)
        candidates = unmasking.filtered(logits, plan.sampling, plan.mask_id)
        tokens, probability = unmasking.draw(for_token, candidates, plan.sampling.temperature)
        scores = unmasking.confidence(for_score, candidates, probability, places, plan.sampling.alg)
        return Proposal(tokens, probability, scores)

    def gathered(size: int) -> Proposal:
        index = jnp.argsort(~masked, axis=1)[:, :size]
        rows = jnp.take_along_axis(hidden, index[..., None], axis=1)
        compact = decide(model.logits(rows), jnp.take_along_axis(positions, index, axis=1))
        batch = jnp.arange(len(index))[:, None]
        return Proposal(*(jnp.zeros(masked.shape, part.dtype).at[batch, index].set(part) for part in compact))

    if plan.hooks != Hooks():
        logits = model.logits(hidden)
        if plan.hooks.logits is not None:
            logits = plan.hooks.logits(state.step, state.tokens, logits)
        return decide(logits, positions), logits
    sizes = sorted({min(max(-(-plan.length // share), SMALLEST_HEAD), plan.length) for share in HEAD_SHARES})
    needed = jnp.max(jnp.sum(masked, axis=1))
    if plan.axis is not None:
        needed = jax.lax.pmax(needed, plan.axis)
    branch = jnp.sum(needed > jnp.asarray(sizes[:-1], jnp.int32))
    return jax.lax.switch(branch, [partial(gathered, size) for size in sizes]), None


def choose(proposal: Proposal, state: SamplerState, given: Given, cursor: Cursor, plan: Plan) -> Bool[Array, "b r"]:
    """The masked positions of the block that the commit rule takes, in the order of the scores."""
    masked, positions = (columns(values, cursor, plan) for values in (state.masked, given.position_ids))
    if plan.forced:
        return masked & (jnp.arange(plan.length) == 0)
    _, _, for_choice = noise(state, positions)
    rank = rules.ranks(unmasking.disturbed(for_choice, proposal.scores, plan.sampling.alg_temp), masked)

    def by_schedule() -> Bool[Array, "b r"]:
        share = ratio(state.step, cursor, plan)
        counts = rules.commit_counts(masked, share)
        return either(plan.sampling.is_by_chance, lambda: for_choice < share, lambda: rank < counts[:, None])

    def by_probability() -> Bool[Array, "b r"]:
        holes = jnp.sum(columns(given.holes, cursor, plan), axis=1)
        chosen = rules.confident(plan.decoding, rank, proposal.probability, masked, holes)
        if plan.steps is None:
            return chosen
        allowed = rules.budget(masked, holes, state.step - cursor.first_step, plan.steps)
        return chosen & (rank < allowed[:, None])

    return masked & either(plan.decoding.is_by_schedule, by_schedule, by_probability)


def end_rows(state: SamplerState, given: Given, plan: Plan) -> SamplerState:
    """Fill each hole after a stop token that has no mask before it, with that token; nothing there is read."""
    is_stop = jnp.isin(state.tokens, jnp.asarray(plan.sampling.stop_ids)) & given.holes & ~state.masked
    masks_before = jnp.cumsum(state.masked, axis=1) - state.masked
    is_clear = is_stop & (masks_before == jnp.take_along_axis(masks_before, given.hole_starts, axis=1))
    place = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)
    last = jax.lax.cummax(jnp.where(is_clear, place, -1), axis=1)
    ended = state.masked & (last >= given.hole_starts)
    stops = jnp.take_along_axis(state.tokens, jnp.maximum(last, 0), axis=1)
    return state._replace(
        tokens=jnp.where(ended, stops, state.tokens),
        masked=state.masked & ~ended,
        commit_step=jnp.where(ended, state.step, state.commit_step),
    )


def rewrite(state: SamplerState, tokens: Int[Array, "b t"], holes: Bool[Array, "b t"], mask_id: int) -> SamplerState:
    """The state after a tokens hook: what is not a hole stays, MASK at a hole is open."""
    tokens = jnp.where(holes, tokens, state.tokens).astype(jnp.int32)
    masked = holes & (tokens == mask_id)
    closed = jnp.where(state.masked, state.step, state.commit_step)
    return state._replace(tokens=tokens, masked=masked, commit_step=jnp.where(masked, NEVER, closed))


def noise(state: SamplerState, positions: Int[Array, "b r"]) -> tuple[Float[Array, "b r"], ...]:
    """Three uniform numbers per position: for the token, for a random score, for the choice of positions.

    They depend on the row, the step and the position alone, not on padding or on what is decoded beside it:
    counter-based generation gives element (position, i) the same number whatever the width.
    """

    def of_row(key: Key[Array, ""], places: Int[Array, "r"]) -> Float[Array, "r 3"]:
        return jax.random.uniform(jax.random.fold_in(key, state.step), (state.tokens.shape[1], 3))[places]

    numbers = jax.vmap(of_row)(state.keys, positions)
    return numbers[..., 0], numbers[..., 1], numbers[..., 2]
