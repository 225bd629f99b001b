"""Forcing: steps over several blocks at once, each of which attends to itself and to what stands before it.

A block is begun while the one before it is still being filled, by tokens that are sure; it must decide a token at each
step once that one is nearly full (D2F, arXiv 2508.09192). What is finished is computed once more with its final tokens,
and then stays in the cache for good: nothing after it changes it. Rows go on each for itself, a batch of one.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion import candidates
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.pipeline import BlockGrid, Pipeline
from jax_lm.diffusion.step import (
    NO_HOOKS,
    ROWS,
    BatchInputs,
    CanvasArrays,
    KVCache,
    Proposal,
    SamplerState,
    StepConfig,
    Window,
    block_columns,
    evaluate,
    noise,
    write,
)
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions

DECIDED = ("tokens", "masked", "commit_step", "confidence")
"""What a step changes of a row."""


def begin_forcing(
    state: SamplerState, canvas: Canvas, options: GenerationOptions, config: StepConfig
) -> tuple[SamplerState, StepConfig]:
    """Prepare rows, and configure steps, that fill several blocks at once.

    Raises:
        ValueError: holes that are not the end of each row, hooks, the strict reference, or a canvas begun otherwise.
    """
    region, width = canvas.region, canvas.tokens.shape[1]
    if region.end != width or not canvas.holes[:, region.start :].all():
        raise ValueError("cache='causal': only completes prompts; texts with holes need another cache")
    if config.hooks != NO_HOOKS or config.strict_reference:
        raise ValueError("hooks, strict_reference: must not be given with cache='causal'")
    if (np.asarray(state.masked) != canvas.holes).any():
        raise ValueError("state: must be None with cache='causal', whose keys begin with the canvas")
    length = options.decoding.block_columns(region.length)
    grid = BlockGrid(region.start, region.end, length, options.decoding.settings.active_blocks)
    return state._replace(pipeline=Pipeline.empty(len(state.tokens))), replace(config, grid=grid)


def forcing_passes(config: StepConfig, grid: BlockGrid) -> list[tuple[StepConfig, int]]:
    """The passes as `sampler.block_passes` gives them: the prompt and the first block, then the window of blocks."""
    first = replace(config, length=grid.length, rows=grid.start + grid.length)
    # The row before the window predicts its first column.
    return [(first, 0), (replace(config, length=grid.window, rows=min(grid.window + 1, grid.end)), 0)]


def force(
    model: DreamForCausalLM, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[SamplerState, KVCache]:
    """One denoising step of each row over the blocks that it has begun."""
    grid, params, pipeline = config.grid, inputs.params, state.pipeline
    assert grid is not None
    assert pipeline is not None
    assert params.add_threshold is not None
    assert params.activate_threshold is not None
    masks = grid.masks(state.masked)
    is_stop = jnp.isin(state.tokens, jnp.asarray(config.stop_ids, jnp.int32)) & inputs.canvas.holes & ~state.masked
    following = pipeline.advanced(grid, masks, jnp.any(is_stop, axis=1), params.add_threshold)
    is_begun = grid.number(jnp.arange(state.tokens.shape[1])) < following.begun[:, None]
    # What has been finished since the last forward is computed with its final tokens by this one.
    starts = jnp.minimum(grid.start + grid.length * pipeline.stored, grid.end - config.length)

    def take(
        row: SamplerState,
        seen: Bool[Array, "1 t"],
        is_forced: Bool[Array, "1 n"],
        start: Int[Array, ""],
        cache: KVCache,
        canvas: CanvasArrays,
    ) -> tuple[dict[str, Array], KVCache]:
        window = inputs.window._replace(block=start, rows=jnp.maximum(start + config.length - (config.rows or 0), 0))
        of_row = BatchInputs(seen_by_blocks(canvas, window, config), window, params)
        visible, own = row._replace(masked=seen), replace(config, axes=(ROWS,))
        evaluation, cache = evaluate(model, visible, cache, of_row, own)
        chosen = choose_by_block(evaluation.proposal, visible, is_forced, of_row, config)
        row = write(row, evaluation, chosen, of_row, config)
        return {name: getattr(row, name) for name in DECIDED}, cache

    batch = len(state.tokens)
    each = state._replace(step=jnp.full(batch, state.step), forwards=jnp.full(batch, state.forwards))
    rows = jax.tree.map(lambda part: part[:, None], each)._replace(step=each.step, forwards=each.forwards)
    given = is_begun & state.masked, grid.is_forced(masks, params.activate_threshold)
    seen, is_forced, cache, canvas = jax.tree.map(lambda part: part[:, None], (*given, cache, inputs.canvas))
    decided, cache = jax.vmap(take, axis_name=ROWS)(rows, seen, is_forced, starts, cache, canvas)
    decided, cache = jax.tree.map(lambda part: part[:, 0], (decided, cache))
    step, forwards = state.step + 1, state.forwards + 1
    return state._replace(**decided, step=step, forwards=forwards, pipeline=following), cache


def seen_by_blocks(canvas: CanvasArrays, window: Window, config: StepConfig) -> CanvasArrays:
    """The arrays of a canvas whose recomputed rows attend to their own block and to those before it."""
    assert config.grid is not None
    assert config.rows is not None
    queries = window.rows + jnp.arange(config.rows)
    return canvas._replace(attention_mask=config.grid.admitted(canvas.attention_mask, queries))


def choose_by_block(
    proposal: Proposal, state: SamplerState, is_forced: Bool[Array, "1 n"], inputs: BatchInputs, config: StepConfig
) -> Bool[Array, "1 r"]:
    """The masked columns of a row whose tokens are surer than the threshold, and the surest of blocks without any.

    Args:
        is_forced: which blocks must decide a token; the others wait for sure ones.
    """
    grid, window, params = config.grid, inputs.window, inputs.params
    assert grid is not None
    masked = block_columns(state.masked, window, config)
    _, _, for_choice = noise(state, block_columns(inputs.canvas.position_ids, window, config))
    scores = candidates.disturbed(for_choice, proposal.scores, params.alg_temp)
    sure = masked & (proposal.probability > params.threshold)

    def spread(values: Array, absent: float | bool) -> Array:
        columns = jnp.full(state.tokens.shape, absent, values.dtype)
        return jax.lax.dynamic_update_slice_in_dim(columns, values, window.block, axis=1)

    ordered = grid.split(spread(jnp.where(masked, scores, -jnp.inf), -jnp.inf), -jnp.inf)
    lacks = is_forced & ~jnp.any(grid.split(spread(sure, absent=False), absent=False), axis=-1)
    # The first of the surest column of each block, among all columns.
    surest = grid.start + grid.length * jnp.arange(grid.count) + jnp.argmax(ordered, axis=-1)
    is_surest = jnp.any((jnp.arange(state.tokens.shape[1]) == surest[..., None]) & lacks[..., None], axis=1)
    return sure | (masked & block_columns(is_surest, window, config))
