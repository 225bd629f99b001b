"""P2: steps that make MASKs again of the tokens that have become least sure (arXiv 2502.03540).

This is the path planning of Open-dLLM (github.com/pengzhangzhi/Open-dLLM). Each step proposes a
token for every position of the block, decided or not, and keeps a share of the positions that grows
evenly: those with the most confident proposals. A kept MASK becomes its proposal, a kept token stays
as it is, and every other position becomes MASK.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.state import rewrite
from jax_lm.diffusion.step import Variant, block_columns, evaluate, write
from jax_lm.options import P2


class PathPlanning(Variant):
    """Decoding in which a decided token may become MASK again."""

    ends_early = False  # a stop token may become MASK again

    @classmethod
    def of(cls, canvas, options, config) -> "PathPlanning | None":
        return cls() if options.alg == P2 else None

    @property
    def request(self):
        return f"alg={P2!r}"

    def params(self, params, state):
        """Return settings whose schedule has the share of positions that are MASK after each step.

        No step is idle, as those of the noise schedule may be: each proposes tokens anew.
        """
        # 4 steps: .75, .5, .25, 0
        shares = 1 - np.arange(1, len(params.ratios) + 1) / params.steps
        return params._replace(by_schedule=np.bool_(False), ratios=shares.astype(np.float32))

    def advance(self, model, state, cache, inputs, config):
        """Propose tokens for all positions, and keep the most confident ones."""
        holes = inputs.canvas.holes
        # The model sees the tokens as they are; each hole counts as undecided, for a proposal.
        evaluation, cache = evaluate(model, state._replace(masked=holes), cache, inputs, config)
        # 8 positions, .25 of them MASK after this step: the 6 most confident are kept.
        columns = block_columns(holes, inputs.window, config)
        share = inputs.params.ratios[state.step - inputs.window.first_step]
        count = jnp.sum(columns, axis=1, keepdims=True)
        rank = commit_rules.ranks(evaluation.proposal.scores, columns)
        is_sure = rank < count - jnp.floor(count * share)
        is_kept = columns & (is_sure | jnp.isnan(evaluation.proposal.probability))
        # Kept [1, 0, 1, 0] of [M, M, a, b], proposed [c, d, e, f]: first [c, M, a, b], then [c, M, a, M].
        masked = block_columns(state.masked, inputs.window, config)
        state = write(state, evaluation, is_kept & masked, inputs, config)
        tokens = block_columns(state.tokens, inputs.window, config)
        tokens = jnp.where(columns & ~is_kept, config.mask_id, tokens)
        tokens = jax.lax.dynamic_update_slice_in_dim(
            state.tokens, tokens, inputs.window.block, axis=1
        )
        state = rewrite(state, tokens, holes, config.mask_id)
        return state._replace(step=state.step + 1, forwards=state.forwards + 1), cache
