"""Left to right: the row of the last token predicts the next one, and drafts save passes.

For models with causal attention, whose keys and values of decided text stay in the cache.

A model with causal blocks has also learnt to fill masks after a text, so that masks can draft its
next tokens. This is self-speculative decoding (arXiv 2507.11851):

- A pass computes the last token, its drafts, and masks behind each of them.
- A draft is kept if the row before it decides the same token, and all drafts before it are kept.
- The masks behind the last token that was kept make the next drafts.

Drafts do not change the text. Each row is a batch of one at a step of its own.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jax_lm.config import DreamConfig, Fields
from jax_lm.diffusion.block_pipeline import completed_region, require_fresh
from jax_lm.diffusion.drafts import Drafts
from jax_lm.diffusion.state import BatchInputs, Evaluation, KVCache, SamplerState
from jax_lm.diffusion.step import CANVASES, Pass, StepConfig, block_columns, decide_tokens, write
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import Hidden
from jax_lm.models.shapes import ScalarInt
from jax_lm.options import CAUSAL, PIPELINE_SETTINGS, WITH_CAUSAL, require_only


def require_drafts(draft: int, config: DreamConfig):
    """Raise ValueError if a model with causal attention cannot draft this many tokens by masks."""
    # Training has never shown it more masks in a row than a block has.
    most = (config.block_size or 1) - 1
    if draft > most:
        raise ValueError(f"draft={draft}: must lie in [0, {most}] for {config.family.name}")


class PassRows(NamedTuple):
    """The rows of a pass: a text and its drafts, then masks behind the text and behind each draft.

    Attributes:
        columns: column of each row, counted from the first row.
        attends: which of these rows each row attends to.
    """

    columns: Int[np.ndarray, "r"]
    attends: Bool[np.ndarray, "r r"]


@dataclass(frozen=True)
class LeftToRight(Drafts):
    """Decoding with `count` drafts from masks, which may be 0.

    The drafts of a row are the token ids in its `extra`. The first pass computes the prompt, and has
    no drafts to verify.

    Attributes:
        first_rows: rows of the first pass: the prompt, and masks that draft; None computes the whole
            canvas.
    """

    first_rows: int | None = None
    # Drafts come from masks, not from the candidates of an earlier pass.
    keeps_candidates = False

    @classmethod
    def of(cls, canvas, options, config) -> "LeftToRight | None":
        if options.decoding.cache != "causal" or not config.is_unidirectional:
            return None
        region = completed_region(canvas, CAUSAL)
        require_drafts(options.draft, config)
        where = f"{WITH_CAUSAL} for {config.family.name}"
        unread: Fields = dict.fromkeys(("threshold", "block_length", *PIPELINE_SETTINGS))
        require_only(options.decoding, unread, where)
        if config.is_causal:
            require_only(options, {"alg": "left_to_right", "alg_temp": 0}, where)
        count = min(options.draft, region.length - 1)
        return cls(count, first_rows=region.start + count)

    @property
    def request(self):
        return CAUSAL

    def blocks(self, canvas, length):
        return [canvas.region]

    def begin(self, state, canvas):
        require_fresh(state, canvas, self.request)
        return super().begin(state, canvas)

    def blank(self, rows):
        """Return placeholders for drafts. They are verified, so that a wrong one does no harm."""
        return jnp.zeros((len(rows.tokens), 1, self.count), jnp.int32)

    @property
    def most_columns(self) -> int:
        """Number of columns that a pass decides at most: a token, and the drafts after it."""
        return 1 + self.count if self.verifies else 1

    @cached_property
    def rows(self) -> PassRows:
        """Rows of a pass that verifies."""
        # count == 1, last token a, its draft b, and the masks m behind a and n behind b:
        #   rows     a  b  m  n
        #   columns  0  1  1  2
        #   a attends to a; b to a and b; m to a and m; n to a, b and n
        text = np.arange(1 + self.count)
        behind = np.repeat(np.arange(1 + self.count), self.count)
        columns = np.concatenate([text, behind + 1 + np.tile(text[: self.count], 1 + self.count)])
        # the last row of the text that each row attends to, and its group of masks
        reach = np.concatenate([text, behind])
        group = np.concatenate([np.full(len(text), -1), behind])
        attends = (group == -1) & (np.arange(len(columns)) <= reach[:, None])
        attends |= (group >= 0) & (group == group[:, None]) & (columns <= columns[:, None])
        return PassRows(columns, attends)

    def cache_columns(self, width):
        """Return the columns of the canvas, and those of the rows of the last pass behind it."""
        # The rows stand in the cache one after the other. Those of the last pass begin at the
        # second last column, whose row decides the last one.
        return width + max(len(self.rows.columns) - 2, 0)

    def passes(self, passes):
        first, steps = (each.config for each in passes)
        first = replace(
            first, rows=self.first_rows or first.rows, variant=replace(self, verifies=False)
        )
        return [Pass(first, 0), Pass(replace(steps, rows=len(self.rows.columns), variant=self), 0)]

    def enter_row(self, row, inputs, config):
        return row

    def advance_row(self, model, row, cache, inputs, config):
        """Compute the rows of a pass, decide the verified tokens, and make new drafts.

        The row may advance some steps beyond `inputs.window.until`.
        """
        drafts = row.extra
        row = row._replace(extra=None)
        # masked [0, 0, 0, 1, 1]: column 3, which row 2 predicts
        column = jnp.maximum(jnp.argmax(row.masked[0]), 1).astype(jnp.int32)
        # compute: the hidden states of the text, then those of the masks behind it
        hidden, cache = self.compute(model, row, drafts, column, cache, inputs, config)
        evaluation = self.decide(model, hidden[:, : self.most_columns], row, column, inputs, config)
        # verify: a draft is right if the row before it decides the same token. A stop token ends the
        # text, so that it is never kept as a draft.
        tokens = evaluation.proposal.tokens[:, :-1]
        is_right = tokens == drafts[:, : self.most_columns - 1]
        is_right &= ~jnp.isin(tokens, jnp.asarray(config.stop_ids, jnp.int32))
        kept = jnp.sum(jnp.cumprod(is_right, axis=1), dtype=jnp.int32)
        kept = jnp.minimum(kept, jnp.sum(row.masked, dtype=jnp.int32) - 1)
        after = self.take(row, evaluation, column, kept, inputs, config)
        if self.count:
            # draft: by the masks behind the last token that was kept
            first = self.most_columns + kept * self.count
            masks = lax.dynamic_slice_in_dim(hidden, first, self.count, axis=1)
            drafts = jnp.argmax(model.logits(masks), axis=-1).astype(jnp.int32)
        return after._replace(extra=drafts), cache

    def compute(
        self,
        model: DreamForCausalLM,
        row: SamplerState,
        drafts: Int[Array, "1 g"],
        column: ScalarInt,
        cache: KVCache,
        inputs: BatchInputs,
        config: StepConfig,
    ) -> tuple[Hidden, KVCache]:
        """Compute the rows of a pass; `column` is the first one that is not decided.

        The cache holds the keys and values of the text in its columns, and those of masks in columns
        behind it, which later passes overwrite.
        """
        canvas = inputs.canvas
        width = row.tokens.shape[1]
        size = self.cache_columns(width)
        present = jnp.pad(canvas.attention_mask, ((0, 0), (0, size - width)))
        last = column - 1
        assert cache.layers
        if not self.verifies:
            hidden, layers = model.model.recompute(
                row.tokens[:, : config.rows],
                present,
                canvas.position_ids[:, : config.rows],
                cache.layers,
                jnp.int32(0),
            )
            # The last token and the masks behind it. Clipped rows make drafts past the canvas, which
            # are never kept.
            ahead = last + jnp.arange(1 + self.count)
            return jnp.take(hidden, ahead, axis=1, mode="clip"), KVCache(layers)
        columns, attends = self.rows
        masks = jnp.full((1, (1 + self.count) * self.count), config.mask_id, jnp.int32)
        token, position = (
            lax.dynamic_slice_in_dim(values, last, 1, axis=1)
            for values in (row.tokens, canvas.position_ids)
        )
        # Rows 5 to 8 attend to the columns before 5, and among themselves as `attends` says.
        among = jnp.zeros((len(columns), size), bool)
        among = lax.dynamic_update_slice(among, jnp.asarray(attends), (jnp.int32(0), last))
        hidden, layers = model.model.recompute(
            jnp.concatenate([token, drafts, masks], axis=1),
            among | (present & (jnp.arange(size) < last))[:, None],
            position + columns,
            cache.layers,
            last,
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
        config = config.mapped(CANVASES)
        numbers = jnp.arange(self.most_columns, dtype=jnp.int32)
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
        # Column 6 of 8, decided [a, b, c]: the last three columns take [c, a, b]. As c belongs behind
        # the canvas, column 5 keeps its token.
        width = row.tokens.shape[1]
        config = replace(config, length=self.most_columns)
        block = jnp.minimum(column, width - self.most_columns)
        inputs = inputs._replace(window=inputs.window._replace(block=block))
        shift = column - block
        evaluation = jax.tree.map(lambda part: jnp.roll(part, shift, axis=1), evaluation)
        numbers = jnp.arange(self.most_columns) - shift
        chosen = (numbers >= 0) & (numbers <= kept)
        chosen &= block_columns(row.masked, inputs.window, config)
        after = write(row, evaluation, chosen, inputs, config)
        # What follows a stop token was filled at the step of the stop token.
        steps = row.step + jnp.minimum(jnp.arange(width) - column, kept)
        return after._replace(
            commit_step=jnp.where(row.masked & ~after.masked, steps, after.commit_step),
            step=row.step + kept + 1,
            forwards=row.forwards + 1,
        )
