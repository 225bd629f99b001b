"""Masks over token rows: the logit shift, packed samples, and the noise of masked diffusion.

The random numbers of a sample depend only on the key and the sample's number. So its masks do not
depend on how a batch is padded, packed, split or sharded. Knows the configuration of a model only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jax_lm.config import DreamConfig
from jax_lm.models.shapes import BatchValues, Mask, PairMask, Tokens, TokenValues

# Logits or hidden states of each position.
TokenRows = Float[Array, "b t x"]
# 2^32 / golden ratio: multiples of it, modulo 2^32, spread evenly however many there are.
GOLDEN_STEP = 2654435769


def align_rows(rows: TokenRows, config: DreamConfig, starts: Mask | None = None) -> TokenRows:
    """Return the row that predicts each position, which depends on the family of the model."""
    return shift_right(rows, starts) if config.family.shifts else rows


def shift_right(rows: TokenRows, starts: Mask | None = None) -> TokenRows:
    """Align logits, or the hidden states they come from, with the tokens they predict.

    Dream was adapted from a causal model: row p predicts the token at p + 1. Position 0 keeps row
    0, and so does the first position of every sample where several stand in a row (`starts`). This
    is the only place where that shift is made.
    """
    # [r0, r1, r2, r3] -> [r0, r0, r1, r2]; with samples that start at 0 and 2 -> [r0, r0, r2, r2]
    shifted = jnp.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    return shifted if starts is None else jnp.where(starts[..., None], rows, shifted)


def sample_starts(samples: Tokens) -> Mask:
    """Mark where samples begin; `samples` numbers the sample of each token, -1 where there is none."""
    # samples [0, 0, 1, 1, -1] -> [1, 0, 1, 0, 1]
    return jnp.concatenate(
        [jnp.ones_like(samples[:, :1], bool), samples[:, 1:] != samples[:, :-1]], axis=1
    )


def sample_positions(samples: Tokens) -> Tokens:
    """Count positions from the start of each sample."""
    # samples [0, 0, 0, 1, 1, -1] -> [0, 1, 2, 0, 1, 0]
    columns = jnp.broadcast_to(jnp.arange(samples.shape[1]), samples.shape)
    return columns - jax.lax.cummax(jnp.where(sample_starts(samples), columns, 0), axis=1)


def number_blocks(samples: Tokens, length: int) -> Tokens:
    """Number the block of each token across all samples; -1 where there is no sample.

    If a block is as long as a row, the numbers are those of the samples.
    """
    # length 2, samples [0, 0, 0, 1, -1]: a sample has at most 3 blocks, so that sample 0 has the
    # numbers 0 to 2 and sample 1 begins at 3 -> [0, 0, 1, 3, -1]
    most_blocks = -(-samples.shape[1] // length)
    return jnp.where(samples < 0, -1, samples * most_blocks + sample_positions(samples) // length)


def over_samples(reduce: str, values: TokenValues, samples: Tokens) -> TokenValues:
    """Return at each token the sum or minimum ("sum", "min") of the values of its sample."""
    # sum of [1, 2, 3, 4] with samples [7, 7, 9, 9] -> [3, 3, 7, 7]
    numbers = jnp.cumsum(sample_starts(samples), axis=1) - 1
    segments = {"sum": jax.ops.segment_sum, "min": jax.ops.segment_min}[reduce]
    totals = jax.vmap(
        lambda v, n: segments(v, n, num_segments=samples.shape[1], indices_are_sorted=True)
    )
    return jnp.take_along_axis(totals(values, numbers), numbers, axis=1)


def sample_draws(key: PRNGKeyArray, samples: Tokens) -> TokenValues:
    """Draw a random number in [0, 1) for each sample, the same at all of its tokens."""

    def draw(sample):
        return jax.random.uniform(jax.random.fold_in(key, sample))

    return jax.vmap(jax.vmap(draw))(samples)


def noise_levels(
    key: PRNGKeyArray, samples: Tokens, draws: str = "even", minimum: float = 1e-3
) -> TokenValues:
    """Draw the level t ~ U(minimum, 1) of each token's sample.

    The distribution of a single sample's level does not depend on `draws`:

    - `independent`: one random number per sample;
    - `antithetic`: samples 2k and 2k + 1 get u and 1 - u;
    - `even`: one random number per step, from which each sample moves a golden-ratio step further
      around the unit interval, so that any number of samples covers it evenly.
    """
    if draws == "even":
        # uint32 wraps around exactly. A float product would lose the fraction for large numbers.
        turns = samples.astype(jnp.uint32) * jnp.uint32(GOLDEN_STEP)
        u = (jax.random.uniform(key) + turns.astype(jnp.float32) / 2.0**32) % 1.0
    else:
        numbers = samples // 2 if draws == "antithetic" else samples
        u = sample_draws(key, numbers)
        if draws == "antithetic":
            u = jnp.where(samples % 2 == 1, 1 - u, u)
    return minimum + (1 - minimum) * u


def mask_tokens(
    key: PRNGKeyArray,
    tokens: Tokens,
    canvas: Mask,
    samples: Tokens,
    levels: TokenValues,
    mask_id: int,
    ranks: TokenValues | None = None,
) -> tuple[Tokens, Mask]:
    """Mask canvas positions with the probability of their level, and at least one per sample.

    Args:
        key: key of the random numbers.
        tokens: rows of samples.
        canvas: positions that may be masked.
        samples: number of each token's sample.
        levels: masking probability of each token's sample.
        mask_id: id of MASK.
        ranks: in [0, 1); a position is masked if its rank is below its level. NaN draws a random
            number instead.

    Returns:
        Noisy tokens, and which positions were masked.
    """

    def draw(sample, position):
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, sample), position))

    draws = jax.vmap(jax.vmap(draw))(samples, sample_positions(samples))
    if ranks is not None:
        draws = jnp.where(jnp.isnan(ranks), draws, ranks)
    # The position with the lowest draw is masked in any case: a sample without a mask would teach
    # nothing.
    draws = jnp.where(canvas, draws, 2.0)
    masked = canvas & ((draws < levels) | (draws == over_samples("min", draws, samples)))
    return jnp.where(masked, mask_id, tokens), masked


def visible_prefix(key: PRNGKeyArray, canvas: Mask, samples: Tokens, levels: TokenValues) -> Mask:
    """Choose a prefix of each sample's canvas that stays visible, of random length.

    The prefix is at most the share of the canvas that the sample's level leaves visible.
    """
    # canvas [0, 1, 1, 1, 1] of one sample, level .25 and draw .8: floor(.8 * .75 * 4) = 2 positions
    # -> [0, 1, 1, 0, 0]
    sizes = over_samples("sum", canvas.astype(jnp.float32), samples)
    before = jnp.cumsum(canvas, axis=1) - canvas
    indices = before - over_samples("min", before.astype(jnp.float32), samples)
    return canvas & (indices < jnp.floor(sample_draws(key, samples) * (1 - levels) * sizes))


def confident_ranks(
    key: PRNGKeyArray, log_probs: TokenValues, canvas: Mask, samples: Tokens, share: float
) -> TokenValues:
    """Rank the canvas tokens of a share of the samples from the least to the most likely.

    Ranks are in [0, 1), and NaN in the other samples. Masking by rank leaves visible what decoding
    by confidence would have written first: one step does what progressive unmasking (PUMA, arXiv
    2602.10314) does in many. Log-probabilities that differ only by rounding may swap ranks if rows
    are split or packed in another way.
    """
    # log-probabilities [-1, -3, -2, -4] of a canvas of 4 -> places [3, 1, 2, 0], ranks
    # [.75, .25, .5, 0]
    # Sort within each sample: its canvas from the least to the most likely token, then given
    # tokens.
    order = jnp.lexsort((log_probs, ~canvas, jnp.cumsum(sample_starts(samples), axis=1)), axis=-1)
    places = jnp.argsort(order, axis=-1) - (
        jnp.arange(samples.shape[1]) - sample_positions(samples)
    )
    sizes = over_samples("sum", canvas.astype(jnp.float32), samples)
    ranked = canvas & (sample_draws(key, samples) < share)
    return jnp.where(ranked, places / jnp.maximum(sizes, 1), jnp.nan)


def unforced_ratio(levels: TokenValues, sizes: TokenValues, counts: TokenValues) -> TokenValues:
    """Compute the importance weight P(masks) / P(masks by `mask_tokens`) of a sample's masks.

    `mask_tokens` forces at least one mask. A loss times this weight has the same mean over all
    masks as the loss under independent masks, each with the probability of its level.

    Args:
        levels: masking probability of each token's sample.
        sizes: canvas positions of the sample.
        counts: how many of them were masked.
    """
    # Two or more masks are never forced: weight 1. A single mask at level t among n positions:
    #   drawn   with probability t (1 - t)^(n - 1)
    #   forced  with probability (1 - t)^n / n, if nothing was drawn
    # The weight is drawn / (drawn + forced) = n t / (n t + 1 - t).
    weight_of_one = sizes * levels / (sizes * levels + 1 - levels)
    return jnp.where(counts == 1, weight_of_one, 1.0)


def attention_mask(samples: Tokens, openness: BatchValues, key: PRNGKeyArray) -> PairMask:
    """Let a token attend to its sample up to itself, and to each later token at random.

    A later token is visible with probability `openness` of the row: 1 is bidirectional, 0
    causal. All rows share one draw [t, s] (Gong et al., DiffuLLaMA, arXiv 2410.17891), so that it
    depends only on the step.
    """
    # samples [0, 0, 1] and openness 0: [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    same_sample = samples[:, :, None] == samples[:, None, :]
    columns = jnp.arange(samples.shape[1])
    is_opened = jax.random.uniform(key, (columns.size, columns.size)) < openness[:, None, None]
    return same_sample & ((columns[:, None] >= columns[None]) | is_opened)
