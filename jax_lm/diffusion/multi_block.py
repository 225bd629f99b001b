"""Several blocks at once under full attention (d3LLM, github.com/hao-ai-lab/d3LLM).

Blocks begin and decide tokens as in D2F's block pipeline. But every position attends to the whole
canvas, including blocks that have not begun, and each step recomputes the whole canvas. It suits
weights distilled for it, and works with any weights with full attention. `DelayedCache` is the same
with a KV cache.
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jax_lm.diffusion.block_pipeline import BlockPipeline, completed_region
from jax_lm.diffusion.state import decided_stops
from jax_lm.diffusion.step import Pass
from jax_lm.options import ACTIVE_BLOCKS


class MultiBlock(BlockPipeline):
    """The blocks of an answer, of which several are filled at once, each seeing the whole canvas."""

    begun = 1
    # Value of the option `cache` that selects this method.
    cache = "none"

    @classmethod
    def of(cls, canvas, options, config) -> "MultiBlock | None":
        decoding = options.decoding
        if not decoding.is_pipelined or decoding.settings.cache != cls.cache:
            return None
        if config.attention_block is not None:
            raise ValueError(
                f"{ACTIVE_BLOCKS}: not with {config.family.name}, which attends by blocks"
            )
        region = completed_region(canvas, ACTIVE_BLOCKS)
        return cls(
            region.start,
            region.end,
            decoding.block_length_in(region.length),
            decoding.settings.active_blocks,
        )

    @property
    def request(self) -> str:
        return ACTIVE_BLOCKS

    def passes(self, passes):
        """Compute the whole canvas, and decide columns of the whole answer."""
        return [Pass(replace(passes[0].config, length=self.end - self.start, rows=None), 0)]

    def admitted(self, present, queries) -> Bool[Array, "b s"]:
        """Return the keys that any query attends to: all that are present."""
        return present

    def is_forced(self, masks, share):
        """Return which block must decide a token: the first one with masks.

        The published threshold has no effect here: all blocks before that one are finished.
        """
        # masks [0, 3, 4]: [0, 1, 0]
        is_left = masks > 0
        return is_left & (jnp.cumsum(is_left, axis=1) == 1)

    def end_texts(self, state, inputs, config):
        """Repeat the first stop token of a row to its end, over tokens that were decided too."""
        # [p, M, S, b, M] -> [p, M, S, S, S]
        is_stop = decided_stops(state, inputs, config.stop_ids)
        first = jnp.argmax(is_stop, axis=1)[:, None]
        is_after = jnp.cumsum(is_stop, axis=1) - is_stop > 0
        stops = jnp.take_along_axis(state.tokens, first, axis=1)
        return state._replace(
            tokens=jnp.where(is_after, stops, state.tokens),
            masked=state.masked & ~is_after,
            commit_step=jnp.where(is_after & state.masked, state.step, state.commit_step),
        )
