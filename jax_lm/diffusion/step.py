"""One denoising step: what it takes and gives, and the one function that every way of decoding runs.

The model computes, the sampler decides. Order, commit rule, blocks and cache (`jax_lm.options`) are independent: a
block limits which columns a step may commit, a cache which rows it recomputes; a refresh is a step that recomputes all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.candidates import (
    Candidates,
    SamplingParams,
    TokenLogProbs,
    confidence,
    disturbed,
    draw,
    filtered,
    likeliest_candidates,
    row_entropy,
)
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.extent import Extent, Growth, without_expand
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.nucleus import Rows, in_parts
from jax_lm.diffusion.pipeline import BlockGrid, Pipeline
from jax_lm.models.dream import DreamForCausalLM, KeyValues

NEVER = np.iinfo(np.int32).max
ROWS, CANVASES = "rows", "canvases"
"""Names of the axes over rows, and over the canvases that are evaluated for a row."""
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
        logprobs: of the positions that were decided; None where none are kept.
        extent: how far rows reach whose holes grow; None where none do.
        pipeline: which blocks are begun, where several are at once; None where they are not.
    """

    tokens: Int[Array, "b t"]
    masked: Bool[Array, "b t"]
    commit_step: Int[Array, "b t"]
    confidence: Float[Array, "b t"]
    step: Int[Array, ""]
    forwards: Int[Array, ""]
    keys: Key[Array, "b"]
    logprobs: TokenLogProbs | None = None
    extent: Extent | None = None
    pipeline: Pipeline | None = None

    def history(self, mask_id: int) -> Int[np.ndarray, "s b t"]:
        """The canvas after each step: a decided token never changes, so that its commit step tells all."""
        tokens, commit_step = np.asarray(self.tokens), np.asarray(self.commit_step)
        return np.stack([np.where(commit_step <= step, tokens, mask_id) for step in range(int(self.step))])


class KVCache(NamedTuple):
    """Keys and values that a cache keeps from one step to the next; all None without one.

    Attributes:
        layers: keys and values of every position, per layer.
        tail: for `dual`, the hidden row before the block as the last refresh left it.
    """

    layers: tuple[KeyValues, ...] | None = None
    tail: Float[Array, "b 1 d"] | None = None


class CanvasArrays(NamedTuple):
    """The parts of a `Canvas` that do not change while it is filled, on the device."""

    attention_mask: Bool[Array, "b t"] | Bool[Array, "b r t"]
    position_ids: Int[Array, "b t"]
    holes: Bool[Array, "b t"]
    hole_starts: Int[Array, "b t"]

    @classmethod
    def of(cls, canvas: Canvas) -> "CanvasArrays":
        """The arrays of a canvas, on the device."""
        return cls(*(jnp.asarray(getattr(canvas, name)) for name in cls._fields))


class Window(NamedTuple):
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

    @classmethod
    def of(cls, **numbers: int) -> "Window":
        """A window from plain numbers, one for each field."""
        arrays: dict[str, Any] = {name: np.int32(number) for name, number in numbers.items()}
        return cls(**arrays)


class BatchInputs(NamedTuple):
    """Traced inputs of a call of the compiled loop, besides state and cache."""

    canvas: CanvasArrays
    window: Window
    params: SamplingParams


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


NO_HOOKS = Hooks()


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """Static configuration of a compilation: shapes of one block, and the settings that decide them.

    Attributes:
        length: columns of the block.
        rows: rows recomputed each step; None is all of them, without a cache.
        mask_id: id of MASK.
        top_k: candidates per position; None is the whole vocabulary.
        stop_ids: tokens that end a row: once one has no mask before it, what follows it is not decoded. Lossless
            for the text up to there; empty decodes everything, as the reference does.
        strict_reference: admit MASK itself as a candidate, as the reference does.
        hooks: of the reference.
        uses_tail: whether the row before the block is taken from the cache.
        forced: commit the block's first column, and nothing else.
        checked: guesses of the next canvases that are evaluated beside the canvas (`jax_lm.diffusion.drafts`).
        guessed: guesses that are made for the next evaluation.
        looks_ahead: whether guesses are branches to choose from (`jax_lm.diffusion.lookahead`).
        top_tokens: tokens whose log-probabilities are kept of each position; 0 keeps none.
        growth: tokens by which holes grow, of a checkpoint that has them.
        grid: blocks of which several are filled at once (`jax_lm.diffusion.block_pipeline`).
        axes: names of the axes over canvases, each a batch of one under `jax.vmap`.
    """

    length: int
    rows: int | None
    mask_id: int
    top_k: int | None
    stop_ids: tuple[int, ...] = ()
    strict_reference: bool = False
    hooks: Hooks = NO_HOOKS
    uses_tail: bool = False
    forced: bool = False
    checked: int = 0
    guessed: int = 0
    looks_ahead: bool = False
    top_tokens: int = 0
    growth: Growth | None = None
    grid: BlockGrid | None = None
    axes: tuple[str, ...] = ()


