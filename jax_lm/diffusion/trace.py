"""Log-probabilities of sampled tokens on the canvases that they were drawn from.

    blocks = decoded_blocks(width, options, model.config)
    log_probs = trace_log_probs(model, tokens, attention_mask, commit_step, blocks, mask_id)

For each step, the canvas as it was before that step is rebuilt and computed by the same passes as
in the sampler (`block_passes`, `block_hidden`): with a cache, keys and values are those of the
block's refresh. Without filters, the results equal the probabilities that the sampler recorded.
They are differentiable, for policy optimisation on the decoding trace (TraceRL, arXiv 2509.06949).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.sampler import block_passes
from jax_lm.diffusion.state import CanvasArrays, KVCache, Window
from jax_lm.diffusion.step import Pass, StepConfig, block_hidden, empty_cache
from jax_lm.models.dream import DreamForCausalLM, default_positions
from jax_lm.models.shapes import ColumnInts, Mask, Tokens
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.options import GenerationOptions

# Letters of the shapes: b rows, m canvases of a block, t columns of a row, c of its completion, r of
# a block.


class DecodedBlock(NamedTuple):
    """A block of the completion as the sampler decoded it.

    Attributes:
        columns: the columns of the block.
        passes: the refresh that begins it and the step, or the step alone without a cache.
        steps: the most steps that the block takes; each step has its own canvas.
    """

    columns: Block
    passes: Sequence[Pass]
    steps: int


def decoded_blocks(
    width: int, options: GenerationOptions, model: DreamConfig
) -> list[DecodedBlock]:
    """Return the blocks of a completion in rows of `width` columns."""
    length = options.max_new_tokens
    decoding = options.decoding
    # Filters and MASK do not matter to hidden states.
    plain = StepConfig(length=length, mask_id=0)
    canvas = Canvas.after(np.zeros((1, width - length), np.int32), None, length)
    blocks = []
    for block in canvas.blocks(decoding.block_length_in(length)):
        steps = block.length
        # Other rules than the schedule may commit one token at a time.
        if decoding.settings.commit == "steps" and options.steps:
            # 12 steps for 96 columns: at most ceil(12 * 32 / 96) = 4 in a block of 32.
            steps = min(steps, -(-options.steps * block.length // length))
        passes = block_passes(canvas, block, [], decoding, plain, model)
        blocks.append(DecodedBlock(block, passes, steps))
    return blocks


def trace_log_probs(
    model: DreamForCausalLM,
    tokens: Tokens,
    attention_mask: Mask,
    commit_step: ColumnInts,
    blocks: Sequence[DecodedBlock],
    mask_id: int,
    *,
    remat: bool = False,
    temperature: float = 1.0,
) -> Float[Array, "b c"]:
    """Compute the log-probability of each token of completions.

    Args:
        model: the model that sampled, or another one.
        tokens: prompts and completions as they were sampled, also after the stop token.
        attention_mask: as in sampling.
        commit_step: sampler step of each completion token.
        blocks: from `decoded_blocks`.
        mask_id: id of MASK.
        remat: of the activations, keep only the inputs of layers, and recompute the others.
        temperature: divides the logits.
    """
    prompt_length = tokens.shape[1] - commit_step.shape[1]
    all_steps = jnp.pad(commit_step, ((0, 0), (prompt_length, 0)), constant_values=-1)
    log_probs = []
    for block in blocks:
        columns = slice(block.columns.start, block.columns.end)
        # Steps of a block follow each other. Two canvases, for columns decided in steps 4 5 4:
        #   number  0 1 0;  canvas 0 hides steps from 4 on, canvas 1 from 5 on
        steps = all_steps[:, columns]
        first = jnp.min(steps, axis=1, keepdims=True)
        number = jnp.minimum(steps - first, block.steps - 1)
        # [b, m, t]
        hidden_from = (first + jnp.arange(block.steps))[..., None]
        canvases = jnp.where(all_steps[:, None] >= hidden_from, mask_id, tokens[:, None])
        hidden = canvas_hidden(model, canvases, attention_mask, block, remat=remat)
        # The head reads each position on its own canvas alone: [b, m, r, d] -> [b, r, d].
        own_hidden = jnp.take_along_axis(hidden, number[:, None, :, None], axis=1)[:, 0]
        log_probs.append(token_log_probs(model, own_hidden / temperature, tokens[:, columns]))
    return jnp.concatenate(log_probs, axis=1)


def canvas_hidden(
    model: DreamForCausalLM,
    canvases: Int[Array, "b m t"],
    attention_mask: Mask,
    block: DecodedBlock,
    *,
    remat: bool,
) -> Float[Array, "b m r d"]:
    """Return the hidden states that predict a block, from the sampler's passes over its canvases.

    With a cache, the first canvas is that of the refresh, and the others start from its keys and
    values.
    """
    b, m, t = canvases.shape

    def run(canvases, cache, step):
        n = canvases.shape[1]
        present = jnp.repeat(attention_mask, n, axis=0)
        positions = default_positions(present.astype(jnp.int32), present)
        arrays = CanvasArrays(present, positions, present, positions)
        window = Window.of(
            block=block.columns.start, rows=step.first_row, first_step=0, until=0, forwards=0
        )
        window = jax.tree.map(jnp.asarray, window)
        # [b, n, t] -> [b * n, t]
        hidden, cache = block_hidden(
            model, canvases.reshape(-1, t), cache, arrays, window, step.config, remat=remat
        )
        return hidden.reshape(b, n, block.columns.length, -1), cache

    if len(block.passes) == 1:
        return run(canvases, KVCache(), block.passes[0])[0]
    refresh, step = block.passes
    # The window of `dual` begins with the block.
    has_tail = step.first_row == block.columns.start
    first, cache = run(canvases[:, :1], empty_cache(model, (b, t), has_tail=has_tail), refresh)
    if m == 1:
        return first
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, m - 1, axis=0), cache)
    return jnp.concatenate([first, run(canvases[:, 1:], cache, step)[0]], axis=1)
