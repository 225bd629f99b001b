"""Lookahead: branches of a canvas are evaluated beside it, and the decoding goes on with the one that is surest.

After each step the positions that the commit rule left are looked at in their order: each of the first ones gives a
branch, the canvas with that token more. One evaluation of all tells how sure each is of what it has still masked, and
what the next step takes (LoPA, arXiv 2512.16229). Another choice changes the text, unlike `jax_lm.diffusion.drafts`,
whose machinery this shares. Everything here is of one row, a batch of one.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.step import (
    CANVASES,
    BatchInputs,
    Evaluation,
    KVCache,
    SamplerState,
    StepConfig,
    block_columns,
    commit,
    evaluate,
    write,
)
from jax_lm.models.dream import DreamForCausalLM


def lookahead_step(
    model: DreamForCausalLM,
    state: SamplerState,
    branches: SamplerState,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[SamplerState, SamplerState, KVCache]:
    """Evaluate a canvas and its branches, take a step from the surest of them, and branch anew.

    Args:
        branches: as many as `config.guessed`, all leaves with an axis more; looked at if `config.checked`.
    """
    config = replace(config, axes=(*config.axes, CANVASES))
    tried = jax.tree.map(lambda part: part[None], state)
    if config.checked:
        # The branches first, the surest of them before all: so do ties go.
        tried = jax.tree.map(lambda *parts: jnp.concatenate(parts), branches, tried)

    def look(canvas: SamplerState) -> tuple[Float[Array, ""], Evaluation, KVCache]:
        evaluation, kept = evaluate(model, canvas, cache, inputs, config)
        return surety(canvas, evaluation, inputs, config), evaluation, kept

    sureties, evaluations, caches = jax.vmap(look, axis_name=CANVASES)(tried)
    best = jnp.argmax(sureties)
    chosen, evaluation, cache = jax.tree.map(lambda part: part[best], (tried, evaluations, caches))
    chosen = chosen._replace(forwards=state.forwards + 1)
    anchor = commit(chosen, evaluation, inputs, config)
    branches = branch(anchor, evaluation, inputs, config)
    is_full = ~jnp.any(block_columns(branches.masked[0], inputs.window, config))
    # Nothing is surer than a full block: it need not be evaluated to be chosen, as the only branch of a last mask.
    filled = jax.tree.map(lambda part: part[0], branches)._replace(step=anchor.step + 1)
    anchor = jax.tree.map(lambda full, left: jnp.where(is_full, full, left), filled, anchor)
    return anchor, branches, cache


def surety(canvas: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig) -> Float[Array, ""]:
    """Mean probability of the tokens proposed for what is masked in the block; 1 if nothing is."""
    masked = block_columns(canvas.masked, inputs.window, config)
    count = jnp.sum(masked)
    total = jnp.sum(jnp.where(masked, evaluation.proposal.probability, 0.0))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), 1.0)


def branch(anchor: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig) -> SamplerState:
    """Copies of a canvas, each with one token more, in the order of the scores; beyond the last mask, plain copies."""
    masked = block_columns(anchor.masked, inputs.window, config)
    rank = commit_rules.ranks(evaluation.proposal.scores, masked)

    def extended(place: Int[Array, ""]) -> SamplerState:
        return write(anchor, evaluation, masked & (rank == place), inputs, config)

    return jax.vmap(extended)(jnp.arange(config.guessed))