class Proposal(NamedTuple):
    """A token for each position of the block, with what decides whether it is committed.

    Attributes:
        tokens: the drawn token.
        probability: its probability after temperature and filters.
        scores: confidence by the measure of `alg`; larger is committed earlier.
        entropy: of what the model says, before temperature and filters; 0 unless the commit rule reads it.
    """

    tokens: Int[Array, "b r"]
    probability: Float[Array, "b r"]
    scores: Float[Array, "b r"]
    entropy: Float[Array, "b r"]


class Evaluation(NamedTuple):
    """What the model says of a canvas.

    Attributes:
        proposal: for the step that the canvas is at.
        logprobs: of the proposed tokens; None where none are kept.
        candidates: what steps after it may guess from; None unless guesses are made.
        logits: None unless there are hooks, which see those of all rows.
    """

    proposal: Proposal
    logprobs: TokenLogProbs | None
    candidates: Candidates | None
    logits: Float[Array, "b r v"] | None


def step(
    model: DreamForCausalLM, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[SamplerState, KVCache]:
    """One denoising step: recompute rows, propose a token per masked position of the block, commit the chosen ones."""
    evaluation, cache = evaluate(model, state, cache, inputs, config)
    return commit(state._replace(forwards=state.forwards + 1), evaluation, inputs, config), cache


def evaluate(
    model: DreamForCausalLM, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[Evaluation, KVCache]:
    """Recompute rows, and propose a token for each masked position of the block."""
    hidden, cache = block_hidden(model, state.tokens, cache, inputs, config)
    return propose(model, hidden, state, inputs, config), cache


def commit(state: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig) -> SamplerState:
    """Commit what the rule takes of a proposal; the state is then at the next step that commits anything."""
    state = write(state, evaluation, choose(evaluation.proposal, state, inputs, config), inputs, config)
    return skip_idle(state._replace(step=state.step + 1), inputs, config)


def write(
    state: SamplerState, evaluation: Evaluation, chosen: Bool[Array, "b r"], inputs: BatchInputs, config: StepConfig
) -> SamplerState:
    """Write the chosen tokens of a proposal into the canvas, and end the rows that end with them."""
    proposal = evaluation.proposal
    # Only the strict reference can propose MASK; such a position stays open, as it does there.
    chosen &= proposal.tokens != config.mask_id

    def updated(values: Array, new: Array) -> Array:
        is_new = chosen.reshape(*chosen.shape, *[1] * (new.ndim - 2))
        new = jnp.where(is_new, new, block_columns(values, inputs.window, config))
        if config.length == values.shape[1]:
            return new
        return jax.lax.dynamic_update_slice_in_dim(values, new, inputs.window.block, axis=1)

    state = state._replace(
        tokens=updated(state.tokens, proposal.tokens),
        masked=updated(state.masked, jnp.zeros_like(chosen)),
        commit_step=updated(state.commit_step, jnp.broadcast_to(state.step, chosen.shape)),
        confidence=updated(state.confidence, proposal.probability),
    )
    if state.logprobs is not None and evaluation.logprobs is not None:
        state = state._replace(logprobs=jax.tree.map(updated, state.logprobs, evaluation.logprobs))
    if config.hooks.tokens is not None:
        tokens = config.hooks.tokens(state.step, state.tokens, evaluation.logits)
        state = rewrite(state, tokens, inputs.canvas.holes, config.mask_id)
    if config.stop_ids:
        state = end_rows(state, inputs, config.stop_ids)
    return state


def skip_idle(state: SamplerState, inputs: BatchInputs, config: StepConfig) -> SamplerState:
    """Pass over steps of the schedule that commit nothing: exact at temperature 0, the same distribution above."""
    params, window = inputs.params, inputs.window
    masked = block_columns(state.masked, window, config)
    can_idle = params.by_schedule & ~params.is_by_chance & jnp.any(masked)

    def is_idle(now: Int[Array, ""]) -> Bool[Array, ""]:
        counts = commit_rules.commit_counts(masked, params.ratios[now - window.first_step])
        return can_idle & (now < window.until) & ~jnp.any(counts > 0)

    return state._replace(step=jax.lax.while_loop(is_idle, lambda now: now + 1, state.step))


def block_columns(values: Array, window: Window, config: StepConfig) -> Array:
    """The block's columns of an array [b, t]."""
    if config.length == values.shape[1]:
        return values
    return jax.lax.dynamic_slice_in_dim(values, window.block, config.length, axis=1)


def block_hidden(
    model: DreamForCausalLM, tokens: Int[Array, "b t"], cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[Float[Array, "b r d"], KVCache]:
    """Hidden states that predict the block's columns, and the cache with what was recomputed."""
    canvas, window = inputs.canvas, inputs.window
    if config.rows is None:
        hidden, layers = model.model(tokens, canvas.attention_mask, canvas.position_ids), None
    else:
        assert cache.layers is not None
        tokens, positions = (
            jax.lax.dynamic_slice_in_dim(values, window.rows, config.rows, axis=1)
            for values in (tokens, canvas.position_ids)
        )
        hidden, layers = model.model.recompute(tokens, canvas.attention_mask, positions, cache.layers, window.rows)
    # The recomputed rows begin at `window.rows`, the block at `window.block`: its columns among those rows.
    aligned = jax.lax.dynamic_slice_in_dim(shift_right(hidden), window.block - window.rows, config.length, axis=1)
    if config.uses_tail:
        assert cache.tail is not None
        aligned = jnp.concatenate([cache.tail, aligned[:, 1:]], axis=1)
    return aligned, KVCache(layers, None if cache.tail is None else aligned[:, :1])


def propose(
    model: DreamForCausalLM, hidden: Float[Array, "b r d"], state: SamplerState, inputs: BatchInputs, config: StepConfig
) -> Evaluation:
    """Filter, draw and score the masked positions; a hook sees the logits of all rows.

    The head costs more than a small body, so it runs on the masked rows alone: gathered to the front, and as many
    as the smallest compiled size that holds them.
    """
    params = inputs.params
    masked = block_columns(state.masked, inputs.window, config)
    positions = block_columns(inputs.canvas.position_ids, inputs.window, config)
    excluded_id = None if config.strict_reference else config.mask_id

    def decide(logits: Float[Array, "b c v"], positions: Int[Array, "b c"], needed: Bool[Array, "b c"]) -> Evaluation:
        logits = without_expand(logits, state.masked, config.growth, state.extent)
        candidates = filtered(logits, params, top_k=config.top_k, excluded_id=excluded_id, needed=needed)
        kept = likeliest_candidates(candidates) if config.guessed and not config.looks_ahead else None
        shape = logits.shape[:2]
        by_entropy = params.entropy_bound >= 0
        entropy = if_any(by_entropy, lambda: row_entropy(logits, excluded_id), jnp.zeros(shape), config)
        proposal, logprobs = proposed(candidates, entropy, state, positions, params), None
        if config.top_tokens and params.keeps_logprobs is not None:
            logprobs = if_any(
                params.keeps_logprobs,
                lambda: TokenLogProbs.of(logits, proposal.tokens, config.top_tokens, excluded_id),
                TokenLogProbs.empty(shape, config.top_tokens),
                config,
            )
        return Evaluation(proposal, logprobs, kept, None)

    def gathered(size: int) -> Evaluation:
        index = jnp.argsort(~masked, axis=1)[:, :size]
        rows = jnp.take_along_axis(hidden, index[..., None], axis=1)
        parts = [jnp.take_along_axis(part, index, axis=1) for part in (positions, masked)]
        compact = in_parts(decide, model.logits(rows), *parts)
        batch = jnp.arange(len(index))[:, None]

        def scattered(part: Array) -> Array:
            return jnp.zeros((*masked.shape, *part.shape[2:]), part.dtype).at[batch, index].set(part)

        return jax.tree.map(scattered, compact)

    if config.hooks != NO_HOOKS:
        logits = model.logits(hidden)
        if config.hooks.logits is not None:
            logits = config.hooks.logits(state.step, state.tokens, logits)
        return decide(logits, positions, masked)._replace(logits=logits)
    # Half of the block and all of it, at least SMALLEST_HEAD rows: the smallest that holds the masks of every row.
    sizes = sorted({min(max(-(-config.length // share), SMALLEST_HEAD), config.length) for share in HEAD_SHARES})
    needed = jnp.max(jnp.sum(masked, axis=1))
    if config.axes:
        needed = jax.lax.pmax(needed, config.axes)
    branch = jnp.sum(needed > jnp.asarray(sizes[:-1], jnp.int32))
    return jax.lax.switch(branch, [partial(gathered, size) for size in sizes])


def if_any(wanted: Bool[Array, ""], compute: Callable[[], Any], nothing: Any, config: StepConfig) -> Any:
    """Compute something if it is wanted: under `jax.vmap`, for any row, as a condition of each row's own does both."""
    if config.axes:
        wanted = jax.lax.pmax(wanted.astype(jnp.int32), config.axes) > 0
    return jax.lax.cond(wanted, compute, lambda: nothing)


def proposed(
    candidates: Candidates | Rows,
    entropy: Float[Array, "b c"],
    state: SamplerState,
    positions: Int[Array, "b c"],
    params: SamplingParams,
) -> Proposal:
    """Draw a token for each position with the noise of the state's step, and score it."""
    for_token, for_score, _ = noise(state, positions)
    tokens, probability = draw(for_token, candidates, params.temperature)
    scores = confidence(for_score, candidates, probability, positions, params.alg)
    return Proposal(tokens, probability, scores, entropy)


def choose(proposal: Proposal, state: SamplerState, inputs: BatchInputs, config: StepConfig) -> Bool[Array, "b r"]:
    """The masked positions of the block that the commit rule takes, in the order of the scores."""
    params, window = inputs.params, inputs.window
    masked = block_columns(state.masked, window, config)
    if config.forced:
        return masked & (jnp.arange(config.length) == 0)
    _, _, for_choice = noise(state, block_columns(inputs.canvas.position_ids, window, config))
    rank = commit_rules.ranks(disturbed(for_choice, proposal.scores, params.alg_temp), masked)
    taken = state.step - window.first_step
    share = params.ratios[taken]
    counts = commit_rules.commit_counts(masked, share)
    scheduled = jnp.where(params.is_by_chance, for_choice < share, rank < counts[:, None])
    holes = jnp.sum(block_columns(inputs.canvas.holes, window, config), axis=1)
    probable = jax.lax.cond(
        params.factor > 0,
        lambda: commit_rules.longest_run(params.factor, rank, proposal.probability, masked),
        lambda: commit_rules.above_threshold(params.threshold, params.decay, rank, proposal.probability, masked, holes),
    )
    within = commit_rules.within_entropy(params.entropy_bound, rank, proposal.entropy, masked)
    probable = jnp.where(params.entropy_bound >= 0, within, probable)
    allowed = commit_rules.budget(masked, holes, taken, params.steps)
    return masked & jnp.where(params.by_schedule, scheduled, probable & (rank < allowed[:, None]))


def end_rows(state: SamplerState, inputs: BatchInputs, stop_ids: tuple[int, ...]) -> SamplerState:
    """Fill each hole after a stop token that has no mask before it, with that token; nothing there is read."""
    canvas = inputs.canvas
    is_stop = jnp.isin(state.tokens, jnp.asarray(stop_ids)) & canvas.holes & ~state.masked
    if inputs.params.early_stop is not None:
        is_stop &= inputs.params.early_stop
    masks_before = jnp.cumsum(state.masked, axis=1) - state.masked
    # Clear: as many masks before the stop token as before its hole, hence none between.
    is_clear = is_stop & (masks_before == jnp.take_along_axis(masks_before, canvas.hole_starts, axis=1))
    last = jax.lax.cummax(jnp.where(is_clear, jnp.arange(state.tokens.shape[1], dtype=jnp.int32), -1), axis=1)
    ended = state.masked & (last >= canvas.hole_starts)
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

    def of_row(key: Key[Array, ""], positions: Int[Array, "r"]) -> Float[Array, "r 3"]:
        return jax.random.uniform(jax.random.fold_in(key, state.step), (state.tokens.shape[1], 3))[positions]

    numbers = jax.vmap(of_row)(state.keys, positions)
    return numbers[..., 0], numbers[..., 1], numbers[..., 2]
