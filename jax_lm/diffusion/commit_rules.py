"""Commit rules: which masked positions of a block a step decides. Pure functions of arrays.

Rules: Dream (`steps`), Fast-dLLM (`threshold`, `factor`), a threshold that falls as the block fills
(`dynamic`), EB-Sampler (`entropy`) and dParallel (`low_entropy`); see `jax_lm.options.Decoding`.
`candidates` draws and scores the tokens.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.models.shapes import BatchCounts, RowIds, RowMask, RowScores, Scalar, ScalarInt

# Where the noise schedule ends (`eps` of the reference).
NOISE_FLOOR = 1e-3


@functools.cache
def transfer_ratios(steps: int) -> np.ndarray:
    """Return the share of the remaining masks that each step commits.

    It is 1 - s/t on the reference's float32 grid of times t > s, and 1 in the last step.
    """
    # 4 steps: times about [1, 3/4, 2/4, 1/4, 0] and ratios [1/4, 1/3, 1/2, 1]
    if steps == 1:
        return np.ones(1, np.float32)
    # torch.linspace(1, eps, steps + 1) to the bit: it counts from both ends to the middle, with one
    # rounding per point (a fused multiply-add, which float64 reproduces). A step's counts depend on
    # the last bit.
    start = np.float32(1)
    end = np.float32(NOISE_FLOOR)
    width = float((end - start) / np.float32(steps))
    index = np.arange(steps + 1)
    forward = float(start) + width * index
    backward = float(end) - width * (steps - index)
    times = np.where(index < (steps + 1) // 2, forward, backward).astype(np.float32)
    ratios = np.float32(1) - times[1:] / times[:-1]
    ratios[-1] = 1
    return ratios.astype(np.float32)


def commit_counts(masked: RowMask, ratio: Scalar) -> BatchCounts:
    """Count the positions that each row commits: the truncated float32 product, per row."""
    return (jnp.sum(masked, axis=1).astype(jnp.float32) * ratio).astype(jnp.int32)


def ranks(scores: RowScores, masked: RowMask) -> RowIds:
    """Return each position's rank in its row: 0 for the most confident, ties from left to right."""
    # scores [.2, .9, .5, .7] of masks [1, 1, 1, 0]: order [1, 2, 0, 3], ranks [2, 0, 1, 3]
    return jnp.argsort(jnp.argsort(-jnp.where(masked, scores, -jnp.inf), axis=1), axis=1)


def above_threshold(
    threshold: Scalar,
    decay: Scalar,
    rank: RowIds,
    probability: RowScores,
    masked: RowMask,
    holes: BatchCounts,
) -> RowMask:
    """Choose masked positions with a probability of at least the threshold, and the one of rank 0.

    The threshold falls to threshold * (1 - decay) as a block of `holes` positions fills (rule
    `dynamic`; `threshold` has decay 0).
    """
    # threshold .9, decay .5, 3 of 4 masks left: .9 * (1 - .5 / 4) = .7875
    masked_share = jnp.sum(masked, axis=1) / jnp.maximum(holes, 1)
    bound = threshold * (1 - decay * (1 - masked_share))
    return masked & ((probability >= bound[:, None]) | (rank == 0))


def longest_run(factor: Scalar, rank: RowIds, probability: RowScores, masked: RowMask) -> RowMask:
    """Choose masked positions in order up to the first that fails p_i >= 1 - factor / (i + 1).

    The index i counts from 1, and the first position is always chosen.
    """
    # factor 1 and probabilities .9, .7, .6 in order: bounds 1/2, 2/3, 3/4 -> the first two
    i = jnp.arange(1, rank.shape[1] + 1)
    return masked & leading(ordered(probability, rank, masked) >= 1 - factor / (i + 1), rank)


def within_entropy(bound: Scalar, rank: RowIds, entropy: RowScores, masked: RowMask) -> RowMask:
    """Choose masked positions in order while the entropies except the largest sum to <= `bound`.

    That sum bounds the mutual information of the tokens. It never falls as more are taken, and is 0
    for one alone.
    """
    # bound .5 and entropies .3, .4, .1, .6 in order: sums less the largest 0, .3, .4, .8 -> three
    entropy = ordered(entropy, rank, masked)
    shared = jnp.cumsum(entropy, axis=1) - jax.lax.cummax(entropy, axis=1)
    return masked & leading(shared <= bound, rank)


def below_entropy(bound: Scalar, rank: RowIds, entropy: RowScores, masked: RowMask) -> RowMask:
    """Choose masked positions with an entropy below the bound, and the one of rank 0."""
    # bound .5, entropies [.6, .1, .9] and ranks [1, 0, 2]: [0, 1, 0]; with bound 0 the same
    return masked & ((entropy < bound) | (rank == 0))


def ordered(values: RowScores, rank: RowIds, masked: RowMask) -> RowScores:
    """Return the values of masked positions by rank, and zeros after them."""
    # values [.1, .2, .3], ranks [1, 2, 0], masks [1, 0, 1] -> [.3, .1, 0]
    # Positions without a mask are written past the end, that is, dropped.
    target = jnp.where(masked, rank, rank.shape[1])
    return (
        jnp.zeros_like(values).at[jnp.arange(len(rank))[:, None], target].set(values, mode="drop")
    )


def leading(passes: RowMask, rank: RowIds) -> RowMask:
    """Return the positions ranked before the first failure; rank 0 always passes.

    `passes` is in order of rank, the result in order of position.
    """
    # passes [1, 1, 0, 1], so ranks 0 and 1; with ranks [2, 0, 1, 3] -> [0, 1, 1, 0]
    passes |= jnp.arange(rank.shape[1]) == 0
    return rank < jnp.sum(jnp.cumprod(passes, axis=1), axis=1, keepdims=True)


def budget(masked: RowMask, holes: BatchCounts, step: ScalarInt, steps: ScalarInt) -> BatchCounts:
    """Count the positions that a rule by probability may commit in a step of a block.

    Without a number of steps, that is all of them. Else Fast-dLLM's uncached rule holds: each of
    the `steps` steps may commit holes // steps, unused ones carry over, and the last may commit
    all.
    """
    # 12 holes in 4 steps: 3 per step; step 1 with 1 committed so far may commit 2 * 3 - 1 = 5
    left = jnp.sum(masked, axis=1)
    allowed = holes // jnp.maximum(steps, 1) * (step + 1) - (holes - left)
    return jnp.where((steps > 0) & (step + 1 < steps), jnp.maximum(allowed, 1), left)
