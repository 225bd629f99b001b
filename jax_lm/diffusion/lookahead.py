"""Lookahead: decoding continues with the branch whose remaining masks are most confident.

This is LoPA (arXiv 2512.16229). After each step, each of the most confident positions that the
commit rule left open makes a branch: the canvas with that token added. One forward pass over the
canvas and its branches yields the confidence of their remaining masks, and the tokens that the next
step commits. Unlike `jax_lm.diffusion.drafts`, whose rows it shares, it may change the text.
"""

import jax
import jax.numpy as jnp

from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.drafts import Drafts
from jax_lm.diffusion.state import BatchInputs, Evaluation, SamplerState
from jax_lm.diffusion.step import CANVASES, StepConfig, block_columns, commit, evaluate, write
from jax_lm.models.shapes import Scalar


class Lookahead(Drafts):
    """Decoding with `count` branches per row; `verifies` says whether a pass computes them."""

    keeps_candidates = False
    option = "lookahead"

    def blank(self, rows):
        """Return branches that equal their canvas."""
        return self.copies(rows)

    def advance_row(self, model, row, cache, inputs, config):
        """Compute a canvas and its branches, take a step from the most confident, and branch anew."""
        config = config.mapped(CANVASES)
        # compute the branches and the canvas
        branches = row.extra
        row = row._replace(extra=None)
        canvases = jax.tree.map(lambda part: part[None], row)
        if self.verifies:
            # Branches come first, the most confident of them first: argmax takes the first of ties.
            canvases = jax.tree.map(lambda *parts: jnp.concatenate(parts), branches, canvases)

        def look(canvas):
            evaluation, new_cache = evaluate(model, canvas, cache, inputs, config)
            return mean_probability(canvas, evaluation, inputs, config), evaluation, new_cache

        means, evaluations, caches = jax.vmap(look, axis_name=CANVASES)(canvases)
        # choose, and take a step
        best = jnp.argmax(means)
        chosen, evaluation, cache = jax.tree.map(
            lambda part: part[best], (canvases, evaluations, caches)
        )
        row = commit(chosen._replace(forwards=row.forwards + 1), evaluation, inputs, config)
        # branch anew
        branches = self.branch(row, evaluation, inputs, config)
        is_full = ~jnp.any(block_columns(branches.masked[0], inputs.window, config))
        # If one mask was left, its only branch is a full block. Nothing is more confident than
        # that, so it is taken without another forward pass.
        filled = jax.tree.map(lambda part: part[0], branches)._replace(step=row.step + 1)
        row = jax.tree.map(lambda full, left: jnp.where(is_full, full, left), filled, row)
        return row._replace(extra=branches), cache

    def branch(
        self, row: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig
    ) -> SamplerState:
        """Copy a canvas `count` times, each with one more token, in score order.

        Copies beyond the last mask are unchanged.
        """
        # count == 3, scores [.9, .2, .5] of masks [1, 1, 0]: [a, M, z], [M, b, z] and [M, M, z].
        masked = block_columns(row.masked, inputs.window, config)
        rank = commit_rules.ranks(evaluation.proposal.scores, masked)

        def write_one(order):
            return write(row, evaluation, masked & (rank == order), inputs, config)

        return jax.vmap(write_one)(jnp.arange(self.count))


def mean_probability(
    canvas: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig
) -> Scalar:
    """Compute the mean probability of the tokens proposed for the block's masks; 1 without any."""
    masked = block_columns(canvas.masked, inputs.window, config)
    count = jnp.sum(masked)
    total = jnp.sum(jnp.where(masked, evaluation.proposal.probability, 0.0))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), 1.0)
