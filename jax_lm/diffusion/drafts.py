"""Draft and verify: what the next steps make of a canvas is guessed, and one evaluation checks all guesses at once.

The guesses are steps taken with the candidates of the last evaluation, which are out of date from the second one on.
Evaluated beside the canvas itself, each says what the step after it does in truth; as long as that is the next guess,
to the token and with the random numbers of that step, the guesses are the decoding (FreeDave, arXiv 2510.00294, for any
rule, order and temperature). So drafting takes fewer evaluations and decides nothing: the first wrong guess ends what
is accepted, and the step from there is already known. Everything here is of one row, a batch of one.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion.lookahead import lookahead_step
from jax_lm.diffusion.step import (
    CANVASES,
    NEVER,
    ROWS,
    BatchInputs,
    Evaluation,
    KVCache,
    SamplerState,
    StepConfig,
    block_columns,
    commit,
    evaluate,
    proposed,
    step,
)
from jax_lm.models.dream import DreamForCausalLM


class Guesses(NamedTuple):
    """Canvases that steps are expected to make, in their order; the given columns of a row are in each."""

    tokens: Int[Array, "*b g 1 t"]
    masked: Bool[Array, "*b g 1 t"]
    step: Int[Array, "*b g"]


class Drafted(NamedTuple):
    """Rows that are decoded with guesses: each at a step of its own, and a batch of one.

    Attributes:
        rows: their states, all leaves with an axis more.
        guesses: of each row; with lookahead, its branches; None where none are made.
    """

    rows: SamplerState
    guesses: Guesses | SamplerState | None

    @classmethod
    def of(cls, state: SamplerState, config: StepConfig) -> "Drafted":
        """The rows of a state, without a guess yet: a canvas is never what the step from it makes."""
        batch = len(state.tokens)
        spread = state._replace(step=jnp.full(batch, state.step), forwards=jnp.full(batch, state.forwards))
        rows = jax.tree.map(lambda part: part[:, None], spread)._replace(step=spread.step, forwards=spread.forwards)

        def copied(part: Array) -> Array:
            return jnp.broadcast_to(part[:, None], (batch, config.guessed, *part.shape[1:]))

        if config.looks_ahead:
            return cls(rows, jax.tree.map(copied, rows))
        return cls(rows, Guesses(copied(rows.tokens), copied(rows.masked), copied(rows.step)))

    def at(self, step: Int[Array, ""], mask_id: int) -> SamplerState:
        """The state of all rows before a step that none is short of: what was decided from then on is taken back."""
        tokens, masked, commit_step, confidence, keys = (
            getattr(self.rows, name)[:, 0] for name in ("tokens", "masked", "commit_step", "confidence", "keys")
        )
        later = ~masked & (commit_step >= step)
        return SamplerState(
            tokens=jnp.where(later, mask_id, tokens),
            masked=masked | later,
            commit_step=jnp.where(later, NEVER, commit_step),
            confidence=jnp.where(later, 0.0, confidence),
            step=step,
            forwards=jnp.max(self.rows.forwards),
            keys=keys,
        )


def advance_rows(
    model: DreamForCausalLM,
    drafted: Drafted,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
    going: Bool[Array, "b"],
    shared: Any = 0,
) -> tuple[Drafted, KVCache]:
    """Take a `draft_step`, or a `lookahead_step`, with each of the rows that are going.

    The others recompute what they hold.

    Args:
        cache: an axis more than that of a row, as `inputs`.
        shared: which axis of the inputs is that of the rows, as `jax.vmap` takes it; None for what they share.
    """

    take_step = lookahead_step if config.looks_ahead else draft_step

    def take(
        state: SamplerState, guesses: Any, cache: KVCache, inputs: BatchInputs
    ) -> tuple[SamplerState, Any, KVCache]:
        return take_step(model, state, guesses, cache, inputs, replace(config, axes=(ROWS,)))

    mapped = jax.vmap(take, in_axes=(0, 0, 0, shared), axis_name=ROWS)
    rows, guesses, cache = mapped(drafted.rows, drafted.guesses, cache, inputs)

    def updated(new: Array, old: Array) -> Array:
        return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(updated, Drafted(rows, guesses), drafted), cache


def draft_step(
    model: DreamForCausalLM,
    state: SamplerState,
    guesses: Guesses | None,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[SamplerState, Guesses | None, KVCache]:
    """Evaluate a canvas and the guesses beside it, take every step that is sure, and guess anew.

    Without `config.guessed` it is `step`. A row may come out some steps beyond `inputs.window.until`.
    """
    if not config.guessed:
        state, cache = step(model, state, cache, inputs, config)
        return state, None, cache
    assert guesses is not None
    inputs = unbounded(inputs)
    config = replace(config, axes=(*config.axes, CANVASES))
    own = Guesses(state.tokens[None], state.masked[None], state.step[None])
    chain = jax.tree.map(lambda *parts: jnp.concatenate(parts), own, guesses) if config.checked else own

    def follow(canvas: Guesses) -> tuple[SamplerState, Evaluation, KVCache]:
        at = state._replace(**canvas._asdict())
        evaluation, kept = evaluate(model, at, cache, inputs, config)
        return commit(at, evaluation, inputs, config), evaluation, kept

    following, evaluations, caches = jax.vmap(follow, axis_name=CANVASES)(chain)
    right = right_guesses(chain, following, inputs, config)
    state = after_steps(state, chain, following, right)
    evaluation, cache = jax.tree.map(lambda part: part[right], (evaluations, caches))
    return state, guess(state, evaluation, inputs, replace(config, forced=False)), cache


def right_guesses(chain: Guesses, following: SamplerState, inputs: BatchInputs, config: StepConfig) -> Int[Array, ""]:
    """Count the guesses, from the first on, that are what the step from the canvas before them makes.

    Args:
        chain: the canvas and the guesses.
        following: what the step from each of them makes.
    """

    def same(guess: Array, made: Array) -> Bool[Array, "g"]:
        return jnp.all(guess[1:] == made[:-1], axis=tuple(range(1, guess.ndim)))

    is_right = same(chain.tokens, following.tokens) & same(chain.masked, following.masked)
    # No step is taken from a canvas whose block is full.
    is_open = jnp.any(block_columns(chain.masked[:, 0], inputs.window, config), axis=1)
    is_right &= same(chain.step, following.step) & is_open[1:]
    return jnp.sum(jnp.cumprod(is_right), dtype=jnp.int32)


def after_steps(state: SamplerState, chain: Guesses, following: SamplerState, right: Int[Array, ""]) -> SamplerState:
    """The state after the steps from the canvas and from so many right guesses, each decided as if alone."""
    is_taken = jnp.arange(len(chain.step)) <= right
    fresh = chain.masked & ~following.masked & is_taken[:, None, None]
    is_fresh = jnp.any(fresh, axis=0)

    def decided(old: Array, each: Array) -> Array:
        added = [1] * (old.ndim - 2)
        # A position is decided by one step only.
        new = jnp.sum(jnp.where(fresh.reshape(*fresh.shape, *added), each, 0), axis=0)
        return jnp.where(is_fresh.reshape(*is_fresh.shape, *added), new, old)

    return state._replace(
        tokens=following.tokens[right],
        masked=following.masked[right],
        commit_step=decided(state.commit_step, following.commit_step),
        confidence=decided(state.confidence, following.confidence),
        logprobs=jax.tree.map(decided, state.logprobs, following.logprobs),
        step=following.step[right],
        forwards=state.forwards + 1,
    )


def guess(state: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig) -> Guesses:
    """Take steps with the candidates of an evaluation that is out of date."""
    candidates = evaluation.candidates
    assert candidates is not None
    positions = block_columns(inputs.canvas.position_ids, inputs.window, config)

    def follow(state: SamplerState, _: None) -> tuple[SamplerState, Guesses]:
        proposal = proposed(candidates, evaluation.proposal.entropy, state, positions, inputs.params)
        state = commit(state, evaluation._replace(proposal=proposal, logprobs=None), inputs, config)
        return state, Guesses(state.tokens, state.masked, state.step)

    return jax.lax.scan(follow, state, length=config.guessed)[1]


def unbounded(inputs: BatchInputs) -> BatchInputs:
    """Inputs of steps that pass over idle ones as if nobody looked in between."""
    return inputs._replace(window=inputs.window._replace(until=jnp.full_like(inputs.window.until, NEVER)))
