"""Left-to-right decoding of one server sequence: a step decides its first masked column.

With causal attention, the keys and values of decided columns stay in the cache, so a step computes
two rows: the one before the column, which predicts it, and that of the column itself.
`jax_lm.diffusion.block_pipeline` does the same for a batch whose prompts end in the same column.
"""

from dataclasses import replace

import jax.numpy as jnp

from jax_lm.diffusion.state import StepCarry
from jax_lm.diffusion.step import Pass, Passes, StepConfig, Variant, step


class LeftToRight(Variant):
    """One column at a time, after a first pass that computes all rows of the canvas."""

    def passes(self, passes: Passes) -> Passes:
        first, steps = (each.config for each in passes)
        return [Pass(replace(first, length=1), 0), Pass(replace(steps, length=1, rows=2), 0)]

    def advance_row(self, model, row, cache, inputs, config: StepConfig) -> StepCarry:
        """Decide the first masked column of one row."""
        # masked [0, 0, 0, 1, 1]: column 3, which row 2 predicts
        column = jnp.maximum(jnp.argmax(row.masked[0]), 1).astype(jnp.int32)
        rows = jnp.minimum(column - 1, row.tokens.shape[1] - (config.rows or 0))
        window = inputs.window._replace(block=column, rows=rows)
        return step(model, row, cache, inputs._replace(window=window), config)
