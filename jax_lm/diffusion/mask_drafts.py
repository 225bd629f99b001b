"""Left to right with drafts: masks after the text draft its next tokens, and the next pass verifies.

This is self-speculative decoding with masks (arXiv 2507.11851), for models with causal blocks. Such a
model is still the autoregressive model that it was made from: the row of a token predicts the next
one. The rows of masks behind it predict the tokens after that, so they are drafts. A pass computes
the last token, its drafts, and masks behind each of them. Drafts are kept as far as the rows before
them decide the same tokens, and the masks behind the last one that was kept are the next drafts.

So drafting saves forward passes, and the text is that of one token per pass.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.block_pipeline import completed_region, require_fresh
from jax_lm.diffusion.drafts import Drafts
from jax_lm.diffusion.state import BatchInputs, Evaluation, KVCache, SamplerState, StepCarry
from jax_lm.diffusion.step import CANVASES, StepConfig, block_columns, decide_tokens, write
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.shapes import ScalarInt
from jax_lm.options import CAUSAL


class PassRows(NamedTuple):
    """The rows of a pass: a text and its drafts, then masks behind the text and behind each draft.

    Attributes:
        columns: column of each row, counted from the first row.
        attends: which of these rows each row attends to.
    """

    columns: Int[np.ndarray, "r"]
    attends: Bool[np.ndarray, "r r"]


@dataclass(frozen=True)
class MaskDrafts(Drafts):
    """Decoding with `count` drafts from masks. The `extra` of a row has their tokens [1, count].

    Attributes:
        start: first column of the answer; the first pass computes the prompt before it.
    """

    start: int = 0
    keeps_candidates = False

    @classmethod
    def of(cls, canvas, options, config) -> "MaskDrafts | None":
        is_asked = options.draft or config.is_causal
        if not is_asked or options.decoding.settings.cache != "causal":
            return None
        request = f"draft={options.draft}: with {CAUSAL}"
        if not config.is_causal:
            raise ValueError(
                f"{request}, must be 0 for {config.family.name}, without causal blocks"
            )
        # Training has never shown it more masks in a row.
        size = config.block_size
        assert size
        if not 0 < options.draft < size:
            raise ValueError(f"{request}, must lie in [1, {size - 1}] for blocks of {size} tokens")
        region = completed_region(canvas, request)
        return cls(min(options.draft, max(region.length - 1, 1)), start=region.start)

    def blocks(self, canvas, length):
        return [canvas.region]

    def begin(self, state, canvas) -> SamplerState:
        require_fresh(state, canvas, self.request)
        return super().begin(state, canvas)

    def blank(self, rows):
        """Return drafts that nothing reads, as the first pass only makes drafts."""
        return jnp.zeros((len(rows.tokens), 1, self.count), jnp.int32)

    def cache_columns(self, width: int) -> int:
        """Return the columns of the canvas, and those of masks behind its last one."""
        return width + (1 + self.count) ** 2

    @property
    def decided(self) -> int:
        """Number of columns that a pass decides at most."""
        return 1 + self.count if self.verifies else 1

    @property
    def last(self) -> int:
        """Row of the last token that is decided."""
        return 0 if self.verifies else self.start - 1

    @cached_property
    def rows(self) -> PassRows:
        # count == 1, last token a, its draft b, and the masks m behind a and n behind b:
        #   rows     a  b  m  n
        #   columns  0  1  1  2
        #   a attends to a; b to a and b; m to a and m; n to a, b and n
        text = np.arange(self.last + self.decided)
        group = np.repeat(np.arange(self.decided), self.count)
        behind = self.last + group
        columns = np.concatenate([text, behind + 1 + np.tile(np.arange(self.count), self.decided)])
        # the last row of the text that each row attends to, and its group of masks
        reach = np.concatenate([text, behind])
        group = np.concatenate([np.full(len(text), -1), group])
        attends = (group == -1) & (np.arange(len(columns)) <= reach[:, None])
        attends |= (group >= 0) & (group == group[:, None]) & (columns <= columns[:, None])
        return PassRows(columns, attends)

    def advance_row(self, model, row, cache, inputs, config: StepConfig) -> StepCarry:
        """Compute the rows of a pass, decide the verified tokens, and make new drafts.

        The row may advance some steps beyond `inputs.window.until`.
        """
        drafts = row.extra
        row = row._replace(extra=None)
        # masked [0, 0, 0, 1, 1]: column 3, which row 2 predicts
        column = jnp.maximum(jnp.argmax(row.masked[0]), 1).astype(jnp.int32)
        hidden, cache = self.compute(model, row, drafts, column, cache, inputs, config)
        # verify: the drafts that equal the tokens decided before them, up to the end of the text
        text = hidden[:, self.last : self.last + self.decided]
        evaluation = self.decide(model, text, row, column, inputs, config)
        tokens = evaluation.proposal.tokens[:, :-1]
        is_right = tokens == drafts[:, : self.decided - 1]
        is_right &= ~jnp.isin(tokens, jnp.asarray(config.stop_ids, jnp.int32))
        kept = jnp.sum(jnp.cumprod(is_right, axis=1), dtype=jnp.int32)
        kept = jnp.minimum(kept, row.masked.shape[1] - 1 - column)
        after = self.take(row, evaluation, column, kept, inputs, config)
        # draft: the masks behind the last token that was kept
        first = self.last + self.decided + kept * self.count
        masks = lax.dynamic_slice_in_dim(hidden, first, self.count, axis=1)
        drafts = jnp.argmax(model.logits(masks), axis=-1).astype(jnp.int32)
        return after._replace(extra=drafts), cache

    def compute(
        self,
        model: DreamForCausalLM,
        row: SamplerState,
        drafts: Int[Array, "1 c"],
        column: ScalarInt,
        cache: KVCache,
        inputs: BatchInputs,
        config: StepConfig,
    ) -> tuple[Float[Array, "1 r d"], KVCache]:
        """Compute the rows of a pass; `column` is the first one that is not decided.

        The keys and values of text stand in its columns, those of masks in columns behind it, which
        later passes overwrite.
        """
        canvas = inputs.canvas
        columns, attends = self.rows
        first = column - 1 - self.last
        text = lax.dynamic_slice_in_dim(row.tokens, first, 1 + self.last, axis=1)
        masks = jnp.full((1, self.decided * self.count), config.mask_id, jnp.int32)
        tokens = jnp.concatenate([text, drafts[:, : self.decided - 1], masks], axis=1)
        last = lax.dynamic_slice_in_dim(canvas.position_ids, column - 1, 1, axis=1)
        # PassRows 5 to 8 attend to the columns before 5, and among themselves as `attends` says.
        width = row.tokens.shape[1]
        size = self.cache_columns(width)
        among = jnp.zeros((len(columns), size), bool)
        among = lax.dynamic_update_slice(among, jnp.asarray(attends), (jnp.int32(0), first))
        present = jnp.pad(canvas.attention_mask, ((0, 0), (0, size - width)), constant_values=True)
        mask = present[:, None] & (among | (jnp.arange(size) < first))
        assert cache.layers
        hidden, layers = model.model.recompute(
            tokens, mask, last + (columns - self.last), cache.layers, first
        )
        return hidden, KVCache(layers)

    def decide(
        self,
        model: DreamForCausalLM,
        hidden: Float[Array, "1 c d"],
        row: SamplerState,
        column: ScalarInt,
        inputs: BatchInputs,
        config: StepConfig,
    ) -> Evaluation:
        """Decide the columns from `column` on, each with the random numbers of its own step."""
        config = replace(config, axes=(*config.axes, CANVASES))
        numbers = jnp.arange(self.decided, dtype=jnp.int32)
        positions = inputs.canvas.position_ids[0, column] + numbers
        needed = jnp.ones((1, 1), bool)

        def decide(logits, step, position):
            return decide_tokens(
                model.config,
                row._replace(step=step),
                inputs.params,
                config,
                logits[None, None],
                position[None, None],
                needed,
            )

        evaluations = jax.vmap(decide, axis_name=CANVASES)(
            model.logits(hidden)[0], row.step + numbers, positions
        )
        # [c, 1, 1, ...] -> [1, c, ...]
        return jax.tree.map(lambda part: part[:, :, 0].swapaxes(0, 1), evaluations)

    def take(
        self,
        row: SamplerState,
        evaluation: Evaluation,
        column: ScalarInt,
        kept: ScalarInt,
        inputs: BatchInputs,
        config: StepConfig,
    ) -> SamplerState:
        """Write the kept tokens and the one after them, each at the step that would decide it alone."""
        # Column 6 of 8, decided [a, b, c]: the columns from 5 on take [c, a, b], without c.
        width = row.tokens.shape[1]
        config = replace(config, length=self.decided)
        block = jnp.minimum(column, width - self.decided)
        inputs = inputs._replace(window=inputs.window._replace(block=block))
        shift = column - block
        evaluation = jax.tree.map(lambda part: jnp.roll(part, shift, axis=1), evaluation)
        numbers = jnp.arange(self.decided) - shift
        chosen = (numbers >= 0) & (numbers <= kept)
        chosen &= block_columns(row.masked, inputs.window, config)
        after = write(row, evaluation, chosen, inputs, config)
        # what follows a stop token is filled at its step
        steps = row.step + jnp.minimum(jnp.arange(width) - column, kept)
        is_new = row.masked & ~after.masked
        return after._replace(
            commit_step=jnp.where(is_new, steps, after.commit_step),
            step=row.step + kept + 1,
            forwards=row.forwards + 1,
        )
