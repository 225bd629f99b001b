"""Several blocks at once under full attention, with d3LLM's delayed KV cache.

The parts of a text are the prompt and the blocks. A pass computes the rows after the parts that are
stored. A finished part waits for `cache_delay` passes, which compute all rows, as `MultiBlock` does; the
next pass stores its keys and values. Two properties of the published loop belong to the method:

- A pass that begins with a mask has no row before it, so its own row predicts it.
- If several parts wait, the passes after a whole one attend to all of them but the last twice: as
  the whole pass computed them, and as they were computed since.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_lm.diffusion.block_pipeline import BlockCounts, Pipeline
from jax_lm.diffusion.multi_block import MultiBlock
from jax_lm.diffusion.step import evaluate
from jax_lm.models.shapes import Mask


class Parts(NamedTuple):
    """The prompt and the blocks of each row.

    Attributes:
        finished: passes since each part was finished, the current one included.
        repeated: columns that later passes attend to as the last whole pass computed them, too.
    """

    finished: BlockCounts
    repeated: Mask


class DelayedCache(MultiBlock):
    """The blocks of an answer, of which several are filled at once, with a delayed cache.

    The cache has the columns of the canvas, and again as the last whole pass computed them. The step
    has a branch for each number of stored parts, so it decodes one row at a time.
    """

    cache = "delayed"

    @classmethod
    def of(cls, canvas, options, config):
        method = super().of(canvas, options, config)
        if method and len(canvas.tokens) > 1:
            raise ValueError("cache='delayed': decodes one text at a time, with --batch-size 1")
        return method

    @property
    def request(self):
        return "cache='delayed'"

    def cache_columns(self, width):
        return 2 * width

    def begin(self, state, canvas):
        state = super().begin(state, canvas)
        finished = jnp.zeros((1, self.count + 1), jnp.int32)
        parts = Parts(finished, jnp.zeros_like(state.masked))
        return state._replace(extra=state.extra._replace(parts=parts))

    def advance_pipeline(self, pipeline, masks, is_stopped, params):
        """Begin blocks, and choose the first part that the pass computes; 0 is a whole pass."""
        begun, last, _ = super().advance_pipeline(pipeline, masks, is_stopped, params)
        finished, repeated = pipeline.parts
        numbers = np.arange(self.count + 1)
        passes = finished + (numbers <= last)
        # A block is found finished one pass after its last token was decided, the prompt before the
        # first pass: with delay 2, [7, 3, 2, 0] has two stored parts, and [6, 2, 1, 0] had one.
        before, after = (
            jnp.sum(each - (numbers > 0) >= params.cache_delay, axis=1)
            for each in (finished, passes)
        )
        refreshes = (after <= last) | (passes[:, 0] % params.refresh_steps == 0)
        first = jnp.where(refreshes & (before == after), 0, before)
        # the parts that wait, but for the last
        part = 1 + self.number(jnp.arange(self.end))
        waits = (part >= after) & (part < last)
        return Pipeline(begun, first, Parts(passes, jnp.where(first > 0, repeated, waits)))

    def evaluate(self, model, row, cache, inputs, config):
        """Compute the rows after the stored parts, and propose a token for each mask."""
        canvas = inputs.canvas
        twice = row.extra.parts.repeated[None]

        def compute(first):
            # the columns, and those that are attended to twice
            attended = jnp.concatenate([canvas.attention_mask, twice & (first > 0)], axis=1)
            block = max(first, self.start)
            evaluation, updated = evaluate(
                model,
                row,
                cache,
                inputs._replace(
                    canvas=canvas._replace(attention_mask=attended),
                    window=inputs.window._replace(block=jnp.int32(block), rows=jnp.int32(first)),
                ),
                replace(config, length=self.end - block, rows=self.end - first),
            )
            if not first:
                # all columns, and again as this pass computed them
                updated = jax.tree.map(
                    lambda values: jnp.tile(values[:, :, : self.end], (1, 1, 2, 1)), updated
                )
            # columns [c, d] of the answer [a, b, c, d] -> [0, 0, c, d]
            pad = partial(jnp.pad, pad_width=((0, 0), (block - self.start, 0)))
            return jax.tree.map(pad, evaluation), updated

        # Under `jax.vmap`, a number of the row would run every branch.
        stored = lax.pmax(row.extra.stored, config.axes)
        firsts = 0, *range(self.start, self.end, self.length)
        return lax.switch(stored, [partial(compute, first) for first in firsts])
